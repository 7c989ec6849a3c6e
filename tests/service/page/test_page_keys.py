"""The page with keys of different rights, and with one that is revoked meanwhile."""

import shutil

from acting import expect, marks, run_batch, tag
from inside import eventually, inside

from denn.service.key_file import add_key, revoke_key

pytestmark = marks


def test_the_page_offers_what_the_key_may_do_until_it_is_revoked(opened, tiny_model, tmp_path) -> None:
    file = tmp_path / "keys"
    keys = {name: add_key(file, name, f"the {name} key") for name in ("read", "teach", "administer")}
    with inside(shutil.copytree(tiny_model, tmp_path / "model"), key_file=file) as running:

        def tagged(right: str):
            page = opened(at=running, key=False, errors=(401,))
            page.fill("#key-field", keys[right])
            page.press("#key-field", "Enter")
            expect(page.locator("#key-dialog")).to_be_hidden()
            tag(page)
            return page

        page = tagged("administer")
        page.click("#views a[href='#/model']")
        expect(page.get_by_role("button", name="Refit")).to_be_visible()
        page = tagged("read")
        expect(page.locator("#refit")).to_be_hidden()
        expect(page.locator("#teach")).to_be_hidden()
        expect(page.locator("#read-only-why")).to_have_text(
            "This key can only read. Editing needs a key with the right to teach."
        )
        page = tagged("teach")
        page.click("#views a[href='#/model']")
        expect(page.locator("#refit-changes")).to_have_text("No documents changed since the last training or refit.")
        expect(page.locator("#refit-changes")).to_be_visible()
        expect(page.get_by_role("button", name="Refit")).to_be_hidden()
        page.click("#views a[href='#/tag']")
        page.click("#accept-all")
        expect(page.locator("#teach")).to_have_attribute("aria-disabled", "false")
        revoke_key(file, "the teach key")
        with running.client(keys["teach"]) as client:
            eventually(lambda: client.get("/v1/labels").status_code == 401)
        page.click("#teach")
        expect(page.locator("#failure")).to_contain_text("This key was revoked on")
        expect(page.locator("#key-state")).to_contain_text("This key was revoked on")


def test_nothing_that_the_key_gave_access_to_stays_when_it_is_forgotten(opened, tiny_model, tmp_path) -> None:
    key = add_key(tmp_path / "keys", "read", "the reader")
    with inside(shutil.copytree(tiny_model, tmp_path / "model"), key_file=tmp_path / "keys") as running:
        page = opened(at=running, key=False, errors=(401,))
        page.fill("#key-field", key)
        page.press("#key-field", "Enter")
        expect(page.locator("#key-dialog")).to_be_hidden()
        page.click("#views a[href='#/documents']")
        page.locator("#documents-rows a").first.click()
        text = page.locator("#document .text").text_content()
        page.click("text=Tag this text")
        expect(page.locator("#neighbours .neighbour").first).to_be_visible()
        page.click("#open-key")
        page.click("#key-forget")
        expect(page.locator("#key-dialog")).to_be_visible()
        expect(page.locator("#key-state")).to_have_text("This service requires a key.")
        assert text not in page.content() and page.input_value("#text") == ""
        assert page.locator("#documents-rows a, #neighbours .neighbour").count() == 0
        assert page.evaluate("sessionStorage.length") == 0


def test_a_running_batch_does_not_keep_the_page_open_when_its_key_is_forgotten(opened, tiny_model, tmp_path) -> None:
    key = add_key(tmp_path / "keys", "read", "the reader")
    with inside(shutil.copytree(tiny_model, tmp_path / "model"), key_file=tmp_path / "keys") as running:
        page = opened(at=running, key=False, errors=(401,))
        asked = []
        page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
        page.fill("#key-field", key)
        page.press("#key-field", "Enter")
        expect(page.locator("#key-dialog")).to_be_hidden()
        page.click("#views a[href='#/batch']")
        page.route("**/v1/predict/batch", lambda route: None)  # never answered
        run_batch(page, "secret.csv", b"text\nsecret goal\n")
        expect(page.locator("#batch-cancel")).to_be_enabled()
        page.click("#open-key")
        page.click("#key-forget")
        expect(page.locator("#key-state")).to_have_text("This service requires a key.")
        assert not asked and "secret" not in page.content()

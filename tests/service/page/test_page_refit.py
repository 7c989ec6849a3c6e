"""The page: refitting by a button, with its progress and its outcome."""

import shutil

from acting import expect, marks, tag

import denn

pytestmark = marks

REFIT = 180_000  # milliseconds; a refit has low priority, so it is slow on a busy machine


def test_a_refit_by_the_button(opened, serving, tiny_model, tmp_path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    lessons = [denn.Document(f"gambit bishop knight rook pawn {n}", ("chess",), f"later-{n}") for n in range(29)]
    with denn.load(folder) as model:
        model.add(lessons)
    with serving(folder) as running:
        page = opened(at=running)
        tag(page, "gambit bishop and a rook")
        changes, said, bar = (page.locator(f"#refit-{name}") for name in ("changes", "said", "progress"))
        expect(changes).to_have_text("29 documents changed since the last training or refit.")
        expect(said).to_be_empty()
        expect(bar).to_be_hidden()
        chess = page.locator("#result .label-row", has=page.get_by_text("chess", exact=True)).first
        expect(chess.locator(".witness dd")).to_contain_text(["unknown", ".", "unknown"])  # only the neighbours know it
        chess.locator(".accept").click()
        page.click("#teach")
        expect(changes).to_have_text("30 documents changed since the last training or refit.")
        page.click("#undo")
        expect(changes).to_have_text("31 documents changed since the last training or refit.")
        page.click("#views a[href='#/model']")
        page.get_by_role("button", name="Refit").click()
        expect(said).to_contain_text("Refitting: ")
        expect(bar).to_be_visible()
        expect(page.get_by_role("button", name="Refit")).to_be_disabled()
        other = opened(at=running)  # sees it too
        expect(other.locator("#refit-said")).to_contain_text("Refitting: ")
        expect(said).to_contain_text("Learnt 7 labels from ", timeout=REFIT)
        expect(other.locator("#refit-said")).to_contain_text("Learnt 7 labels from ")
        expect(bar).to_be_hidden()
        expect(changes).to_have_text("No documents changed since the last training or refit.")
        expect(page.locator("#model-facts")).to_contain_text("Last refit")
        page.click("#views a[href='#/tag']")
        expect(chess.locator(".witness dd")).to_contain_text([".", ".", "."])  # asked again
        expect(opened(at=running, key=False).locator("#refit")).to_be_hidden()


def test_why_a_refit_failed(opened, serving, tiny_model, tmp_path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    with serving(folder) as running:
        page = opened("#/model", at=running, width=400)
        with denn.load(folder) as model:
            model.forget([f"valid-{number}" for number in range(60)])
        page.get_by_role("button", name="Refit").click()
        expect(page.locator("#failure")).to_contain_text("validation documents", timeout=REFIT)
        expect(page.locator("#refit-said")).to_contain_text("validation documents")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        expect(page.get_by_role("button", name="Refit")).to_be_enabled()

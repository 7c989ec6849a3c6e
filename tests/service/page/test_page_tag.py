"""The page: tagging, options, files, teaching, keys, by mouse and by keyboard."""

import re
import shutil
from pathlib import Path

import pytest
from acting import TEXT, VIEWS, document_count, expect, marks, names, remove, tag

import denn
from denn.service.keys import new_key

pytestmark = marks


def test_predict_shows_what_the_service_says(opened, service) -> None:
    page = opened()
    tag(page)
    with service.client() as client:
        said = client.post("/v1/predict", json={"text": TEXT, "evidence": 5}).json()
    chosen = [row["label"] for row in said["scores"] if row["chosen"]]
    assert chosen == said["labels"] == names(page, "#chosen")
    assert names(page, "#others") == [row["label"] for row in said["scores"] if not row["chosen"]]
    ids = page.locator("#neighbours .neighbour a").all_text_contents()
    assert ids == [neighbour["id"] for neighbour in said["neighbours"]]
    first = page.locator("#chosen .label-row").first
    drawn = first.locator(".bar .fill").evaluate("e => e.getBoundingClientRect().width")
    whole = first.locator(".bar").evaluate("e => e.getBoundingClientRect().width")
    assert drawn / whole == pytest.approx(said["scores"][0]["score"], abs=0.02)
    mark = first.locator(".mark").evaluate("e => e.offsetLeft + 1")
    assert mark / whole == pytest.approx(said["scores"][0]["threshold"], abs=0.02)


def test_witnesses_stand_side_by_side_with_bars_of_one_scale(opened, service) -> None:
    page = opened()
    tag(page)
    with service.client() as client:
        said = client.post("/v1/predict", json={"text": TEXT}).json()["scores"][0]["parts"]
    shown = page.locator("#chosen .label-row").first.locator(".witness")
    assert shown.locator("dt").all_text_contents() == list(said)
    boxes = [box.bounding_box() for box in shown.all()]
    assert {round(box["width"]) for box in boxes} == {round(boxes[0]["width"])}
    for one, score in zip(shown.all(), said.values(), strict=True):
        drawn, whole = (one.locator(part).bounding_box()["width"] for part in (".fill", ".track"))
        assert drawn / whole == pytest.approx(score, abs=0.03)


def test_an_unfamiliar_text_is_flagged_above_its_labels(opened) -> None:
    page, flags = opened(), iter([True, False])

    def flagged(route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"unfamiliar": next(flags)})

    page.route("**/v1/predict", flagged)
    tag(page)
    notice = page.locator("#unfamiliar")
    expect(notice).to_contain_text("Unfamiliar text: no stored document is similar")
    assert notice.bounding_box()["y"] < page.locator("#chosen").bounding_box()["y"]
    tag(page, "orbit rocket planet")
    expect(notice).to_be_empty()


def test_supporting_words_are_shown_where_there_are_any(opened) -> None:
    page = opened()

    def with_words(route) -> None:  # the response of a model with the witness "words"
        answer = route.fetch()
        said = answer.json()
        for place, row in enumerate(said["scores"]):
            row["words"] = [{"word": word, "weight": 1} for word in ("<b>goal</b>", "match and")] if not place else []
        route.fulfill(response=answer, json=said)

    page.route("**/v1/predict", with_words)
    tag(page)
    rows = page.locator("#result .label-row")
    assert rows.first.locator(".words li").all_text_contents() == ["<b>goal</b>", "match and"]
    expect(rows.first.locator(".words")).to_have_accessible_name(re.compile("Supporting words"))
    assert page.locator(".words").count() == 1


def test_pointing_links_labels_and_neighbours(opened) -> None:
    page = opened()
    tag(page)
    page.locator("#neighbours .neighbour").first.hover()
    gave = set(page.locator("#neighbours .neighbour").first.locator(".chips li").all_text_contents())
    assert set(page.locator(".label-row.lit .name").all_text_contents()) <= gave
    assert set(page.locator(".label-row.lit .name").all_text_contents())
    for key in "jk":
        page.keyboard.press(key)
    label = names(page, "#chosen")[0]
    assert page.locator("#neighbours > .neighbour.lit").count() == (
        page.locator("#neighbours > .neighbour", has=page.locator(".chips li", has_text=label)).count()
    )


def test_options_hold_at_once(opened, service) -> None:
    text = "goal match orbit rocket violin chord"
    page = opened()
    tag(page, text)
    page.click("#ask summary")
    page.fill("#threshold", "0")
    with service.client() as client:
        said = client.post("/v1/predict", json={"text": text, "threshold": 0}).json()
    expect(page.locator("#chosen .name")).to_have_text(said["labels"])
    page.fill("#top-k", "1")
    expect(page.locator("#chosen .name")).to_have_text(said["labels"][:1])
    assert len(said["labels"]) > 1
    page.check("input[value=model]")
    page.fill("#top-k", "")
    with service.client() as client:
        tuned = client.post("/v1/predict", json={"text": text}).json()["labels"]
    expect(page.locator("#chosen .name")).to_have_text(tuned)  # otherwise a late response would hide the next one
    page.fill("#text", "")
    page.click("#ask-button")
    expect(page.locator("#failure")).to_contain_text("There is no text")


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.txt", "the goal of the match", "the goal of the match"),
        ("b.md", "\ufeff# the goal", "# the goal"),
        (
            "c.html",
            "<title>x</title><p>the <b>goal</b></p><script>window.ran = true</script><p>match</p>",
            "the goal\nmatch",
        ),
    ],
)
def test_files_are_read_as_text(opened, name: str, content: str, text: str) -> None:
    page = opened()
    page.set_input_files("#text-file", {"name": name, "mimeType": "text/plain", "buffer": content.encode()})
    expect(page.locator("#result-summary")).to_contain_text("suggested")
    assert page.input_value("#text") == text
    assert page.evaluate("window.ran") is None


def test_files_can_be_dropped(opened) -> None:
    page = opened()
    assert page.evaluate(DROP, ["#ask", "a.txt", "the goal of the match"]) is True
    expect(page.locator("#result-summary")).to_contain_text("suggested")
    assert page.input_value("#text") == "the goal of the match"
    assert page.evaluate(DROP, ["header", "b.txt", "elsewhere"]) is True  # it has no effect
    assert page.input_value("#text") == "the goal of the match"
    page.click("#views a[href='#/batch']")
    page.evaluate(DROP, ["#batch-drop", "c.tsv", "id\ttext\n1\tgoal\n"])
    expect(page.locator("#batch-about")).to_have_text("1 row, separated by tabs.")


DROP = """([where, name, content]) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([content], name));
  const event = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
  document.querySelector(where).dispatchEvent(event);
  return event.defaultPrevented;
}"""


def test_teach_shows_the_difference_and_undoes_it(opened, service) -> None:
    before = document_count(service)
    page = opened()
    tag(page)
    page.locator("#chosen .accept").first.click()
    page.fill("#add-label", "brand new")
    page.press("#add-label", "Enter")
    page.click("#teach")
    expect(page.locator("#difference")).to_be_visible()
    expect(page.locator("#difference-summary")).to_contain_text("is now the nearest neighbour")
    expect(page.locator("#difference-table")).to_contain_text("brand new")
    taught = page.locator("#neighbours .neighbour a").first.text_content()
    with service.client() as client:
        document = client.get(f"/v1/documents/{taught}").json()
        assert document["text"] == TEXT
        assert set(document["labels"]) == {names(page, "#chosen")[0], "brand new"}
        assert client.get("/v1/history", params={"limit": 1}).json()["changes"][0]["source"] == "teach: page"
    assert document_count(service) == before + 1
    page.click("#undo")
    expect(page.locator("#notice")).to_contain_text("Undone")
    expect(page.locator("#difference")).to_be_hidden()
    assert document_count(service) == before
    assert taught not in page.locator("#neighbours .neighbour a").all_text_contents()


def test_a_text_that_none_of_the_labels_fits_can_be_taught(opened, service) -> None:
    page = opened()
    tag(page)
    expect(page.locator("#teach-why")).to_have_text("Accept, add or reject at least one label.")
    suggested = names(page, "#chosen")
    for row in page.locator("#chosen .reject").all():
        row.click()
    page.click("#teach")
    expect(page.locator("#difference")).to_be_visible()
    expect(page.locator("#chosen .reject")).to_have_count(0)
    with service.client() as client:
        nearest = client.post("/v1/predict", json={"text": page.input_value("#text")}).json()["neighbours"][0]
    assert suggested and (nearest["labels"], sorted(nearest["rejected"])) == ([], sorted(suggested))
    remove(service, nearest["id"])


def test_rejected_labels_are_taught_shown_and_taken_back(opened, service) -> None:
    page = opened()
    tag(page)
    page.fill("#add-label", "brand new")
    page.press("#add-label", "Enter")
    other = names(page, "#others")[0]
    page.locator("#others .reject").first.click()
    page.locator("#others .reject").nth(1).click()
    expect(page.locator("#teach-what")).to_have_text("1 label accepted, 2 rejected.")
    expect(page.locator("#teach-labels .rejected li")).to_have_text([other, names(page, "#others")[1]])
    page.click("#teach")
    expect(page.locator("#difference")).to_be_visible()
    nearest = page.locator("#neighbours .neighbour").first
    struck = nearest.locator(".rejected li")
    expect(struck).to_have_count(2)
    assert struck.first.evaluate("one => getComputedStyle(one).textDecorationLine") == "line-through"
    id = nearest.locator("a").first.text_content()
    assert page.locator("#neighbours .neighbour").nth(1).locator(".rejected").count() == 0
    nearest.locator("a").first.click()
    expect(page.locator("#document .rejected li")).to_have_count(2)
    expect(page.locator("text=Save labels")).to_be_disabled()
    page.get_by_role("button", name=f"Stop rejecting {other}", exact=True).click()
    second = page.locator("#document .rejected li a").text_content()
    page.click("text=Save labels")
    expect(page.locator("#notice")).to_contain_text("Saved")
    with service.client() as client:
        stored = client.get(f"/v1/documents/{id}").json()
        assert (stored["labels"], stored["rejected"]) == (["brand new"], [second])
        page.locator("#document .add input").fill(second)
        page.locator("#document .add input").press("Enter")
        expect(page.locator("#document .rejected")).to_be_hidden()
        page.click("text=Save labels")
        expect(page.locator("#document .chips a")).to_have_text(["brand new", second])
        stored = client.get(f"/v1/documents/{id}").json()
        assert (stored["labels"], stored["rejected"]) == (["brand new", second], [])
    remove(service, id)


def test_undo_asks_where_it_would_touch_many_documents(opened, service) -> None:
    before = document_count(service)
    page = opened()
    tag(page)
    page.locator("#chosen .accept").first.click()
    page.click("#teach")
    expect(page.locator("#difference")).to_be_visible()
    asked = []

    def large(route) -> None:  # the response to a change of many documents
        asked.append(route.request.url)
        if "confirm=true" in route.request.url:
            return route.continue_()
        errors = [{"where": "query.confirm", "message": "affects 1,001 documents"}]
        route.fulfill(status=409, content_type="application/problem+json", json={"detail": "x", "errors": errors})

    page.route("**/undo?*", large)
    page.click("#undo")
    expect(page.locator("#confirm-text")).to_have_text("This affects 1,001 documents.")
    page.click("#confirm >> text=Cancel")
    expect(page.locator("#confirm")).to_be_hidden()
    assert document_count(service) == before + 1 and len(asked) == 1
    page.click("#undo")
    page.click("#confirm-yes")
    expect(page.locator("#notice")).to_contain_text("Undone")
    assert document_count(service) == before and len(asked) == 3


def test_without_a_key_teaching_says_why_and_takes_one(opened, service) -> None:
    page = opened(key=False)
    tag(page)
    page.click("#accept-all")
    expect(page.locator("#teach")).to_have_attribute("aria-disabled", "true")
    expect(page.locator("#teach-why")).to_contain_text("needs a key with write access")
    page.click("#teach", force=True)
    expect(page.locator("#notice")).to_contain_text("needs a key with write access")
    page.fill("#teach-key-field", "nonsense")
    page.press("#teach-key-field", "Enter")
    expect(page.locator("#failure")).to_contain_text("This key is unknown")
    page.fill("#teach-key-field", service.write_key)
    page.press("#teach-key-field", "Enter")
    expect(page.locator("#teach")).to_have_attribute("aria-disabled", "false")
    expect(page.locator("#teach-key")).to_be_hidden()


def test_the_key_leaves_the_address(opened, service) -> None:
    page = opened()
    assert service.write_key not in page.url
    expect(page.locator("#open-key")).to_have_text("Editing on")
    page.reload()
    expect(page.locator("#open-key")).to_have_text("Editing on")
    page.click("#open-key")
    page.click("#key-forget")
    expect(page.locator("#open-key")).to_have_text("Read-only")


def test_where_reading_needs_a_key_the_page_asks_for_it(opened, serving, tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    key, line = new_key("read", "reader")
    (tmp_path / "keys").write_text(line)
    with serving(tmp_path / "model", "--keys", str(tmp_path / "keys"), teach=False) as running:
        page = opened("#/labels", at=running, key=False)
        expect(page.locator("#key-state")).to_have_text("This service requires a key.")
        page.fill("#key-field", key)
        page.press("#key-field", "Enter")
        expect(page.locator("#labels-summary")).to_contain_text("labels")
        page.click("#views a[href='#/tag']")
        tag(page)
        expect(page.locator("#teach-why")).to_have_text("Editing is off: the service was started without a write key.")
        expect(page.locator("#teach-key")).to_be_hidden()


def test_a_model_without_a_datastore(opened, serving, tiny_corpus: denn.Corpus, tmp_path: Path) -> None:
    denn.train(tiny_corpus, method="dummy", out=tmp_path / "dummy").close()
    with serving(tmp_path / "dummy") as running:
        page = opened(at=running)
        tag(page)
        expect(page.locator("#evidence")).to_be_hidden()
        expect(page.locator("#teach-why")).to_contain_text("has no datastore")
        page.click("#views a[href='#/map']")
        expect(page.locator("#failure")).to_contain_text("keeps no datastore")
        expect(page.locator("#map-summary")).to_have_text("The map is unavailable.")


def test_keyboard_only(opened, service) -> None:
    page = opened()
    press = page.keyboard.press
    for _ in range(20):
        if page.evaluate("document.activeElement.id") == "text":
            break
        press("Tab")
    page.keyboard.type(TEXT)
    assert page.input_value("#text") == TEXT  # all letters were typed: none was taken as a shortcut
    press("Control+Enter")
    expect(page.locator("#chosen .accept").first).to_be_focused()
    press("a")
    press("j")
    press("r")
    press("k")
    rows = page.locator("#result .label-row")
    expect(rows.nth(0)).to_have_attribute("data-state", "accepted")
    expect(rows.nth(1)).to_have_attribute("data-state", "rejected")
    expect(rows.nth(0).locator(".accept")).to_be_focused()
    press("n")
    page.keyboard.type("WEATH")  # a known label in a different case
    expect(page.locator("#add-options [role=option]")).to_have_count(1)
    press("ArrowDown")
    press("Enter")
    press("n")
    page.keyboard.type("jarring")
    press("Enter")
    chosen, other = (names(page, where)[0] for where in ("#chosen", "#others"))
    expect(page.locator("#teach-labels li")).to_have_text([chosen, "rare: weather", "jarring", other])
    press("t")
    expect(page.locator("#difference-summary")).to_contain_text("nearest neighbour")
    press("u")
    expect(page.locator("#notice")).to_contain_text("Undone")
    press("?")
    expect(page.locator("#help")).to_be_visible()
    press("Escape")
    expect(page.locator("#help")).to_be_hidden()


def test_letters_can_be_switched_off(opened) -> None:
    page = opened()
    tag(page)
    page.click("#open-help")
    page.uncheck("#letters-on")
    page.keyboard.press("Escape")
    page.locator("#chosen .accept").first.focus()
    page.keyboard.press("a")
    expect(page.locator("#chosen .label-row").first).to_have_attribute("data-state", "open")


def test_what_views_hold_survives_a_change_of_view(opened) -> None:
    page = opened()
    tag(page)
    page.locator("#chosen .accept").first.click()
    for view in VIEWS[1:]:
        page.click(f"#views a[href='#/{view}']")
        expect(page.locator(f"#view-{view}")).to_be_visible()
        expect(page.locator(f"#view-{view} h1")).to_be_focused()
    page.click("#views a[href='#/tag']")
    assert page.input_value("#text") == TEXT
    expect(page.locator("#chosen .label-row").first).to_have_attribute("data-state", "accepted")

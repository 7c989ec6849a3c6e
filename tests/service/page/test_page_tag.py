"""The page: tagging, options, files, teaching, keys, by mouse and by keyboard."""

import re
import shutil
from pathlib import Path

import pytest
from acting import TEXT, VIEWS, document_count, expect, marks, names, remove, show_all_neighbours, tag

import denn
from denn.service.keys import new_key
from denn.witnesses.ngrams import WordTokens

pytestmark = marks


def test_predict_shows_what_the_service_says(opened, service) -> None:
    page = opened()
    tag(page)
    with service.client() as client:
        said = client.post("/v1/predict", json={"text": TEXT, "evidence": 5}).json()
    chosen = [row["label"] for row in said["scores"] if row["chosen"]]
    assert chosen == said["labels"] == names(page, "#chosen")
    assert names(page, "#others") == [row["label"] for row in said["scores"] if not row["chosen"]]
    show_all_neighbours(page)
    ids = page.locator("#neighbours .neighbour a").all_text_contents()
    assert ids == [neighbour["id"] for neighbour in said["neighbours"]]
    first = page.locator("#chosen .label-row").first
    drawn = first.locator(".bar .fill").evaluate("e => e.getBoundingClientRect().width")
    whole = first.locator(".bar").evaluate("e => e.getBoundingClientRect().width")
    assert drawn / whole == pytest.approx(said["scores"][0]["score"], abs=0.02)
    mark = first.locator(".mark").evaluate("e => e.offsetLeft + 1")
    assert mark / whole == pytest.approx(said["scores"][0]["threshold"], abs=0.02)


def test_the_start_offers_examples(opened, service) -> None:
    page = opened()
    expect(page.locator("#examples-note")).to_contain_text("has not learnt from them")
    with service.client() as client:
        texts = [document["text"] for document in client.get("/v1/examples").json()["documents"]]
    buttons = page.locator("#examples-list button")
    expect(buttons).to_have_count(len(texts))
    buttons.nth(1).click()
    expect(page.locator("#result-summary")).to_contain_text("suggested")
    expect(page.locator("#text-shown")).to_have_text(texts[1])
    expect(page.locator("#start")).to_be_hidden()
    page.keyboard.press("c")
    expect(page.locator("#text")).to_be_focused()
    assert page.input_value("#text") == ""
    expect(buttons.first).to_be_visible()
    expect(page.locator("#result")).to_be_hidden()
    page.click("#start-help")
    for term in ("Score", "Threshold", "Witness", "Neighbour", "Familiarity"):
        expect(page.locator("#help dt", has_text=term)).to_be_visible()


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


def with_words(*words: str):
    """Return a route that answers like a model whose witness "words" gives these words to the first label."""

    def answer(route) -> None:
        said = (got := route.fetch()).json()
        for place, row in enumerate(said["scores"]):
            row["words"] = [{"word": word, "weight": 1} for word in words] if not place else []
        route.fulfill(response=got, json=said)

    return answer


def test_words_are_highlighted_in_the_text_and_listed(opened) -> None:
    page = opened()
    page.route("**/v1/predict", with_words("goal", "goal of", "of the", "naïve", "stra\u00dfe", "球"))
    tag(
        page,
        "<Goal> of (the) GOALKEEPER, Naïve; goal, of. STRA\u00dfE İ 球技 <script>window.ran = true</script>",
    )
    page.locator("#chosen .accept").first.focus()
    found = page.locator("#text-shown mark")
    expect(found).to_have_text(["Goal> of (the", "Naïve", "goal, of", "STRA\u00dfE", "球"])
    expect(page.locator("#text-shown")).to_have_text(page.input_value("#text"))
    expect(page.locator("#text-marks")).to_have_text(f"Highlighted: words for {names(page, '#chosen')[0]}.")
    assert page.locator("#evidence-words li").first.text_content() == "goal"
    expect(page.locator("#evidence-words ul")).to_have_accessible_name(re.compile("Supporting words"))
    page.locator("#others .accept").first.focus()
    expect(found).to_have_count(0)
    page.locator("#chosen .label-row").first.hover()
    expect(found).to_have_count(5)
    assert page.evaluate("window.ran") is None


def test_words_are_split_as_the_witness_splits_them(opened) -> None:
    texts = [
        "İstanbul and ΣΑΣ, ŁÓDŹ; a_b 3½ ²x",
        "日本語のテキスト mixed漢字text",
        "x" * 95 + " 𐐀𐐁 e\u0301 ﬁn",
        "don't – naïve\u00adly\u200bsplit\nlines",
        "".join(map(chr, range(0x20, 0x250))) + "".join(map(chr, range(0x370, 0x600))),
    ]
    expected = [WordTokens.of([text]) for text in texts]
    found = opened().evaluate(
        "async texts => { const { wordsOf } = await import('/page/highlight.js');"
        " return texts.map(text => wordsOf(text).map(({ word, begin, end }) => [word, text.slice(begin, end)])); }",
        texts,
    )
    for tokens, pairs in zip(expected, found, strict=True):
        assert [word for word, _ in pairs] == [tokens.words[number] for number in tokens.ids]
        assert all(word in part.lower() for word, part in pairs)


def test_pointing_links_labels_and_neighbours(opened) -> None:
    page = opened()
    tag(page)
    show_all_neighbours(page)
    page.locator("#neighbours .neighbour").first.hover()
    gave = set(page.locator("#neighbours .neighbour").first.locator(".chips li").all_text_contents())
    assert set(page.locator(".label-row.lit .name").all_text_contents()) <= gave
    assert set(page.locator(".label-row.lit .name").all_text_contents())
    for key in "jk":
        page.keyboard.press(key)
    label = names(page, "#chosen")[0]
    expect(page.locator("#evidence-title")).to_have_text(f"Evidence for {label}")
    for neighbour in page.locator("#neighbours > .neighbour").all():
        expect(neighbour.locator(".chips li.lit")).to_have_text(label)
    show_all_neighbours(page)
    carrying = page.locator("#neighbours > .neighbour", has=page.locator(".chips li", has_text=label))
    page.locator("#result .label-row").first.hover()
    assert page.locator("#neighbours > .neighbour.lit").count() == carrying.count()


def test_options_hold_at_once(opened, service) -> None:
    text = "goal match orbit rocket violin chord"
    page = opened()
    tag(page, text)
    page.click(".options summary")
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
    page.click("#edit")
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
    expect(page.locator("#difference-summary")).to_contain_text("It is now the nearest neighbour")
    expect(page.locator("#difference-table")).to_contain_text("brand new")
    show_all_neighbours(page)
    taught = page.locator("#neighbours .neighbour a").first.text_content()
    with service.client() as client:
        document = client.get(f"/v1/documents/{taught}").json()
        assert document["text"] == TEXT
        assert set(document["labels"]) == {names(page, "#chosen")[0], "brand new"}
        assert client.get("/v1/history", params={"limit": 1}).json()["changes"][0]["source"] == "teach: page"
    assert document_count(service) == before + 1
    page.click("#undo")
    expect(page.locator("#difference-title")).to_have_text("Undone")
    expect(page.locator("#difference-title")).to_be_focused()
    expect(page.locator("#undo")).to_be_hidden()
    assert document_count(service) == before
    assert taught not in page.locator("#neighbours .neighbour a").all_text_contents()


@pytest.mark.parametrize("width", [1280, 400])
def test_messages_and_suggestions_cover_no_button(opened, service, width: int) -> None:
    page = opened(width=width)
    tag(page)
    page.fill("#add-label", "s")
    expect(page.locator("#add-options [role=option]").first).to_be_visible()
    assert page.evaluate(UNCOVERED, "#add-form button")
    expect(page.locator("#add-options [role=option]").last).to_be_in_viewport()
    page.locator("#add-options [role=option]").first.click()
    expect(page.locator("#notice")).to_be_empty()  # the new label has the focus
    page.click("#teach")
    expect(page.locator("#difference")).to_be_visible()
    assert page.evaluate(UNCOVERED, "#undo")
    page.click("#difference-details summary")
    assert page.locator("#difference-table td").evaluate_all(LINES) == 1  # no number is broken over two lines
    page.click("#undo")
    expect(page.locator("#difference-title")).to_have_text("Undone")
    assert page.evaluate(UNCOVERED, "#edit") and page.evaluate(UNCOVERED, "#clear")


LINES = """cells => Math.max(...cells.map(cell => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return new Set([...range.getClientRects()].filter(({ width }) => width > 1).map(({ top }) => Math.round(top))).size;
}))"""
UNCOVERED = """selector => {
  const button = document.querySelector(selector);
  const { left, top, width, height } = button.getBoundingClientRect();
  return [0.1, 0.5, 0.9].every(x => [0.1, 0.5, 0.9].every(y =>
    button.contains(document.elementFromPoint(left + x * width, top + y * height))));
}"""


def test_on_a_phone_the_evidence_is_below_its_label(opened) -> None:
    page = opened(width=400)
    page.route("**/v1/predict", with_words("goal"))
    tag(page)
    assert page.evaluate("document.documentElement.scrollHeight") < 2000
    expect(page.locator("#neighbours .neighbour")).to_have_count(0)
    first, second = (page.locator("#result .label-row").nth(place) for place in range(2))
    first.locator(".name").click()
    expect(first.locator(".name")).to_have_attribute("aria-expanded", "true")
    expect(first.locator(".words li")).to_have_text(["goal"])
    label = first.locator(".name").text_content()
    for neighbour in first.locator(".neighbour").all():
        expect(neighbour.locator(".chips")).to_contain_text(label)
    expect(page.locator("#text-shown mark").first).to_be_in_viewport()
    second.locator(".name").click()
    expect(first.locator(".because")).to_have_count(0)
    expect(first.locator(".name")).to_have_attribute("aria-expanded", "false")
    expect(second.locator(".because")).to_be_visible()
    page.keyboard.press("o")
    expect(page.locator(".because")).to_have_count(0)
    page.set_viewport_size({"width": 400, "height": 640})
    for key in "jjjjjkkkkk":  # the text that stays in sight never hides the focus
        page.keyboard.press(key)
        assert page.evaluate(UNCOVERED, ":focus"), key


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
    show_all_neighbours(page)
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
        expect(page.locator("text=Save labels")).to_be_disabled()  # only once they are saved
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
    expect(page.locator("#difference-title")).to_have_text("Undone")
    assert document_count(service) == before and len(asked) == 3


def test_a_key_that_can_only_read_hides_teaching_behind_one_sentence(opened, service) -> None:
    page = opened(key=False)
    tag(page)
    for control in ("#teach", "#accept-all", "#add-label", "#chosen .accept"):
        expect(page.locator(control).first).to_be_hidden()
    expect(page.locator("#read-only-why")).to_contain_text("needs a key with the right to teach")
    expect(page.locator("#chosen .name").first).to_be_focused()
    page.keyboard.press("j")
    expect(page.locator("#result .name").nth(1)).to_be_focused()
    page.keyboard.press("a")
    expect(page.locator("#notice")).to_contain_text("needs a key with the right to teach")
    assert page.locator("[data-state=accepted]").count() == 0
    page.click("#teach-key")
    page.fill("#key-field", "nonsense")
    page.press("#key-field", "Enter")
    expect(page.locator("#key-error")).to_contain_text("This key is unknown")
    page.fill("#key-field", service.write_key)
    page.press("#key-field", "Enter")
    expect(page.locator("#key-dialog")).to_be_hidden()
    expect(page.locator("#read-only")).to_be_hidden()
    page.locator("#chosen .accept").first.click()
    expect(page.locator("#teach")).to_have_attribute("aria-disabled", "false")


def test_the_key_leaves_the_address(opened, service) -> None:
    page = opened()
    assert service.write_key not in page.url
    expect(page.locator("#open-key")).to_have_text("Access: administer")
    page.reload()
    expect(page.locator("#open-key")).to_have_text("Access: administer")
    page.click("#open-key")
    page.click("#key-forget")
    expect(page.locator("#open-key")).to_have_text("Access: read")


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
        expect(page.locator("#read-only-why")).to_contain_text("Editing is off")
        expect(page.locator("#teach-key")).to_be_hidden()


def test_a_model_without_a_datastore(opened, serving, tiny_corpus: denn.Corpus, tmp_path: Path) -> None:
    denn.train(tiny_corpus, method="dummy", out=tmp_path / "dummy").close()
    with serving(tmp_path / "dummy") as running:
        page = opened(at=running)
        tag(page)
        expect(page.locator("#evidence")).to_be_hidden()
        expect(page.locator("#read-only-why")).to_contain_text("has no datastore")
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
    expect(page.locator("#difference-title")).to_have_text("Undone")
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

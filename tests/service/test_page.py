"""The page in a real Chromium, against a real service: what people do with it, by mouse and by keyboard."""

import csv
import importlib.util
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

import denn
from denn.service.keys import new_key

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on the path"),
]
playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
Browser, Page, expect = playwright.Browser, playwright.Page, playwright.expect

TEXT = "the goal of the match and the team with the coach"
VIEWS = ("tag", "labels", "documents", "map", "batch", "recent")
EVIL = '<img src=x onerror="window.ran = true"><script>window.ran = true</script>'
BROKEN_BY_PURPOSE = ("the server responded with a status of 503", "the server responded with a status of 409")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser, service) -> Iterator[Callable[..., Page]]:
    """Open pages that may show no error on the console, break no policy, and ask no other host."""
    contexts, complaints, hosts, own = [], [], set(), set()

    def open_page(
        fragment: str = "", *, at=service, key: bool = True, width: int = 1280, scheme: str = "light"
    ) -> Page:
        own.add(urlsplit(at.url).netloc)
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        context.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{at.url}/{f'#key={at.write_key}' if key else ''}")
        expect(page.locator("#model-name")).not_to_be_empty()
        if fragment:
            page.evaluate("fragment => { location.hash = fragment }", fragment)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not [text for text in complaints if not any(known in text for known in BROKEN_BY_PURPOSE)]
    assert {host for host in hosts if host} == own  # blobs have no host


def tag(page: Page, text: str = TEXT) -> None:
    page.fill("#text", text)
    page.click("#ask-button")
    expect(page.locator("#result-summary")).to_contain_text("suggested")


def names(page: Page, where: str) -> list[str]:
    return page.locator(f"{where} .label-row .name").all_text_contents()


def document_count(service) -> int:
    with service.client() as client:
        return client.get("/v1/documents", params={"limit": 0}).json()["total"]


def remove(service, *ids: str) -> None:
    with service.writer() as client:
        for id in ids:
            client.delete(f"/v1/documents/{quote(id, safe='')}").raise_for_status()


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
    share = round(100 * said["confidence"])
    expect(page.locator("#confidence")).to_contain_text(f"{share}\u00a0% neighbours")
    first = page.locator("#chosen .label-row").first
    drawn = first.locator(".fill").evaluate("e => e.getBoundingClientRect().width")
    whole = first.locator(".bar").evaluate("e => e.getBoundingClientRect().width")
    assert drawn / whole == pytest.approx(said["scores"][0]["score"], abs=0.02)
    mark = first.locator(".mark").evaluate("e => e.offsetLeft + 1")
    assert mark / whole == pytest.approx(said["scores"][0]["threshold"], abs=0.02)


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
    page.fill("#threshold", "0.01")
    with service.client() as client:
        said = client.post("/v1/predict", json={"text": text, "threshold": 0.01}).json()
    expect(page.locator("#chosen .name")).to_have_text(said["labels"])
    page.fill("#top-k", "1")
    expect(page.locator("#chosen .name")).to_have_text(said["labels"][:1])
    assert len(said["labels"]) > 1
    page.check("input[value=model]")
    page.fill("#top-k", "")
    page.fill("#text", "")
    page.click("#ask-button")
    expect(page.locator("#failure")).to_contain_text("There is no text yet")


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
    assert page.evaluate(DROP, ["header", "b.txt", "elsewhere"]) is True  # and nothing comes of it
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
        assert client.get("/v1/history", params={"limit": 1}).json()["changes"][0]["source"] == "page"
    assert document_count(service) == before + 1
    page.click("#undo")
    expect(page.locator("#notice")).to_contain_text("Undone")
    expect(page.locator("#difference")).to_be_hidden()
    assert document_count(service) == before
    assert taught not in page.locator("#neighbours .neighbour a").all_text_contents()


def test_without_a_key_teaching_says_why_and_takes_one(opened, service) -> None:
    page = opened(key=False)
    tag(page)
    page.click("#accept-all")
    expect(page.locator("#teach")).to_have_attribute("aria-disabled", "true")
    expect(page.locator("#teach-why")).to_contain_text("needs a key that may write")
    page.click("#teach", force=True)
    expect(page.locator("#notice")).to_contain_text("needs a key that may write")
    page.fill("#teach-key-field", "nonsense")
    page.press("#teach-key-field", "Enter")
    expect(page.locator("#failure")).to_contain_text("does not know this key")
    page.fill("#teach-key-field", service.write_key)
    page.press("#teach-key-field", "Enter")
    expect(page.locator("#teach")).to_have_attribute("aria-disabled", "false")
    expect(page.locator("#teach-key")).to_be_hidden()


def test_the_key_leaves_the_address(opened, service) -> None:
    page = opened()
    assert service.write_key not in page.url
    expect(page.locator("#open-key")).to_have_text("May teach")
    page.reload()
    expect(page.locator("#open-key")).to_have_text("May teach")
    page.click("#open-key")
    page.click("#key-forget")
    expect(page.locator("#open-key")).to_have_text("Read only")


@pytest.fixture
def serving(request: pytest.FixtureRequest):
    """What starts a service with other options."""
    return request.config.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py"))).serving


def test_where_reading_needs_a_key_the_page_asks_for_it(opened, serving, tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    key, line = new_key("read", "reader")
    (tmp_path / "keys").write_text(line)
    with serving(tmp_path / "model", "--keys", str(tmp_path / "keys"), teach=False) as running:
        page = opened("#/labels", at=running, key=False)
        expect(page.locator("#key-state")).to_have_text("This service asks for a key.")
        page.fill("#key-field", key)
        page.press("#key-field", "Enter")
        expect(page.locator("#labels-summary")).to_contain_text("labels")
        page.click("#views a[href='#/tag']")
        tag(page)
        expect(page.locator("#teach-why")).to_have_text("Teaching is off: the service was started without a write key.")
        expect(page.locator("#teach-key")).to_be_hidden()


def test_a_model_without_a_datastore(opened, serving, tiny_corpus: denn.Corpus, tmp_path: Path) -> None:
    denn.train(tiny_corpus, method="dummy", out=tmp_path / "dummy").close()
    with serving(tmp_path / "dummy") as running:
        page = opened(at=running)
        tag(page)
        expect(page.locator("#evidence")).to_be_hidden()
        expect(page.locator("#teach-why")).to_contain_text("keeps no datastore")
        page.click("#views a[href='#/map']")
        expect(page.locator("#failure")).to_contain_text("keeps no datastore")
        expect(page.locator("#map-summary")).to_have_text("There is no map.")


def test_keyboard_only(opened, service) -> None:
    page = opened()
    press = page.keyboard.press
    for _ in range(20):
        if page.evaluate("document.activeElement.id") == "text":
            break
        press("Tab")
    page.keyboard.type(TEXT)
    assert page.input_value("#text") == TEXT  # with all its letters: none was taken as a command
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
    page.keyboard.type("WEATH")  # a known label, in other letters
    expect(page.locator("#add-options [role=option]")).to_have_count(1)
    press("ArrowDown")
    press("Enter")
    press("n")
    page.keyboard.type("jarring")
    press("Enter")
    expect(page.locator("#teach-labels")).to_have_text(f"{names(page, '#chosen')[0]}rare: weatherjarring")
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


def test_labels_lead_to_their_documents(opened, service) -> None:
    page = opened("#/labels")
    page.fill("#labels-query", "SPO")
    expect(page.locator("#labels-rows tr")).to_have_count(1)
    expect(page.locator("#labels-rows tr")).to_contain_text("training")
    with service.client() as client:
        total = client.get("/v1/documents", params={"label": "sport", "limit": 0}).json()["total"]
    expect(page.locator("#labels-rows td").first).to_have_text(str(total))
    page.click("#labels-rows a")
    expect(page.locator("#documents-summary")).to_contain_text(f"{total} documents")
    for row in page.locator("#documents-rows .row").all():
        assert "sport" in row.locator(".chips li").all_text_contents()


def test_a_document_is_edited_removed_and_forgotten(opened, service) -> None:
    with service.writer() as client:
        client.post(
            "/v1/documents", json={"documents": [{"text": "zzyzx goal", "labels": ["sport"], "id": "odd/ id?"}]}
        )
    page = opened("#/documents")
    page.fill("#documents-text", "zzyzx goal")
    page.click("#documents-form button[type=submit]")
    page.click("#documents-rows a")
    expect(page.locator("#document h2")).to_have_text("odd/ id?")
    page.locator("#document .add input").fill("music")
    page.locator("#document .add input").press("Enter")
    page.get_by_role("button", name="Take sport away").click()
    page.click("text=Save labels")
    expect(page.locator("#notice")).to_contain_text("Saved")
    path = f"/v1/documents/{quote('odd/ id?', safe='')}"
    with service.client() as client:
        assert client.get(path).json()["labels"] == ["music"]
        page.click("#notice >> text=Undo")
        expect(page.locator("#notice")).to_contain_text("Undone")
        assert client.get(path).json()["labels"] == ["sport"]
        page.click("text=Remove …")
        page.click("#confirm >> text=Keep it")
        assert client.get(path).status_code == 200
        page.click("text=Remove …")
        page.click("#confirm-yes")
        expect(page.locator("#notice")).to_contain_text("Removed")
        assert client.get(path).status_code == 404
        page.click("#notice >> text=Undo")
        expect(page.locator("#documents-rows a")).to_have_text("odd/ id?")
        page.click("#documents-rows a")
        page.click("text=Forget …")
        page.click("#confirm-yes")
        expect(page.locator("#notice")).to_contain_text("Forgot")
        assert client.get(path).status_code == 404
    page.click("#documents-all")
    page.locator("#documents-rows a").first.click()
    expect(page.locator("#document")).to_be_visible()
    text = page.locator("#document .text").text_content()
    page.click("text=Tag this text")
    expect(page.locator("#result-summary")).to_contain_text("suggested")
    assert page.input_value("#text") == text


def test_map_with_the_current_text(opened, service) -> None:
    page = opened()
    tag(page)
    before = page.evaluate("document.querySelector('#map-canvas').toDataURL()")
    page.click("#views a[href='#/map']")
    total = document_count(service)
    expect(page.locator("#map-summary")).to_contain_text(f"{total} documents")
    expect(page.locator("#map-summary")).to_contain_text("The cross is the text")
    expect(page.locator("#map-canvas")).to_have_attribute(
        "aria-label", f"{total} documents in two dimensions, and your text among them"
    )
    assert page.evaluate("document.querySelector('#map-canvas').toDataURL()") != before
    assert page.evaluate(HAS_COLOUR, "--here")
    with service.client() as client:
        drawn = client.get("/v1/map").json()
    rows = dict(row.split("\t") for row in page.locator("#map-table tbody tr").evaluate_all(ROW_TEXTS))
    assert rows == {
        **{label: str(sum(label in point["labels"] for point in drawn["points"])) for label in drawn["labels"]},
        "other": str(sum(not set(point["labels"]) & set(drawn["labels"]) for point in drawn["points"])),
    }
    page.locator("#map-canvas").focus()
    page.keyboard.press("ArrowRight")
    shown = page.locator("#map-tip strong").text_content()
    assert shown in {point["id"] for point in drawn["points"]}
    page.keyboard.press("+")
    page.keyboard.press("Enter")
    expect(page.locator("#document h2")).to_have_text(shown)


HAS_COLOUR = """name => {
  const canvas = document.querySelector("#map-canvas");
  const hex = getComputedStyle(canvas).getPropertyValue(name).match(/[0-9a-f]{2}/g);
  const wanted = hex.map(part => parseInt(part, 16)).join();
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (let at = 0; at < data.length; at += 4) if (data.slice(at, at + 3).join() === wanted) return true;
  return false;
}"""
ROW_TEXTS = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent).join('\\t'))"


def test_map_points_by_mouse(opened) -> None:
    page = opened("#/map")
    expect(page.locator("#legend button").first).to_be_visible()
    canvas = page.locator("#map-canvas")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    tip = page.locator("#map-tip")
    expect(tip).to_be_visible()
    page.locator("#legend button").first.click()
    expect(tip).to_be_hidden()
    expect(page.locator("#legend button").first).to_have_attribute("aria-pressed", "true")
    box = canvas.bounding_box()
    for step in range(1, 60):  # somewhere on the way across there is a document
        page.mouse.move(box["x"] + box["width"] * step / 60, box["y"] + box["height"] * step / 60)
        if tip.is_visible():
            break
    shown = tip.locator("strong").text_content()
    page.mouse.down()
    page.mouse.up()
    expect(page.locator("#document h2")).to_have_text(shown)


def run_batch(page: Page, name: str, content: bytes) -> None:
    page.set_input_files("#batch-file", {"name": name, "mimeType": "text/plain", "buffer": content})
    expect(page.locator("#batch-name")).to_have_text(name)
    page.click("#batch-start")


def download(page: Page) -> tuple[str, bytes]:
    with page.expect_download() as waiting:
        page.click("#batch-download")
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def predicted(service, texts: list[str]) -> list[dict]:
    with service.client() as client:
        return client.post("/v1/predict/batch", json={"texts": texts, "evidence": 0}).json()["predictions"]


def test_batch_csv_with_quotes_newlines_and_semicolons(opened, service) -> None:
    texts = [f'the "goal" of match {n};\r\nthe team' if n % 2 else f"orbit rocket {n}" for n in range(150)] + [""]
    source = io.StringIO()
    writer = csv.writer(source, delimiter=";", lineterminator="\r\n")
    writer.writerows([["nr", "story", "labels"], *([n, text, "old, ones"] for n, text in enumerate(texts))])
    page = opened("#/batch")
    run_batch(page, "news.csv", b"\xef\xbb\xbf" + source.getvalue().encode())
    assert page.input_value("#batch-column") == "story"
    expect(page.locator("#batch-status")).to_contain_text("Done: 151 rows", timeout=30_000)
    name, content = download(page)
    assert name == "news.tagged.csv"
    assert content.startswith(b"\xef\xbb\xbfnr;story;labels;predicted_labels;scores\r\n")
    rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), delimiter=";"))
    assert [row[:3] for row in rows[1:]] == [[str(n), text, "old, ones"] for n, text in enumerate(texts)]
    for row, said in zip(rows[1:], predicted(service, texts[:-1]), strict=False):
        assert [label for label in row[3].split("|") if label] == said["labels"]
        scores = [one["score"] for one in said["scores"] if one["chosen"]]
        assert [float(score) for score in row[4].split("|") if score] == pytest.approx(scores, abs=1e-4)
    assert rows[-1][3:] == ["", ""]


def test_batch_jsonl_keeps_what_it_was(opened, service) -> None:
    lines = [
        '{"text": "the goal of the match", "id": 12345678901234567890}',
        "",
        '{"text":"orbit\\nrocket", "deep": {"a": [1.0]}}',
    ]
    page = opened("#/batch")
    run_batch(page, "news.jsonl", "\n".join(lines).encode())
    expect(page.locator("#batch-status")).to_contain_text("Done: 2 rows")
    name, content = download(page)
    assert name == "news.tagged.jsonl"
    first, second = content.decode().splitlines()
    assert first.startswith(lines[0][:-1])
    assert second.startswith(lines[2][:-1])
    for line, said in zip((first, second), predicted(service, ["the goal of the match", "orbit\nrocket"]), strict=True):
        row = json.loads(line)
        assert row["labels"] == said["labels"]
        assert list(row["scores"]) == said["labels"]


def test_batch_waits_where_the_service_is_busy(opened) -> None:
    page = opened("#/batch")
    asked = []

    def answer(route) -> None:
        asked.append(len(route.request.post_data_json["texts"]))
        if len(asked) == 2:
            route.fulfill(status=503, headers={"Retry-After": "1"}, json={"detail": "Too many texts are waiting."})
        else:
            route.continue_()

    page.route("**/v1/predict/batch", answer)
    run_batch(page, "many.csv", b"text\n" + b"goal\n" * 130)
    expect(page.locator("#batch-status")).to_contain_text("Done: 130 rows", timeout=30_000)
    assert asked == [64, 64, 64, 2]


def test_batch_keeps_what_is_done_and_names_the_row(opened, service) -> None:
    page = opened("#/batch")
    rows = [f"goal {n}" for n in range(80)]
    rows[70] = "x" * 100_001
    run_batch(page, "long.csv", "\n".join(["text", *rows]).encode())
    expect(page.locator("#failure")).to_contain_text("Stopped at row 71: the text has 100,001 characters")
    expect(page.locator("#batch-status")).to_contain_text("70 rows of 80 kept")
    _, content = download(page)
    done = ["|".join(said["labels"]) for said in predicted(service, rows[:70])]
    assert any(done)
    assert [row["labels"] for row in csv.DictReader(io.StringIO(content.decode()))] == done + [""] * 10
    page.click("text=Go on without row 71")
    expect(page.locator("#batch-status")).to_contain_text("1 row left out")


def test_batch_can_be_cancelled(opened) -> None:
    page = opened("#/batch")
    page.route("**/v1/predict/batch", lambda route: None)  # an answer that does not come
    run_batch(page, "many.csv", b"text\n" + b"goal\n" * 130)
    page.click("#batch-cancel")
    expect(page.locator("#batch-status")).to_contain_text("Cancelled. No rows of 130 kept.")
    page.unroute_all(behavior="ignoreErrors")
    page.click("text=Go on")
    expect(page.locator("#batch-status")).to_contain_text("Done: 130 rows", timeout=30_000)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": ', "a.jsonl: Line 2 is not JSON"),
        ("a.csv", b'text\n"never closed', "a.csv: The quote that is opened in line 2 is never closed"),
        ("a.csv", b"", "a.csv: the file holds no rows"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", "a.csv: record 3 has 3 fields, expected at most 2"),
    ],
)
def test_batch_files_that_cannot_be_read(opened, name: str, content: bytes, said: str) -> None:
    page = opened("#/batch")
    page.set_input_files("#batch-file", {"name": name, "mimeType": "text/plain", "buffer": content})
    expect(page.locator("#failure")).to_contain_text(said)


CSV_CASES = [
    ("a,b\n1,2\n", [["a", "b"], ["1", "2"]]),
    ("a,b\r\n1,2", [["a", "b"], ["1", "2"]]),
    ("\ufeffa;b\n1;2,5\n", [["a", "b"], ["1", "2,5"]]),
    ("a\tb\n1\t\n", [["a", "b"], ["1", ""]]),
    ('a,b\n"x, ""y""\r\nz",2\n', [["a", "b"], ['x, "y"\r\nz', "2"]]),
    ('a,b\n"",\n', [["a", "b"], ["", ""]]),
    ("one\n\ntwo\n", [["one"], ["two"]]),
    ('one\n""\n', [["one"], [""]]),
    ('a;b\n"x;y";"1,2,3"\n', [["a", "b"], ["x;y", "1,2,3"]]),
    ("a,b\r1,2\r", [["a", "b"], ["1", "2"]]),
    ("a,", [["a", ""]]),
    ("", []),
]


@pytest.mark.parametrize(("text", "rows"), CSV_CASES)
def test_csv_is_read_and_written(opened, text: str, rows: list[list[str]]) -> None:
    page = opened()
    read, written, again = page.evaluate(
        """async text => {
          const { parseCsv, writeCsv } = await import("/page/csv.js");
          const { rows, ...format } = parseCsv(text);
          const written = writeCsv(rows, format);
          return [rows, written, parseCsv(written, format.separator).rows];
        }""",
        text,
    )
    assert read == rows == again
    if rows:
        assert written.startswith("\ufeff") == text.startswith("\ufeff")
        separator = next((mark for mark in "\t;," if mark in text.split("\n")[0]), ",")
        assert list(csv.reader(io.StringIO(written.lstrip("\ufeff"), newline=""), delimiter=separator)) == rows


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("width", [400, 320])
def test_narrow_screens_do_not_scroll_sideways(opened, view: str, width: int) -> None:
    page = opened(width=width)
    tag(page, TEXT + " " + "longword" * 40)
    page.click("#accept-all")
    if view == "batch":
        page.click("#views a[href='#/batch']")
        run_batch(page, "wide.csv", b"text,b,c,d,e,f,g,h\n" + b",".join([b"goalgoalgoalgoal"] * 8))
    page.click(f"#views a[href='#/{view}']")
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_script_in_labels_and_texts_is_text(opened, service) -> None:
    id, text = f"evil {EVIL}", f"{TEXT} {EVIL}"
    with service.writer() as client:
        body = {"documents": [{"id": id, "text": text, "labels": [EVIL, "sport"]}]}
        client.post("/v1/documents", json=body).raise_for_status()
    try:
        page = opened()
        tag(page, text)
        expect(page.locator("#neighbours .neighbour").first).to_contain_text(EVIL)
        page.fill("#add-label", "onerror")
        expect(page.locator("#add-options [role=option]")).to_contain_text(EVIL)
        page.fill("#add-label", EVIL)
        page.press("#add-label", "Enter")
        expect(page.locator("#teach-labels")).to_have_text(EVIL)
        page.click("#views a[href='#/labels']")
        page.fill("#labels-query", "onerror")
        expect(page.locator("#labels-rows tr")).to_have_count(1)
        expect(page.locator("#labels-rows th")).to_have_text(EVIL)
        page.click("#labels-rows a")
        page.click("#documents-rows a")
        expect(page.locator("#document .text")).to_have_text(text)
        expect(page.locator("#document h2")).to_have_text(id)
        page.click("text=Remove …")
        expect(page.locator("#confirm-title")).to_have_text(f"Remove {id}?")
        page.click("#confirm >> text=Keep it")
        page.click("#views a[href='#/map']")
        expect(page.locator("#map-summary")).to_contain_text("documents")
        page.click("#views a[href='#/batch']")
        run_batch(page, f"{EVIL.replace('/', '')}.jsonl", json.dumps({"text": EVIL, EVIL: EVIL}).encode())
        expect(page.locator("#batch-status")).to_contain_text("Done")
        assert page.evaluate("window.ran") is None
        assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    finally:
        remove(service, id)


def test_recent_tells_of_predictions_and_the_model(opened, service) -> None:
    page = opened()
    tag(page)
    page.click("#views a[href='#/recent']")
    expect(page.locator("#recent-charts figure")).to_have_count(2)
    with service.client() as client:
        recent = client.get("/v1/recent").json()
    expect(page.locator("#recent-summary")).to_contain_text(f"{recent['total']:,} prediction")
    assert page.locator("#recent-charts .dot").count() == sum(
        one["confidence"] is not None for one in recent["predictions"]
    )
    expect(page.locator("#model-card")).to_contain_text("micro f1")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_names_and_ids(opened, view: str, scheme: str) -> None:
    page = in_view(opened(scheme=scheme), view)
    assert page.evaluate(LOW_CONTRAST) == []
    assert page.evaluate(NAMELESS) == []
    ids = page.locator("[id]").evaluate_all("elements => elements.map(element => element.id)")
    assert len(ids) == len(set(ids))
    assert page.locator("h1:visible").count() == 1


def in_view(page: Page, view: str) -> Page:
    """Show a view with something in it."""
    tag(page)
    page.click("#accept-all")
    page.click("#views a[href='#/batch']")
    run_batch(page, "a.csv", b"text\ngoal\n")
    expect(page.locator("#batch-status")).to_contain_text("Done")
    page.click(f"#views a[href='#/{view}']")
    if view == "documents":
        page.locator("#documents-rows a").first.click()
        expect(page.locator("#document")).to_be_visible()
    page.wait_for_load_state("networkidle")
    return page


LOW_CONTRAST = """() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, place) => sum + c * [0.2126, 0.7152, 0.0722][place], 0);
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour[3] !== 0) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.matches(":disabled, option")) continue;
    const [a, b] = [light(parts(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.push(`${walker.currentNode.data.trim()} ${(a + 0.05) / (b + 0.05)}`);
  }
  return poor;
}"""
NAMELESS = """() => [...document.querySelectorAll("a, button, input, select, textarea, canvas, [role=region]")]
  .filter(element => element.checkVisibility())
  .filter(element => !(element.getAttribute("aria-label") || element.labels?.length || element.textContent.trim()))
  .map(element => element.outerHTML)"""


def axe_source() -> str | None:
    """Find axe-core: a file that AXE_CORE names, or the one that a Python package brings."""
    found = [Path(os.environ["AXE_CORE"])] if "AXE_CORE" in os.environ else []
    for package in ("axe_playwright_python", "axe_core_python", "axe_selenium_python"):
        if spec := importlib.util.find_spec(package):
            found += [
                file for place in spec.submodule_search_locations or () for file in Path(place).rglob("axe.min.js")
            ]
    return found[0].read_text(encoding="utf-8") if found else None


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(opened, view: str, scheme: str) -> None:
    source = axe_source()
    if source is None:
        pytest.skip("no axe-core: install axe-playwright-python, or name its axe.min.js in AXE_CORE")
    page = in_view(opened(scheme=scheme), view)
    page.evaluate(source)
    found = page.evaluate("async () => (await axe.run()).violations")
    assert [one for one in found if one["impact"] in ("serious", "critical")] == []

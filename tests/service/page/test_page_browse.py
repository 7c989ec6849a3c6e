"""The page: labels, documents, the map, recent predictions; no stored content is executed."""

import json
from contextlib import suppress
from urllib.parse import quote

from acting import TEXT, document_count, expect, marks, playwright, remove, run_batch, tag

import denn

pytestmark = marks


EVIL = '<img src=x onerror="window.ran = true"><script>window.ran = true</script>'


def test_labels_lead_to_their_documents(opened, service) -> None:
    page = opened("#/labels")
    page.fill("#labels-query", "SPO")
    expect(page.locator("#labels-rows tr")).to_have_count(1)
    with denn.load(service.folder) as model:
        expect(page.locator("#labels-summary")).to_have_text(
            f"1 label. Threshold: {model.card.thresholds['final'].overall:.2f}."
        )
    with service.client() as client:
        total = client.get("/v1/documents", params={"label": "sport", "limit": 0}).json()["total"]
    expect(page.locator("#labels-rows td").first).to_have_text(str(total))
    page.click("#labels-rows a")
    expect(page.locator("#documents-summary")).to_contain_text(f"{total} documents")
    for row in page.locator("#documents-rows .row").all():
        assert "sport" in row.locator(".chips li").all_text_contents()


def test_an_undone_label_is_no_longer_listed(opened, service) -> None:
    page = opened("#/labels")
    expect(page.locator("#labels-summary")).to_contain_text("label")
    before = page.locator("#labels-rows a").all_text_contents()
    with service.writer() as client:
        document = {"text": "a zeppelin over the goal", "labels": ["airship"], "id": "later-1"}
        client.post("/v1/documents", json={"documents": [document]}).raise_for_status()
        number = client.get("/v1/history", params={"id": "later-1", "limit": 1}).json()["changes"][0]["number"]
        page.fill("#labels-query", "airs")
        expect(page.locator("#labels-rows th")).to_contain_text(["airship added later, threshold"])
        client.post(f"/v1/history/{number}/undo").raise_for_status()
    page.fill("#labels-query", "")
    expect(page.locator("#labels-rows a")).to_have_text(before)


def test_a_document_is_edited_removed_and_forgotten(opened, service) -> None:
    with service.writer() as client:
        client.post(
            "/v1/documents", json={"documents": [{"text": "zzyzx goal", "labels": ["sport"], "id": "odd/ id?"}]}
        )
    page = opened("#/documents")
    page.fill("#documents-text", "zzyzx goal")
    page.click("#documents-form button[type=submit]")
    expect(page.locator("#documents-rows a")).to_have_text(["odd/ id?"])
    page.click("#documents-rows a")
    expect(page.locator("#document h2")).to_have_text("odd/ id?")
    page.locator("#document .add input").fill("music")
    page.locator("#document .add input").press("Enter")
    page.get_by_role("button", name="Remove sport").click()
    page.click("text=Save labels")
    expect(page.locator("#notice")).to_contain_text("Saved")
    path = f"/v1/documents/{quote('odd/ id?', safe='')}"
    with service.client() as client:
        assert client.get(path).json()["labels"] == ["music"]
        page.click("#notice >> text=Undo")
        expect(page.locator("#notice")).to_contain_text("Restored")
        assert client.get(path).json()["labels"] == ["sport"]
        page.click("text=Remove…")
        page.click("#confirm >> text=Cancel")
        assert client.get(path).status_code == 200
        page.click("text=Remove…")
        page.click("#confirm-yes")
        expect(page.locator("#notice")).to_contain_text("Removed")
        assert client.get(path).status_code == 404
        page.click("#notice >> text=Undo")
        expect(page.locator("#documents-rows a")).to_have_text(["odd/ id?"])
        page.click("#documents-rows a")
        page.click("text=Forget…")
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


def test_a_change_of_somebody_else_is_not_offered_for_undo(opened, service) -> None:
    with service.writer() as client:
        document = {"text": "zzyzx goal", "labels": ["sport"], "id": "shared"}
        client.post("/v1/documents", json={"documents": [document]}).raise_for_status()
        try:
            page = opened("#/documents/shared")
            page.locator("#document .add input").fill("music")
            page.locator("#document .add input").press("Enter")
            client.patch("/v1/documents/shared", json={"add": ["music"]}).raise_for_status()  # the same change
            page.click("text=Save labels")
            expect(page.locator("#notice")).to_contain_text("Saved")
            expect(page.locator("#notice").get_by_role("button", name="Undo")).to_have_count(0)
            page.get_by_role("button", name="Remove sport").click()
            page.click("text=Save labels")
            expect(page.locator("#notice").get_by_role("button", name="Undo")).to_be_visible()
            page.locator("#notice").get_by_role("button", name="Undo").click()
            expect(page.locator("#notice")).to_contain_text("Restored")
            assert client.get("/v1/documents/shared").json()["labels"] == ["sport", "music"]
        finally:
            remove(service, "shared")


def test_a_document_that_was_removed_is_forgotten(opened, service) -> None:
    with service.writer() as client:
        document = {"text": "zzyzx goal", "labels": ["sport"], "id": "gone"}
        client.post("/v1/documents", json={"documents": [document]}).raise_for_status()
        client.delete("/v1/documents/gone").raise_for_status()
        page = opened("#/history", errors=(404,))
        page.locator("#history-rows").get_by_role("link", name="gone").first.click()
        expect(page.locator("#document")).to_contain_text("The datastore does not contain this document.")
        page.click("#document >> text=Forget…")
        page.click("#confirm-yes")
        expect(page.locator("#notice")).to_contain_text("Forgot gone.")
        assert client.get("/v1/history", params={"id": "gone"}).json()["changes"] == []


def test_the_document_opened_last_is_shown(opened, service) -> None:
    with service.client() as client:
        slow, quick = (one["id"] for one in client.get("/v1/documents", params={"limit": 2}).json()["documents"])
        answer = client.get(f"/v1/documents/{slow}").json()
    page = opened("#/documents")
    held = []
    page.route(f"**/v1/documents/{slow}", lambda route: held.append(route))
    page.click(f"#documents-rows a >> text={slow}")
    page.click(f"#documents-rows a >> text={quick}")
    expect(page.locator("#document h2")).to_have_text(quick)
    with suppress(playwright.Error):  # the request may have been aborted
        held[0].fulfill(json=answer)
    page.wait_for_timeout(200)
    expect(page.locator("#document h2")).to_have_text(quick)


def test_removing_a_document_leaves_the_one_opened_meanwhile(opened, service) -> None:
    with service.writer() as client:
        document = {"text": "goal", "labels": ["sport"], "id": "slowly"}
        client.post("/v1/documents", json={"documents": [document]}).raise_for_status()
        other = client.get("/v1/documents", params={"limit": 2}).json()["documents"][1]["id"]
        page = opened("#/documents/slowly")
        held = []
        page.route("**/v1/documents/slowly?*", lambda route: held.append(route))
        page.click("text=Remove…")
        page.click("#confirm-yes")
        page.click(f"#documents-rows a >> text={other}")
        expect(page.locator("#document h2")).to_have_text(other)
        held[0].continue_()
        expect(page.locator("#notice")).to_contain_text("Removed slowly.")
        expect(page.locator("#document h2")).to_have_text(other)
        assert page.evaluate("location.hash").endswith(other)
        assert client.get("/v1/documents/slowly").status_code == 404


def test_map_with_the_current_text(opened, service) -> None:
    page = opened()
    tag(page)
    before = page.evaluate("document.querySelector('#map-canvas').toDataURL()")
    page.click("#views a[href='#/map']")
    total = document_count(service)
    expect(page.locator("#map-summary")).to_contain_text(f"{total} documents")
    expect(page.locator("#map-summary")).to_contain_text("The cross is the last text you tagged")
    expect(page.locator("#map-canvas")).to_have_attribute(
        "aria-label", f"{total} documents in two dimensions, with your text"
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
    for step in range(1, 60):  # there is a document somewhere along this line
        page.mouse.move(box["x"] + box["width"] * step / 60, box["y"] + box["height"] * step / 60)
        if tip.is_visible():
            break
    shown = tip.locator("strong").text_content()
    page.mouse.down()
    page.mouse.up()
    expect(page.locator("#document h2")).to_have_text(shown)


def test_script_in_labels_and_texts_is_text(opened, service) -> None:
    id, text = f"evil {EVIL}", f"{TEXT} {EVIL}"
    with service.writer() as client:
        body = {"documents": [{"id": id, "text": text, "labels": [EVIL, "sport"], "rejected": ["<img src=y>"]}]}
        client.post("/v1/documents", json=body).raise_for_status()
    try:
        page = opened()
        tag(page, text)
        expect(page.locator("#neighbours .neighbour").first).to_contain_text(EVIL)
        expect(page.locator("#neighbours .neighbour").first.locator(".rejected")).to_have_text("<img src=y>")
        page.fill("#add-label", "onerror")
        expect(page.locator("#add-options [role=option]")).to_contain_text(EVIL)
        page.fill("#add-label", EVIL)
        page.press("#add-label", "Enter")
        expect(page.locator("#teach-labels")).to_have_text(EVIL)
        page.click("#views a[href='#/labels']")
        page.fill("#labels-query", "onerror")
        expect(page.locator("#labels-rows tr")).to_have_count(1)
        expect(page.locator("#labels-rows th a")).to_have_text(EVIL)
        page.click("#labels-rows a")
        page.click("#documents-rows a")
        expect(page.locator("#document .text")).to_have_text(text)
        expect(page.locator("#document h2")).to_have_text(id)
        page.click("text=Remove…")
        expect(page.locator("#confirm-title")).to_have_text(f"Remove {id}?")
        page.click("#confirm >> text=Cancel")
        page.click("#views a[href='#/map']")
        expect(page.locator("#map-summary")).to_contain_text("documents")
        page.click("#views a[href='#/batch']")
        run_batch(page, f"{EVIL.replace('/', '')}.jsonl", json.dumps({"text": EVIL, EVIL: EVIL}).encode())
        expect(page.locator("#batch-status")).to_contain_text("Done")
        assert page.evaluate("window.ran") is None
        assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    finally:
        remove(service, id)


def test_the_model_its_facts_and_recent_predictions(opened, service) -> None:
    page = opened()
    tag(page)
    page.click("#views a[href='#/model']")
    expect(page.locator("#recent-charts figure")).to_have_count(2)
    with service.client() as client:
        recent = client.get("/v1/recent").json()
    expect(page.locator("#recent-summary")).to_contain_text(f"{recent['total']:,} prediction")
    assert page.locator("#recent-charts .dot").count() == len(recent["predictions"])
    expect(page.locator("#recent-charts figure").first).to_contain_text("Score of the best label")
    expect(page.locator("#model-facts")).to_contain_text("micro-F1 on held-out documents")
    expect(page.locator("#model-card")).to_be_hidden()
    page.click("text=All parameters and metrics")
    expect(page.locator("#model-card")).to_contain_text("vote temperature")

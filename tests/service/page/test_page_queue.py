"""The page: the work queue, by keyboard, across a reload."""

from acting import document_count, expect, marks, remove

pytestmark = marks

TEXTS = ("the goal of the match and the team", "orbit and rocket around the planet", "a violin and a chord")


def test_queue_by_keyboard_survives_a_reload(opened, service) -> None:
    before = document_count(service)
    page = opened("#/queue")
    page.fill("#queue-texts", "\n".join([*TEXTS, TEXTS[0], ""]))
    page.locator("#queue-texts").press("Tab")
    page.keyboard.press("Enter")
    status, text, labels = (page.locator(f"#queue-{name}") for name in ("status", "text", "labels"))
    expect(status).to_have_text("0 of 3 texts done, 0 skipped.")  # equal texts count once
    expect(text).to_be_focused()
    with service.client() as client:
        ranking = client.post("/v1/queue", json={"documents": [{"text": text} for text in TEXTS]}).json()["queue"]
    order = [TEXTS[row["place"]] for row in ranking]
    expect(text).to_have_text(order[0])
    expect(labels.locator("[aria-pressed=true]")).not_to_have_count(0)
    suggested = labels.locator("[aria-pressed=true] .name").all_text_contents()
    page.keyboard.press("1")  # rejects the first one
    expect(labels.locator("button").first).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("n")
    page.keyboard.type("airship")
    page.keyboard.press("Enter")
    page.keyboard.press("Control+Enter")
    expect(status).to_have_text("1 of 3 texts done, 0 skipped.")
    with service.client() as client:
        (newest,) = client.get("/v1/documents", params={"limit": 1}).json()["documents"]
    assert newest["text"] == order[0]
    assert newest["labels"] == [*suggested[1:], "airship"] and newest["rejected"] == suggested[:1]
    expect(text).to_have_text(order[1])
    page.keyboard.press("s")
    expect(status).to_have_text("2 of 3 texts done, 1 skipped.")
    page.reload()
    expect(status).to_have_text("2 of 3 texts done, 1 skipped.")
    expect(text).to_have_text(order[2])
    page.keyboard.press("s")
    expect(page.locator("#queue-end")).to_be_focused()
    for key in ("a", "s", "Control+Enter"):  # there is nothing left to decide
        page.keyboard.press(key)
    expect(status).to_have_text("3 of 3 texts done, 2 skipped.")
    page.keyboard.press("u")
    expect(text).to_have_text(order[2])
    page.keyboard.press("u")
    expect(text).to_have_text(order[1])
    with service.writer() as client:  # somebody else changes the document
        client.patch(f"/v1/documents/{newest['id']}", json={"add": ["music"]}).raise_for_status()
    page.keyboard.press("u")
    expect(page.locator("#failure")).to_contain_text("cannot be undone")
    with service.writer() as client:
        (change,) = client.get("/v1/history", params={"id": newest["id"], "limit": 1}).json()["changes"]
        client.post(f"/v1/history/{change['number']}/undo").raise_for_status()
    page.keyboard.press("u")
    expect(text).to_have_text(order[0])
    expect(status).to_have_text("0 of 3 texts done, 0 skipped.")
    assert document_count(service) == before
    page.click("#queue-close")
    page.reload()
    expect(page.locator("#queue-start")).to_be_visible()


def test_ranking_waits_while_the_service_is_busy_and_sends_less_if_it_takes_too_long(opened) -> None:
    page = opened("#/queue", errors=(504,))
    asked = []

    def answer(route) -> None:
        asked.append(len(route.request.post_data_json["documents"]))
        if len(asked) == 1:
            route.fulfill(status=503, headers={"Retry-After": "1"}, json={"detail": "Try again later."})
        elif asked[-1] == 3:
            route.fulfill(status=504, json={"detail": "The request took longer than 60 s."})
        else:
            route.continue_()

    page.route("**/v1/queue", answer)
    page.fill("#queue-texts", "\n".join(TEXTS))
    page.click("#queue-start button[type=submit]")
    expect(page.locator("#queue-ranking")).to_have_text("The service is busy; retrying in 1 second.")
    expect(page.locator("#queue-status")).to_have_text("0 of 3 texts done, 0 skipped.")
    assert asked == [3, 3, 2, 1]
    page.click("#queue-close")


def test_ranking_can_be_cancelled(opened) -> None:
    page = opened("#/queue")
    busy = {"status": 503, "headers": {"Retry-After": "600"}, "json": {"detail": "Try again later."}}
    page.route("**/v1/queue", lambda route: route.fulfill(**busy))
    page.fill("#queue-texts", "\n".join(TEXTS))
    page.click("#queue-start button[type=submit]")
    expect(page.locator("#queue-ranking")).to_have_text("The service is busy; retrying in 600 seconds.")
    page.click("#queue-cancel")
    expect(page.locator("#queue-cancel")).to_be_hidden()
    expect(page.locator("#queue-ranking")).to_be_empty()
    expect(page.locator("#queue-texts")).to_have_value("\n".join(TEXTS))
    expect(page.locator("#failure")).to_be_empty()
    page.unroute("**/v1/queue")
    page.click("#queue-start button[type=submit]")
    expect(page.locator("#queue-status")).to_have_text("0 of 3 texts done, 0 skipped.")


def test_a_queue_is_kept_for_one_model_until_the_key_is_forgotten(opened, service) -> None:
    page = opened("#/queue")
    page.fill("#queue-texts", "\n".join(TEXTS))
    page.click("#queue-start button[type=submit]")
    expect(page.locator("#queue-text")).to_be_visible()
    names = page.evaluate("Object.keys(localStorage)")
    (name,) = [name for name in names if name.startswith("denn-queue")]
    page.evaluate('name => localStorage.setItem(name, localStorage[name].replace(/"model":"[^"]*/, \'$& 2\'))', name)
    page.reload()
    expect(page.locator("#queue-start")).to_be_visible()  # it belongs to another model
    page.fill("#queue-texts", "\n".join(TEXTS))
    page.click("#queue-start button[type=submit]")
    expect(page.locator("#queue-text")).to_be_visible()
    page.click("#open-key")
    page.click("#key-forget")
    expect(page.locator("#queue-start")).to_be_visible()
    assert name not in page.evaluate("Object.keys(localStorage)")


def test_queue_of_stored_documents_without_labels(opened, service) -> None:
    with service.writer() as client:
        document = {"text": "the goal of the match", "labels": [], "id": "blank/1"}
        client.post("/v1/documents", json={"documents": [document]}).raise_for_status()
    try:
        page = opened("#/queue")
        page.click("#queue-unlabelled")
        while page.locator("#queue-text").text_content() != document["text"]:  # the corpus has other such documents
            page.keyboard.press("s")
            page.wait_for_timeout(100)
        labels = page.locator("#queue-labels button")
        expect(labels.first).to_be_visible()
        if labels.first.get_attribute("aria-pressed") == "false":
            labels.first.click()
        name = labels.first.locator(".name").text_content()
        page.click("#queue-save")
        expect(page.locator("#notice")).to_contain_text("as blank/1")
        with service.client() as client:
            assert name in client.get("/v1/documents/blank%2F1").json()["labels"]
            rest = client.get("/v1/documents", params={"unlabelled": True}).json()["documents"]
        assert "blank/1" not in [one["id"] for one in rest]
        read_only = opened("#/queue", key=False)
        read_only.fill("#queue-texts", "goal")
        read_only.click("#queue-start button[type=submit]")
        expect(read_only.locator("#queue-why")).to_contain_text("Editing needs a key")
    finally:
        remove(service, "blank/1")

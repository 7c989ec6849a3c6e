"""The page: the history of changes, with their authors and undo."""

from acting import expect, marks, remove

pytestmark = marks


def show_all(page) -> None:
    """Show more until the oldest change is visible: other tests may have made many in the same datastore."""
    rows, more = page.locator("#history-rows tr"), page.locator("#history-more")
    while more.is_visible():
        shown = rows.count()
        more.click()
        expect(rows).not_to_have_count(shown)


def test_history_names_changes_and_authors_and_undoes_them(opened, service) -> None:
    with service.writer() as client:
        document = {"text": "a zeppelin over the goal", "labels": ["airship"], "id": "past/1"}
        client.post("/v1/documents", json={"documents": [document], "source": "desk"}).raise_for_status()
        client.patch("/v1/documents/past%2F1", json={"add": ["sport"]}).raise_for_status()
    try:
        page = opened("#/history")
        rows = page.locator("#history-rows tr")
        newest, added = rows.nth(0), rows.nth(1)
        expect(newest.locator("td").nth(1)).to_have_text("Changed the labels of past/1")
        expect(added.locator("td").nth(1)).to_have_text("Added past/1")
        expect(added.locator("td").nth(2)).to_contain_text("desk")
        show_all(page)
        expect(rows.last.locator("td").nth(2)).to_contain_text("training")
        newest.get_by_role("button", name="Undo").click()
        expect(page.locator("#notice")).to_contain_text("Undone: 1 document restored.")
        expect(rows.nth(0)).to_contain_text("Undid change")
        expect(rows.nth(1)).to_contain_text("undone")
        with service.client() as client:
            assert client.get("/v1/documents/past%2F1").json()["labels"] == ["airship"]
        rows.nth(0).get_by_role("button", name="Redo").focus()
        page.keyboard.press("Enter")  # by keyboard alone
        expect(page.locator("#notice")).to_contain_text("Redone")
        with service.client() as client:
            assert client.get("/v1/documents/past%2F1").json()["labels"] == ["airship", "sport"]
        page.evaluate("location.hash = '#/documents/past%2F1'")
        page.click("#document >> text=History")
        expect(page.locator("#history-summary")).to_have_text("4 changes of past/1, newest first.")
        page.click("#history-all")
        expect(page.locator("#history-summary")).not_to_contain_text("past/1")
        show_all(page)
        expect(rows.last).to_contain_text("training")
        read_only = opened("#/history", key=False)
        expect(read_only.locator("#history-rows tr").first).to_contain_text("past/1")
        expect(read_only.locator("#history-rows button")).to_have_count(0)
    finally:
        remove(service, "past/1")

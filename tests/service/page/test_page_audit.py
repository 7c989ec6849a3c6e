"""The page: documents whose labels look wrong, corrected or confirmed one by one, by keyboard."""

from acting import expect, marks
from inside import PATIENCE

pytestmark = marks


def test_audit_by_keyboard(opened, service) -> None:
    with service.writer() as client:
        wrong = [
            one["id"] for one in client.get("/v1/documents", params={"label": "sport", "limit": 2}).json()["documents"]
        ]
        before = {id: client.get(f"/v1/documents/{id}").json()["labels"] for id in wrong}
        for id in wrong:
            client.patch(f"/v1/documents/{id}", json={"drop": ["sport"]}).raise_for_status()
    try:
        with service.client() as reader:
            assert reader.post("/v1/audit").status_code in (401, 403)
        page = opened("#/audit")
        expect(page.locator("#audit-status")).to_have_text("No audit since the service started.")
        page.locator("#audit-begin").press("Enter")
        expect(page.locator("#audit-status")).to_contain_text("Auditing")
        item, title = page.locator("#audit-item"), page.locator("#audit-id a")
        expect(item).to_be_visible(timeout=1000 * PATIENCE)
        expect(page.locator("#audit-text")).to_be_focused()
        with service.client() as client:
            found = client.get("/v1/audit").json()
        assert found["state"] == "done" and found["pending"] == len(found["suspects"])
        assert set(wrong) <= {one["id"] for one in found["suspects"]}
        assert all(one["text"] and one["neighbours"] for one in found["suspects"])
        decided: dict[str, str] = {}
        while len(decided) < 2:  # accept one of them, reject the other, skip the rest
            id = title.text_content()
            if id not in wrong:
                page.keyboard.press("s")
            else:
                expect(page.locator("#audit-doubts")).to_contain_text("Add sport")
                decided[id] = "ar"[len(decided)]
                page.keyboard.press(decided[id])
                expect(page.locator("#notice")).to_contain_text(id)
            if len(decided) < 2:
                expect(title).not_to_have_text(id)
        accepted, rejected = decided
        with service.client() as client:
            assert "sport" in client.get(f"/v1/documents/{accepted}").json()["labels"]
            assert client.get(f"/v1/documents/{rejected}").json()["rejected"] == ["sport"]
            pending = {one["id"] for one in client.get("/v1/audit").json()["suspects"]}
            assert not pending & set(wrong)
        page.keyboard.press("u")
        expect(page.locator("#notice")).to_contain_text("Undone")
        expect(title).to_have_text(rejected)
        with service.client() as client:
            assert client.get(f"/v1/documents/{rejected}").json()["rejected"] == []
            assert rejected in {one["id"] for one in client.get("/v1/audit").json()["suspects"]}
        page.keyboard.press("1")
        expect(page.locator("#audit-doubts button").first).to_have_attribute("aria-pressed", "false")
    finally:
        with service.writer() as client:
            for id, labels in before.items():
                client.patch(f"/v1/documents/{id}", json={"labels": labels}).raise_for_status()

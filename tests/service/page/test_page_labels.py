"""The page: renaming and merging labels, and their thresholds."""

import json
import shutil

from acting import expect, marks

pytestmark = marks


def test_labels_are_renamed_and_merged(opened, serving, tiny_model, tmp_path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    with serving(folder) as running:
        page = opened("#/labels", at=running)
        rows = page.locator("#labels-rows")
        with running.client() as client:
            counts = {row["label"]: row["documents"] for row in client.get("/v1/labels").json()["labels"]}
        page.get_by_role("button", name="Edit sport").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#label-name")).to_be_focused()
        page.keyboard.type("music")
        page.keyboard.press("Enter")
        expect(page.locator("#label-failure")).to_contain_text("already a label named 'music'")
        page.fill("#label-name", "Sports & games")
        page.keyboard.press("Enter")
        expect(page.locator("#notice")).to_contain_text("Renamed sport to Sports & games.")
        expect(rows).to_contain_text("Sports & games")
        page.click("#notice >> text=Undo")
        expect(page.locator("#notice")).to_contain_text("Renamed back to sport.")
        expect(rows).not_to_contain_text("Sports & games")
        page.get_by_role("button", name="Edit sport").click()
        page.fill("#label-into", "music")
        page.click("#label-merge button")
        expect(page.locator("#confirm-text")).to_have_text(
            f"{counts['sport']} documents will get music instead of sport. You can undo this."
        )
        page.click("#confirm-yes")
        expect(page.locator("#notice")).to_contain_text(
            f"Merged sport into music: {counts['sport']} documents changed."
        )
        expect(page.get_by_role("button", name="Edit sport")).to_have_count(0)
        with running.client() as client:
            said = client.post("/v1/predict", json={"text": "the goal of the match and the team"}).json()
            assert "music" in said["labels"] and "sport" not in [row["label"] for row in said["scores"]]
            assert client.post("/v1/labels/rename", json={"label": "music", "name": "x"}).status_code in (401, 403)
        page.click("#notice >> text=Undo")
        page.click("#confirm-yes")  # many documents
        expect(page.get_by_role("button", name="Edit sport")).to_have_count(1)
        with running.client() as client:
            again = {row["label"]: row["documents"] for row in client.get("/v1/labels").json()["labels"]}
        assert again == counts
        expect(opened("#/labels", at=running, key=False).get_by_role("button", name="Edit")).to_have_count(0)


def test_labels_with_their_own_thresholds_show_them(opened, serving, tiny_model, tmp_path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    card = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
    card["thresholds"]["final"]["decides"] = "per_label"
    (folder / "bundle.json").write_text(json.dumps(card), encoding="utf-8")
    own = dict(
        zip((folder / "labels.txt").read_text().splitlines(), card["thresholds"]["final"]["per_label"], strict=True)
    )
    with serving(folder) as running:
        with running.client() as client:
            assert client.get("/v1/model").json()["decides"] == "per_label"
            found = client.post("/v1/predict", json={"text": "goal"}).json()
        assert {one["label"]: one["threshold"] for one in found["scores"]}.items() <= own.items()
        page = opened("#/labels", at=running)
        expect(page.locator("#labels-rows tr")).to_have_count(len(own))
        for name, threshold in own.items():
            expect(page.locator("#labels-rows th", has_text=name).first).to_contain_text(f"threshold {threshold:.2f}")
        expect(page.locator("#labels-summary")).not_to_contain_text("Threshold")
        page.evaluate("location.hash = '#/model'")
        expect(page.locator("#model-facts")).to_contain_text("one for each label")

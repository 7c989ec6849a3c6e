"""Labels renamed and merged over HTTP, and the audit's suspects afterwards."""

import shutil

import pytest
from inside import inside

from denn.service.audits import Audits
from denn.service.keys import Keys, new_key
from denn.service.settings import Settings

KEY, LINE = new_key("administer", "root")


@pytest.fixture
def folder(tiny_model, tmp_path):
    return shutil.copytree(tiny_model, tmp_path / "tiny")


@pytest.mark.slow
def test_labels_that_do_not_exist_and_the_number_of_a_merge(folder):
    with inside(folder, keys=Keys.parse([LINE])) as running, running.client(KEY) as client:
        for path, body in (
            ("rename", {"label": "nothing", "name": "something"}),
            ("merge", {"labels": ["nothing"], "into": "music"}),
            ("merge", {"labels": ["music"], "into": "nothing"}),
        ):
            answer = client.post(f"/v1/labels/{path}", json=body)
            assert answer.status_code == 404
            assert answer.json()["detail"] == "There is no such label. GET /v1/labels lists the labels."
        found = client.post("/v1/labels/merge", json={"labels": ["sport"], "into": "music"}).json()
        (change,) = [one for one in client.get("/v1/history").json()["changes"] if one["number"] == found["change"]]
        assert (change["action"], change["author"], change["documents"]) == ("relabel", "root", found["documents"])


def test_an_audit_does_not_suggest_labels_that_were_merged(folder):
    with inside(folder, keys=Keys.parse([LINE])) as running:
        model, audits = running.model, Audits(running.engine, Settings())
        id = model.store.ids()[0]
        (document,) = model.store.get([id])
        base = {"id": id, "labels": list(document.labels), "rejected": [], "suspicion": 1.0, "neighbours": []}
        other = next(label for label in model.labels.names if label not in ("sport", "music", *document.labels))
        doubts = [{"label": label, "score": 0.9, "parts": {}, "words": []} for label in ("sport", other)]
        audits._suspects = [{**base, "add": doubts, "drop": []}]
        assert [doubt["label"] for doubt in audits.pending(model)[0]["add"]] == ["sport", other]
        model.merge_labels(["sport"], "music")
        (document,) = model.store.get([id])
        audits._suspects[0]["labels"] = list(document.labels)
        assert [doubt["label"] for doubt in audits.pending(model)[0]["add"]] == [other]
        audits._suspects[0]["add"] = doubts[:1]
        assert audits.pending(model) == []

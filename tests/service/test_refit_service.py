"""Refits by a service: on request, after a number of changes, and their outcomes."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from inside import PATIENCE, inside

import denn
from denn.service.keys import Keys, new_key

NEW = "chess: opening"
REFIT = 180.0  # seconds; a refit has low priority, so it is slow on a busy machine
KEY, LINE = new_key("write", "alice")
WORDS = "gambit bishop knight rook pawn castling".split()


@pytest.fixture
def folder(tiny_model, tmp_path) -> Path:
    """A copy of the tiny model."""
    return Path(shutil.copytree(tiny_model, tmp_path / "private" / "model"))


@pytest.fixture
def older(folder) -> Path:
    """A model without kept validation documents, which cannot be refitted without a validation file."""
    card = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
    shutil.rmtree(folder / card.pop("validation"))
    card["digests"] = {name: digest for name, digest in card["digests"].items() if not name.startswith("validation/")}
    (folder / "bundle.json").write_text(json.dumps(card), encoding="utf-8")
    return folder


def lessons(count: int, start: int = 0) -> dict:
    """A request with documents of a new label."""
    texts = [" ".join(WORDS[(n + i) % 6] for i in range(4)) + f" {n}" for n in range(start, start + count)]
    return {"documents": [{"text": text, "labels": [NEW], "id": f"later-{text}"} for text in texts]}


def soon(seconds: float, condition) -> object:
    """Wait for a condition, and return its last value."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def at_last(condition) -> object:
    """Wait until a condition holds, and return its value."""
    found = soon(REFIT, condition)
    assert found, "it never came to that"
    return found


def status(client) -> dict:
    found = client.get("/v1/refit")
    assert found.status_code == 200, found.text
    return found.json()


def over(client) -> dict:
    """Wait until no refit is running; return the outcome of the last one."""
    return at_last(lambda: (found := status(client))["state"] != "running" and found)


def logged(running, words: str) -> list[dict]:
    """Return the log lines with this message."""
    return [line for line in map(json.loads, list(running.log)) if line["message"].startswith(words)]


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(") ")[2].split()[:2]
        except OSError:  # it ended meanwhile
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_a_refit_on_request(folder, serving):
    with serving(folder) as running, running.writer() as client:
        assert status(client) == {
            "state": "never", "stage": None, "done": None, "total": None, "unit": None, "started": None, "ended": None,
            "by": None, "sentence": None, "figures": None, "changed_documents": 0,
        }  # fmt: skip
        client.post("/v1/documents", json=lessons(30)).raise_for_status()
        assert status(client)["changed_documents"] == 30
        answers = [client.post("/v1/refit") for _ in range(2)]
        assert [one.status_code for one in answers] == [202, 409]
        assert answers[0].json()["state"] == "running" and answers[0].json()["by"] == "teach"
        assert answers[1].json()["detail"] == "A refit is already running. Try again when it is done."
        stages = set()

        def ended() -> dict | None:
            found = status(client)
            stages.add(found["stage"])
            return None if found["state"] == "running" else found

        found = at_last(ended)
        assert found["state"] == "done" and found["stage"] is None
        assert {"starting"} < stages - {None}
        assert found["sentence"].startswith("Learnt 7 labels from ") and "micro-F1" in found["sentence"]
        assert found["figures"].keys() >= {"before", "after", "standard_error", "seconds"}
        assert found["started"] <= found["ended"] and found["changed_documents"] == 0
        text = {"text": "gambit rook and a knight"}
        scores = {one["label"]: one for one in client.post("/v1/predict", json=text).json()["scores"]}
        assert scores[NEW]["parts"].keys() == {"classifier", "neighbours", "words"}  # at once
        client.patch(f"/v1/documents/{lessons(1)['documents'][0]['id']}", json={"reject": [NEW]}).raise_for_status()
        assert status(client)["changed_documents"] == 1
        assert 'denn_refits_total{outcome="done"} 1.0' in client.get("/metrics").text
        denn.refit(folder, force=True).close()  # by another process
        found = at_last(lambda: (found := status(client))["by"] is None and found)
        assert found["state"] == "done" and found["changed_documents"] == 0
    assert logged(running, "refit started")[0]["by"] == "teach"
    assert logged(running, "refit done")[0]["sentence"].startswith("Learnt 7 labels")
    assert len(logged(running, "switched to the refitted model")) == 2


def test_a_worse_refit_is_kept_away_unless_forced(folder, serving):
    with denn.load(folder) as model:
        labels = model.labels.names
        changed = sum(model.store.relabel(id, [labels[n % len(labels)]]) for n, id in enumerate(model.store.ids()))
    with serving(folder) as running, running.writer() as client:
        assert status(client)["changed_documents"] == changed > 50
        client.post("/v1/refit", json={"force": False})
        found = over(client)
        assert found["state"] == "kept" and found["sentence"].endswith("so the model was not changed.")
        assert found["figures"]["after"] < found["figures"]["before"] and found["changed_documents"] == changed > 50
        assert client.get("/v1/model").json()["refitted"] is None
        assert client.post("/v1/refit", json={"force": "yes"}).status_code == 422
        client.post("/v1/refit", json={"force": True})
        assert over(client)["state"] == "done" and client.get("/v1/model").json()["refitted"]
        text = client.get("/metrics").text
        assert 'denn_refits_total{outcome="kept"} 1.0' in text and 'denn_refits_total{outcome="done"} 1.0' in text


def test_a_refit_after_so_many_changes(folder, serving):
    with serving(folder, "--refit-every", "10") as running, running.writer() as client:
        client.post("/v1/documents", json=lessons(9)).raise_for_status()
        assert status(client)["state"] == "never"
        with denn.load(folder) as other:  # changes by another process count too
            other.add([denn.Document("gambit of a bishop", (NEW,))])
        found = at_last(lambda: (found := status(client))["state"] in ("done", "kept") and found)
        assert found["by"] == "--refit-every"
        client.post("/v1/documents", json=lessons(3, 100)).raise_for_status()
        assert not soon(6, lambda: len(logged(running, "refit started")) > 1)


def test_a_failure_is_told_and_tried_again_after_as_many_changes(older, serving):
    with serving(older, "--refit-every", "5") as running, running.writer() as client:
        for failures in (1, 2):
            client.post("/v1/documents", json=lessons(5, 100 * failures)).raise_for_status()
            at_last(lambda failures=failures: len(logged(running, "refit failed")) == failures)
            assert not soon(5, lambda failures=failures: len(logged(running, "refit started")) > failures)
        found = status(client)
        assert found["state"] == "failed" and found["figures"] is None and found["changed_documents"] == 10
        assert found["sentence"].startswith("model keeps no validation documents, and ")
        assert "private" not in found["sentence"]  # the folder that it is in
        assert 'denn_refits_total{outcome="failed"} 2.0' in client.get("/metrics").text


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_refit_ends_with_its_service(folder, serving, how):
    before = {path.name for path in folder.iterdir()}
    with serving(folder) as running, running.writer() as client:
        client.post("/v1/documents", json=lessons(30)).raise_for_status()
        assert client.post("/v1/refit").status_code == 202
        (child,) = at_last(lambda: children(running.process.pid))
        at_last(lambda: status(client)["stage"] != "starting")
        os.kill(running.process.pid, how)
        running.process.wait(PATIENCE)
        at_last(lambda: not is_alive(child))
    with denn.load(folder) as model:  # as it was
        assert model.card.refitted is None
    denn.refit(folder).close()  # this also cleans up
    assert {path.name for path in folder.iterdir()} - before == {"learnt-1"}


@pytest.mark.slow
def test_a_model_that_cannot_be_refitted(tiny_corpus, tmp_path):
    denn.train(tiny_corpus, out=tmp_path / "dummy", method="dummy").close()
    with inside(tmp_path / "dummy", keys=Keys.parse([LINE])) as running, running.client(KEY) as client:
        for found in (client.get("/v1/refit"), client.post("/v1/refit")):
            assert found.status_code == 409
            assert found.json()["detail"].startswith("Only models of the method 'denn' can be refitted, not 'dummy'")

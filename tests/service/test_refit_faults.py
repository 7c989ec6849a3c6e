"""Failing refits of a service, and how it reports them."""

import errno
import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from inside import PATIENCE, Inside, eventually, inside

from denn.build import room
from denn.bundle import read_card
from denn.errors import BundleError, ConflictError, NoRoomError, StoreError, UnavailableError
from denn.service import refits
from denn.service.child import PRINTED
from denn.service.keys import Keys, new_key
from denn.service.refit_child import kind_of
from denn.stores.address import of_model
from denn.types import Where
from denn.validation import changing, matching

KEY, LINE = new_key("write", "alice")
PRIVATE = "private"  # a folder whose name must not be revealed
AWAY = "The datastore is unavailable. Try again later."
FACTS = {
    "time": "2026-11-17T12:00:00+00:00", "seconds": 1.0, "documents": 60, "held_out": 60, "labels": 6, "change": 1,
    "metric": "micro_f1", "before": 0.5, "after": 0.6, "standard_error": 0.01,
}  # fmt: skip


@pytest.fixture
def folder(tiny_model, tmp_path) -> Path:
    """A copy of the tiny model."""
    return Path(shutil.copytree(tiny_model, tmp_path / PRIVATE / "model"))


@pytest.fixture
def child(monkeypatch):
    """Return a function that makes a service run a script instead of the refit process."""
    return lambda script: monkeypatch.setattr(refits, "CHILD", (sys.executable, "-c", script))


def says(**line: object) -> str:
    """Return a script that prints this and exits."""
    return f"print({json.dumps(line)!r})"


def over(running: Inside) -> dict:
    """Start a refit and return its outcome."""
    with running.client(KEY) as client:
        begun = client.post("/v1/refit")
        assert begun.status_code == 202, begun.text
        return eventually(lambda: (found := client.get("/v1/refit").json())["state"] != "running" and found)


def serving(folder: Path, **limits):
    return inside(folder, keys=Keys.parse([LINE]), **limits)


def run_child(folder: Path, created: str) -> tuple[dict, int]:
    """Run the refit process; return its last line of output and its exit status."""
    command = [*refits.CHILD, str(folder), "True", created, str(of_model(folder))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        said = [json.loads(line) for line in process.stdout]
        return said[-1], process.wait()


@pytest.mark.slow
def test_the_process_of_a_refit_ends_well(folder):
    said, code = run_child(folder, read_card(folder).created)
    assert said["taken"] and code == 0


@pytest.mark.slow
def test_a_model_that_is_not_the_served_one_is_not_refitted(folder):
    said, code = run_child(folder, "2020-02-02T00:00:00+00:00")
    assert said["kind"] == "shown" and "another model than the one served" in said["error"] and code == 0
    assert read_card(folder).refitted is None


def test_no_room_is_an_error_of_its_own_kind(tmp_path):
    with pytest.raises(NoRoomError) as caught, room(tmp_path, "refit"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert kind_of(caught.value) == "room"
    assert kind_of(UnavailableError("")) == kind_of(StoreError("")) == "datastore"
    assert kind_of(BundleError("")) == kind_of(OSError()) == "folder" and kind_of(MemoryError()) == "bug"


@pytest.mark.slow
def test_a_reader_is_not_told_where_the_datastore_is(folder, caplog):
    with serving(folder) as running:
        (folder / "store" / "address").write_text("two\nlines\n", encoding="utf-8")
        assert over(running)["sentence"] == AWAY
    assert PRIVATE in caplog.records[-1].facts["error"]  # which the log is


@pytest.mark.parametrize("kind", ["datastore", "room", "folder", "bug"])
def test_a_reader_is_told_no_places(folder, child, kind):
    child(says(kind=kind, error="The refit cannot write to /private: run the same command again."))
    with serving(folder) as running:
        found = over(running)
    assert found["state"] == "failed" and "private" not in found["sentence"] and "command" not in found["sentence"]


def test_a_refit_that_the_service_does_not_serve_has_failed(folder, child):
    child(says(taken=True, facts=FACTS))
    with serving(folder) as running:
        found = over(running)
    assert found["state"] == "failed" and found["figures"] is None
    assert found["sentence"].startswith("The service could not switch to the refitted model.")


def test_a_refit_that_is_served_is_done_though_its_process_was_killed(folder, child):
    child(f"""
import json, os, pathlib, signal, sys
folder = pathlib.Path(sys.argv[1])
card = json.loads((folder / "bundle.json").read_text(encoding="utf-8")) | {{"refitted": {FACTS!r}}}
(folder / "new.json").write_text(json.dumps(card), encoding="utf-8")
(folder / "new.json").replace(folder / "bundle.json")
os.kill(os.getpid(), signal.SIGKILL)""")
    with serving(folder) as running:
        found = over(running)
    assert found["state"] == "done" and found["figures"]["after"] == 0.6 and found["by"] == "alice"


@pytest.mark.parametrize(("how", "short"), [("SIGKILL", True), ("SIGABRT", False)])
def test_what_a_process_printed_is_logged_when_it_ends_early(folder, child, caplog, how, short):
    child(f"import os, signal, sys; print(10**6 * 'x' + 'the end', file=sys.stderr); sys.stderr.flush()\n"
          f"os.kill(os.getpid(), signal.{how})")  # fmt: skip
    with serving(folder) as running:
        found = over(running)
    assert found["state"] == "failed" and ("memory" in found["sentence"]) == short
    (printed,) = [line.facts["printed"] for line in caplog.records if line.message == "refit failed"]
    assert printed.endswith("xthe end\n") and len(printed) == PRINTED


def test_a_refit_waits_for_one_of_another_process(folder, child, monkeypatch):
    monkeypatch.setattr(refits, "EVERY", 0.01)
    child(says(kind="shown", error="It came to nothing."))
    with serving(folder, refit_every=1) as running, running.client(KEY) as client:
        with changing(folder):
            client.post("/v1/documents", json={"documents": [{"text": "gambit", "labels": ["chess"]}]})
            found = client.post("/v1/refit")
            assert found.status_code == 409 and PRIVATE not in found.text
            time.sleep(0.5)
            assert client.get("/v1/refit").json()["state"] == "never"
            assert running.counted("denn_refits_total") == 0
        eventually(lambda: client.get("/v1/refit").json()["state"] == "failed")


def test_a_running_refit_keeps_others_away(folder, child):
    child("import sys; sys.stdin.read()")
    with serving(folder) as running, running.client(KEY) as client:
        assert client.post("/v1/refit").status_code == 202
        with pytest.raises(ConflictError), changing(folder):
            pass
        assert client.post("/v1/refit").status_code == 409
        kept = next(iter(matching(folder, Where())))
        found = client.delete(f"/v1/documents/{kept}", params={"forget": True})
        assert found.status_code == 409 and PRIVATE not in found.text
    with changing(folder):  # after the service
        pass


def test_a_folder_that_is_gone_cannot_be_refitted(folder, child):
    child("raise SystemExit")
    with serving(folder) as running:
        folder.parent.rename(folder.parent.with_name("gone"))
        found = over(running)
    assert found["state"] == "failed" and found["sentence"].startswith("model is not a model: no such folder.")


def test_a_datastore_that_is_away_is_not_counted(folder, monkeypatch):
    def away(*_: object) -> None:
        raise UnavailableError("its server did not answer")

    with serving(folder) as running, running.client(KEY) as client:
        monkeypatch.setattr(running.model.store, "history", away)
        found = client.get("/v1/refit")
        assert found.status_code == 200 and found.json()["changed_documents"] is None
        assert client.post("/v1/refit").status_code == 503


def test_a_datastore_that_never_answers_is_not_waited_for(folder, monkeypatch):
    monkeypatch.setattr(refits, "COUNTING", 0.1)
    go_on = threading.Event()
    try:
        with serving(folder) as running, running.client(KEY) as client:
            monkeypatch.setattr(running.model.store, "history", lambda *_: go_on.wait(PATIENCE))
            assert client.get("/v1/refit").json()["changed_documents"] is None
            stopping = time.monotonic()
        assert time.monotonic() - stopping < PATIENCE / 2
    finally:
        go_on.set()

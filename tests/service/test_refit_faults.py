"""What goes wrong with refits that a service runs, and what it tells of that."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from inside import Inside, eventually, inside

import denn
from denn.service import refits
from denn.service.keys import Keys, new_key

KEY, LINE = new_key("write", "alice")
PRIVATE = "private"  # a folder whose name nobody is told
AWAY = "The datastore cannot be used just now. Try again."
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
    """A function that lets a service run a script instead of the process of a refit."""
    return lambda script: monkeypatch.setattr(refits, "CHILD", (sys.executable, "-c", script))


def says(**line: object) -> str:
    """A script that says this, and ends."""
    return f"print({json.dumps(line)!r})"


def over(running: Inside) -> dict:
    """Start a refit; return how it ended."""
    with running.client(KEY) as client:
        begun = client.post("/v1/refit")
        assert begun.status_code == 202, begun.text
        return eventually(lambda: (found := client.get("/v1/refit").json())["state"] != "running" and found)


def serving(folder: Path, **limits):
    return inside(folder, keys=Keys.parse([LINE]), **limits)


def run_child(folder: Path, **options) -> tuple[dict, int]:
    """Run the process of a refit; return the last thing that it said, and its exit status."""
    with denn.load(folder) as model:
        model.add([denn.Document(f"gambit bishop {n}", ("chess: opening",), f"later-{n}") for n in range(30)])
    command = [*refits.CHILD, str(folder), "True"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, **options) as process:
        said = [json.loads(line) for line in process.stdout]
        return said[-1], process.wait()


def test_the_process_of_a_refit_ends_well(folder):
    said, code = run_child(folder)
    assert said["taken"] and code == 0


def test_a_full_disk_is_an_error_of_its_own_kind(folder):
    few = 40_000  # bytes; what was learnt takes more
    said, code = run_child(folder, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (few, few)))
    assert said["kind"] == "room" and PRIVATE in said["error"] and code == 0


def test_a_reader_is_not_told_where_the_datastore_is(folder, caplog):
    with serving(folder) as running:
        (folder / "store" / "address").write_text("two\nlines\n", encoding="utf-8")
        assert over(running)["sentence"] == AWAY
    assert PRIVATE in caplog.records[-1].facts["error"]  # which the log is


@pytest.mark.parametrize("kind", ["datastore", "room", "folder", "fault"])
def test_a_reader_is_told_no_places(folder, child, kind):
    child(says(kind=kind, error="The refit cannot write to /private: run the same command again."))
    with serving(folder) as running:
        found = over(running)
    assert found["state"] == "failed" and "private" not in found["sentence"] and "command" not in found["sentence"]

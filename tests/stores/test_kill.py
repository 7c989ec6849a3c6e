"""Kill -9 at random moments of adding: nothing acknowledged is lost, no batch is halved, no store is broken."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
import torch
from kill_worker import BATCH, DIMENSION, batch_of

from denn.stores.embedded import EmbeddedStore

KILLS = 50


def run_and_kill(worker: subprocess.Popen[str], run: str, delay: float) -> list[str]:
    """Let a child add batches, kill it `delay` seconds after its start, and return the batches it acknowledged."""
    print(run, file=worker.stdin, flush=True)
    pid = int(worker.stdout.readline().removeprefix("started "))
    threading.Timer(delay, os.kill, (pid, signal.SIGKILL)).start()
    acknowledged = []
    while not (line := worker.stdout.readline().strip()).startswith("ended "):
        assert line.startswith("added "), f"the worker said {line!r}"
        acknowledged.append(line.removeprefix("added "))
    assert line == f"ended {-signal.SIGKILL}"
    return acknowledged


def check_batches(store: EmbeddedStore, names: list[str]) -> None:
    """Compare stored batches with what the worker meant to store."""
    for name in names:
        documents, embeddings = batch_of(name)
        ids = [document.id for document in documents]
        assert store.get(ids) == documents
        found = store.search(embeddings, 1)
        assert [nearest for (nearest,) in found.ids] == ids
        assert torch.allclose(found.similarity, torch.ones(BATCH, 1), atol=1e-5)


@pytest.mark.slow
def test_killed_fifty_times_while_adding(tmp_path):
    path = tmp_path / "store.sqlite"
    EmbeddedStore.create(path, DIMENSION).close()
    moments, acknowledged = random.Random(0), []
    command = [sys.executable, Path(__file__).with_name("kill_worker.py"), path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        for kill in range(KILLS):
            new = run_and_kill(worker, f"run {kill}", moments.uniform(0, 0.2))
            acknowledged += new
            with closing(sqlite3.connect(path)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            with EmbeddedStore.open(path) as store:
                present = {id.rpartition("/")[0] for id in store.ids()}
                assert set(acknowledged) <= present
                assert len(store) == BATCH * len(present)
                assert set(store.label_counts().values()) <= {BATCH, BATCH // 5 * len(present)}
                check_batches(store, new[-1:])
        worker.stdin.close()
    with EmbeddedStore.open(path) as store:
        check_batches(store, acknowledged)
    assert len(acknowledged) > KILLS

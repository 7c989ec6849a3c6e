"""Kill -9 at random moments of adding, removing and searching by two processes at once.

Nothing acknowledged is lost, nothing removed comes back, no batch is halved, no store is broken.
"""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import postgres_server
import pytest
import torch
from kill_worker import BATCH, DIMENSION, batch_of

from denn.stores.address import create_store, open_store
from denn.types import Datastore

KILLS = int(os.environ.get("DENN_KILLS", "40"))


@dataclass
class Told:
    """What the children said of each batch."""

    there: set[str] = field(default_factory=set)  # acknowledged, and not about to be removed
    gone: set[str] = field(default_factory=set)  # acknowledged as removed
    open: set[str] = field(default_factory=set)  # begun, and not acknowledged

    def hear(self, said: str, name: str) -> None:
        for batches in (self.there, self.gone, self.open):
            batches.discard(name)
        {"adding": self.open, "added": self.there, "removing": self.open, "removed": self.gone}[said].add(name)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it ended by itself
        os.kill(pid, signal.SIGKILL)


def run_and_kill(
    worker: subprocess.Popen[str], runs: list[str], delays: list[float], told: Told, ends: set[str]
) -> None:
    """Let children change the store, kill each `delay` seconds after its start, and note what they said."""
    print(*runs, file=worker.stdin, flush=True)
    left = dict(zip(runs, delays, strict=True))
    while left:
        run, said, what = worker.stdout.readline().split()
        if said == "started":
            threading.Timer(left[run], kill, (int(what),)).start()
        elif said == "ended":
            assert what in ends
            del left[run]
        else:
            told.hear(said, what)


def check(store: Datastore, told: Told, looked_at: set[str]) -> None:
    """Compare the store with what was said, and some batches with what was meant to be stored."""
    ids = store.ids()
    present = {id.rpartition("/")[0] for id in ids}
    assert len(ids) == BATCH * len(present), "a batch is halved"
    assert told.there <= present, f"lost: {told.there - present}"
    assert not told.gone & present, f"came back: {told.gone & present}"
    assert present <= told.there | told.open
    counts = store.label_counts()
    assert {name: counts[name] for name in present} == dict.fromkeys(present, BATCH)
    for name in looked_at & present:
        documents, embeddings = batch_of(name)
        assert store.get([document.id for document in documents]) == documents
        found = store.search(embeddings, 1)
        assert [nearest for (nearest,) in found.ids] == [document.id for document in documents]
        assert torch.allclose(found.similarity, torch.ones(BATCH, 1), atol=1e-5)


def survive(address: str, longest: float, after_each=lambda: None, strike=None, seed: int = 0) -> Told:
    """Kill children of a worker many times and check the store after each; `strike` hits the server under them.

    On a slow machine children do less before they are killed, and more of them are.
    """
    create_store(address, DIMENSION).close()
    moments, told = random.Random(seed), Told()
    command = [sys.executable, Path(__file__).with_name("kill_worker.py"), address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        for round_ in count(0, 2):
            if round_ >= KILLS and len(told.there) > KILLS / 2 and len(told.gone) > KILLS / 8:
                break
            assert round_ < 4 * KILLS, f"only {len(told.there)} adds and {len(told.gone)} removals"
            before = set(told.there)
            runs, delays = [f"{round_}a", f"{round_}b"], [moments.uniform(0, longest) for _ in range(2)]
            struck = threading.Timer(moments.uniform(0, longest), strike) if strike and round_ % 8 == 6 else None
            if struck:
                struck.start()
            # a child whose server is gone for too long may end by itself
            run_and_kill(worker, runs, delays, told, {str(-signal.SIGKILL), "1"} if struck else {str(-signal.SIGKILL)})
            if struck:
                struck.join()
            after_each()
            with open_store(address, patience=60.0) as store:
                check(store, told, set(list(told.there - before)[-2:]))
        worker.stdin.close()
    with open_store(address) as store:
        check(store, told, told.there)
    return told


@pytest.mark.slow
def test_killed_while_two_processes_change_the_file(tmp_path):
    path = tmp_path / "store.sqlite"

    def whole() -> None:
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

    assert survive(str(path), 0.4, whole).there


@pytest.mark.slow
def test_killed_while_two_processes_change_the_database(tmp_path):
    server = postgres_server.server()

    def strike() -> None:
        server.kill()
        server.start()

    assert survive(postgres_server.address_of(tmp_path / "address", fresh=True), 0.8, strike=strike).there

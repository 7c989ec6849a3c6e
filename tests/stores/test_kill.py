"""Kill -9 at random moments of adding, relabelling, removing, forgetting, vacuuming and searching by two processes.

Nothing acknowledged is lost, nothing removed or forgotten comes back, no batch is split, no store is damaged.
`make soak` kills a thousand of each kind and records what each kill interrupted.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import postgres_server
import pytest
import torch
from kill_worker import BATCH, DIMENSION, batch_of, ids_of

from denn.datastore import Datastore
from denn.errors import ConflictError
from denn.stores.address import create_store, open_store

KILLS = int(os.environ.get("DENN_KILLS", "12"))
CROWDED = 100  # maximum number of batches before a store is emptied, so that checks stay fast
DONE = {"added", "removed", "forgot", "relabelled", "vacuumed"}


@dataclass
class Told:
    """The reports of the children on each batch."""

    there: set[str] = field(default_factory=set)  # acknowledged, and not about to be removed
    gone: set[str] = field(default_factory=set)  # acknowledged as removed
    forgotten: set[str] = field(default_factory=set)  # acknowledged as forgotten
    open: set[str] = field(default_factory=set)  # begun, and not acknowledged
    relabelled: set[str] = field(default_factory=set)  # acknowledged as relabelled
    relabelling: set[str] = field(default_factory=set)  # begun, and not acknowledged
    doing: dict[str, str] = field(default_factory=dict)  # the last action begun, by run
    kills: Counter[str] = field(default_factory=Counter)  # number of kills by action

    def hear(self, run: str, said: str, name: str) -> None:
        self.doing[run] = "searching" if said in DONE else said
        if said in ("relabelling", "relabelled"):
            (self.relabelling if said == "relabelling" else self.relabelled).add(name)
        elif not said.startswith("vacuum"):
            for batches in (self.there, self.gone, self.forgotten, self.open):
                batches.discard(name)
            done = {"added": self.there, "removed": self.gone, "forgot": self.forgotten}
            done.get(said, self.open).add(name)

    def killed(self, run: str) -> None:
        self.kills[self.doing.pop(run, "opening")] += 1


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it ended before the kill
        os.kill(pid, signal.SIGKILL)


def run_and_kill(
    worker: subprocess.Popen[str], runs: list[str], delays: list[float], told: Told, ends: set[str]
) -> None:
    """Let children change the store, kill each `delay` seconds after its start, and record their reports."""
    print(*runs, file=worker.stdin, flush=True)
    left = dict(zip(runs, delays, strict=True))
    while left:
        run, said, what = worker.stdout.readline().split()
        if said == "started":
            threading.Timer(left[run], kill, (int(what),)).start()
        elif said == "ended":
            assert what in ends
            told.killed(run)
            del left[run]
        else:
            told.hear(run, said, what)


def check(store: Datastore, told: Told, looked_at: set[str]) -> None:
    """Compare the store with the reports, and some batches with their expected content."""
    ids = store.ids()
    present = {id.rpartition("/")[0] for id in ids}
    assert len(ids) == BATCH * len(present), "a batch is halved"
    assert told.there <= present, f"lost: {told.there - present}"
    assert not told.gone & present, f"came back: {told.gone & present}"
    assert not told.forgotten & present, f"were not forgotten: {told.forgotten & present}"
    assert present <= told.there | told.open
    counts = store.label_counts()
    assert {name: counts[name] for name in present} == dict.fromkeys(present, BATCH)
    for name in present:
        again = counts.get(f"again {name}", 0)
        allowed = {BATCH} if name in told.relabelled else {0, BATCH} if name in told.relabelling else {0}
        assert again in allowed, f"{name} has its second label {again} times"
    for name in looked_at & present:
        documents, embeddings = batch_of(name)
        more = (f"again {name}",) if counts.get(f"again {name}") else ()
        assert store.get([document.id for document in documents]) == [
            replace(document, labels=(*document.labels, *more)) for document in documents
        ]
        found = store.search(embeddings, 1)
        assert [nearest for (nearest,) in found.ids] == [document.id for document in documents]
        assert torch.allclose(found.similarity, torch.ones(BATCH, 1), atol=1e-5)


def check_forgotten(store: Datastore, told: Told, some: random.Random) -> None:
    """Check that a forgotten document cannot come back, even under its id."""
    for name in some.sample(sorted(told.forgotten), min(3, len(told.forgotten))):
        document = batch_of(name)[0][0]
        assert not store.history(id=document.id)
        with pytest.raises(ConflictError, match="was forgotten"):
            store.add([document], torch.ones(1, DIMENSION))


def survive(address: str, longest: float, after_each=lambda: None, strike=None, every: int = 1, seed: int = 0) -> Told:
    """Kill children of a worker many times and check the store after each; `strike` hits the server under them.

    On a slow machine children do less before they are killed, so more of them are killed.
    """
    create_store(address, DIMENSION).close()
    moments, told = random.Random(seed), Told()
    command = [sys.executable, Path(__file__).with_name("kill_worker.py"), address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout.readline() == "ready\n"  # before anything is killed
        for round_ in count():
            done = told.kills.total() >= KILLS and (not strike or told.kills["server"] >= KILLS / every)
            if done and len(told.gone) + len(told.forgotten) > KILLS / 16:
                break
            before = set(told.there)
            runs, delays = [f"{round_}a", f"{round_}b"], [moments.uniform(0, longest) for _ in range(2)]
            struck = threading.Timer(moments.uniform(0, longest), strike) if strike and round_ % every == 0 else None
            if struck:
                struck.start()
            # a child may end early if its server is gone for too long
            run_and_kill(worker, runs, delays, told, {str(-signal.SIGKILL), "1"} if struck else {str(-signal.SIGKILL)})
            if struck:
                struck.join()
                told.kills["server"] += 1
            after_each()
            with open_store(address, patience=60.0) as store:
                check(store, told, set(list(told.there - before)[-2:]))
                check_forgotten(store, told, moments)
                if len(told.there) > CROWDED:
                    store.remove([id for name in told.there for id in ids_of(name)])
                    told.gone |= told.there
                    told.there.clear()
        worker.stdin.close()
    with open_store(address) as store:
        check(store, told, told.there)
    return told


def note(kind: str, told: Told, seconds: float) -> None:
    """Write the number of kills by action, if a long run asks for it."""
    if folder := os.environ.get("DENN_SOAK"):
        from denn_bench.machine import machine

        acknowledged = {"there": len(told.there), "removed": len(told.gone), "forgotten": len(told.forgotten)}
        facts = {"kills": dict(told.kills), "batches": acknowledged | {"of": BATCH}, "lost": 0, "returned": 0}
        facts |= {"seconds": round(seconds), "machine": machine(), "date": datetime.now(UTC).date().isoformat()}
        (Path(folder) / f"kills-{kind}.json").write_text(json.dumps(facts, indent=1) + "\n")


@pytest.mark.slow
def test_killed_while_two_processes_change_the_file(tmp_path):
    path, begun = tmp_path / "store.sqlite", time.monotonic()

    def whole() -> None:
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

    told = survive(str(path), 0.4, whole)
    assert told.kills.total() >= KILLS
    note("embedded", told, time.monotonic() - begun)


@pytest.mark.slow
def test_killed_while_two_processes_change_the_database(tmp_path):
    server, begun = postgres_server.server(), time.monotonic()

    def strike() -> None:
        server.kill()
        server.start()

    address = postgres_server.address_of(tmp_path / "address", fresh=True)
    every = 1 if os.environ.get("DENN_SOAK") else 4  # rounds between two kills of the server itself
    told = survive(address, 0.8, strike=strike, every=every)
    assert told.kills.total() >= KILLS and told.kills["server"] >= KILLS / every
    note("postgres", told, time.monotonic() - begun)

"""Kill -9 during backup, restore, upgrade and its undo: what was there stays, or what is new is there; never half.

Every step is hit; `make soak` also kills at a thousand random moments of each.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from backup_worker import STEPS

from denn import upgrading
from denn.backup_checks import check, is_backup, read_manifest
from denn.backups import back_up
from denn.bundle import LOCK
from denn.progress import Silent
from denn.stores.embedded.store import EmbeddedStore
from denn.types import Document

KILLS = int(os.environ.get("DENN_KILLS", "12"))
FORMER = Path(__file__).parents[1] / "formats" / "bundle-2-store-1" / "model"


@pytest.fixture(scope="module", name="act")
def worker():
    """Start a process that acts in forks of itself; return the exit code of a fork."""
    command = [sys.executable, Path(__file__).with_name("backup_worker.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"

        def act(action: str, moment: str, one: Path, other: Path = Path(), delay: float | None = None) -> int:
            print(action, moment, one, other, sep="\t", file=process.stdin, flush=True)
            child = int(process.stdout.readline())
            if delay is not None:
                threading.Timer(delay, kill, (child,)).start()
            return int(process.stdout.readline())

        yield act
        process.stdin.close()


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it ended before the kill
        os.kill(pid, signal.SIGKILL)


def documents(count: int, begin: int = 0) -> tuple[list[Document], torch.Tensor]:
    return [Document(f"text {i} " * 40, ("l",), str(i)) for i in range(begin, begin + count)], torch.ones(count, 64)


@pytest.fixture(scope="module", name="states")
def two_states(tmp_path_factory):
    """A store of 900 documents with a backup of it when it had 600; one document was forgotten since."""
    folder = tmp_path_factory.mktemp("states")
    with EmbeddedStore.create(folder / "store.sqlite", 64) as store:
        store.add(*documents(600))
        back_up(str(folder / "store.sqlite"), folder / "backup", Silent())
        store.add(*documents(301, 600))
        store.forget(["900"])
    return folder


class Case:
    """A scene for an action, and what must hold whenever it ends."""

    def __init__(self, action: str, states: Path, folder: Path) -> None:
        self.action = action
        shutil.copytree(states, folder)
        self.one, self.other = folder / "store.sqlite", folder / "backup"
        if action in ("upgrade", "undo"):
            self.one = Path(shutil.copytree(FORMER, folder / "model"))
            if action == "undo":
                upgrading.upgrade(self.one, Silent())

    def state(self) -> str:
        """Return "old" or "new"; fail if it is neither, or damaged."""
        if self.action == "backup":
            assert not check(str(self.other), Silent()).problems
            assert not check(str(self.one), Silent()).problems
            return {600: "old", 900: "new"}[read_manifest(self.other).documents]
        if self.action == "restore":
            assert not check(str(self.one), Silent()).problems
            assert is_backup(self.other)
            with EmbeddedStore.open(self.one) as store:
                return {900: "old", 600: "new"}[len(store)]
        assert not check(str(self.one), Silent()).problems
        found = upgrading.plan(self.one).before
        former, current = (2, 1), (4, 3)
        (old, new) = (former, current) if self.action == "upgrade" else (current, former)
        # Each part is old or new; every version of denn that reads one new part reads the other old one.
        assert found.bundle in (old[0], new[0]) and found.store in (old[1], new[1])
        return "new" if (found.bundle, found.store) == new else "old"

    def finish(self, act) -> None:
        """Do it again, without a kill, and look for leftovers."""
        if self.action != "undo" or (self.one / upgrading.KEPT / upgrading.RECORD).is_file():
            assert act(self.action, "never", self.one, self.other) == 0
        assert self.state() == "new"
        kept = {upgrading.KEPT} if self.action == "upgrade" else set()
        names = {path.name for path in self.one.parent.rglob("*") if path.suffix in (".part", ".restoring")}
        assert not names
        if self.action in ("upgrade", "undo"):
            left = {path.name for path in self.one.iterdir()} - {LOCK}  # not held; the next change removes it
            assert left == {path.name for path in FORMER.iterdir()} | kept


@pytest.mark.slow
@pytest.mark.parametrize("action", STEPS)
def test_killed_at_every_step(act, states, tmp_path, action):
    states_seen = []
    for moment in (*range(len(STEPS[action])), -1):  # before each step, and after the last one
        case = Case(action, states, tmp_path / str(moment))
        assert act(action, str(moment), case.one, case.other) == -signal.SIGKILL, moment
        states_seen.append(case.state())
        case.finish(act)
    assert (states_seen[0], states_seen[-1]) == ("old", "new") and sorted(states_seen, reverse=True) == states_seen


@pytest.mark.slow
@pytest.mark.parametrize("action", ["backup", "restore", "upgrade"])
def test_killed_at_random_moments(act, states, tmp_path, action):
    chance, found, begun = random.Random(0), Counter(), time.monotonic()
    killed, longest = 0, 1.0
    while killed < (KILLS if KILLS > 12 else 2):
        case, start = Case(action, states, tmp_path / "scene"), time.monotonic()
        code = act(action, "never", case.one, case.other, delay=chance.uniform(0, longest))
        assert code in (0, -signal.SIGKILL)
        if code:
            killed += 1
            found[case.state()] += 1
        else:  # it was faster than the kill
            longest = min(longest, time.monotonic() - start)
        case.finish(act)
        shutil.rmtree(case.one.parent)
    if folder := os.environ.get("DENN_SOAK"):
        from denn_bench.machine import machine

        facts = {"after_the_kill": dict(found), "half": 0, "seed": 0, "seconds": round(time.monotonic() - begun)}
        facts |= {"machine": machine(), "date": datetime.now(UTC).date().isoformat()}
        (Path(folder) / f"kills-{action}.json").write_text(json.dumps(facts, indent=1) + "\n")

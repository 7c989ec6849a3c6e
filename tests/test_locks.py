"""Locks between processes: never two holders, and nothing left behind."""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from denn.locks import alone

# Each holder makes a file that must not exist yet and removes it: a second holder at the same time sees it.
HAMMER = """
import os, sys, time
from pathlib import Path
from denn.locks import alone

lock, held, end = Path(sys.argv[1]), sys.argv[2], time.monotonic() + float(sys.argv[3])
taken = refused = 0
while time.monotonic() < end:
    with alone(lock) as free:
        if not free:
            refused += 1
            continue
        taken += 1
        os.close(os.open(held, os.O_CREAT | os.O_EXCL))
        os.sched_yield()
        os.unlink(held)
print(taken, refused)
"""


def hammer(folder: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HAMMER, folder / "lock", folder / "held", str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_processes_that_hammer_a_lock_never_hold_it_at_once(tmp_path):
    workers = [hammer(tmp_path, float(os.environ.get("DENN_HAMMER_SECONDS", "3"))) for _ in range(6)]
    ends = [(worker.communicate(timeout=600), worker.returncode) for worker in workers]
    assert not [error for (_, error), code in ends if code]
    counts = [[int(count) for count in out.split()] for (out, _), _ in ends]
    assert sum(taken for taken, _ in counts) > 20
    assert sum(refused for _, refused in counts) > 0, "nobody ever met another"
    assert not list(tmp_path.iterdir())


def test_a_lock_is_refused_while_it_is_held_and_free_afterwards(tmp_path):
    path = tmp_path / "lock"
    with alone(path) as first:
        with alone(path) as second:
            assert first is not None and second is None
        assert path.exists(), "who did not get the lock leaves it alone"
    with alone(path) as third:
        assert third
    assert not path.exists()


def test_a_lock_ends_with_its_holder_even_if_that_is_killed(tmp_path):
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys, time; from pathlib import Path; from denn.locks import alone\n"
         "with alone(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)", path],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline()
    with alone(path) as free:
        assert not free
    holder.kill()
    holder.communicate()
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with alone(path) as free:
            if free:
                break
    assert free


def test_a_lock_in_a_folder_that_is_replaced_leaves_that_of_the_new_folder_alone(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with ExitStack() as first:
        assert first.enter_context(alone(folder / "lock"))
        folder.rename(tmp_path / "old")
        folder.mkdir()
        with alone(folder / "lock") as second:
            assert second
            first.close()
            assert (folder / "lock").exists()
            with alone(folder / "lock") as third:
                assert third is None
    assert not (folder / "lock").exists()


def test_an_error_inside_frees_the_lock(tmp_path):
    with pytest.raises(ZeroDivisionError), alone(tmp_path / "lock"):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())

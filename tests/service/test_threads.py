"""Short-lived threads."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from inside import PATIENCE, eventually

from denn.service.threads import BriefThreads

TASKS = Path("/proc/self/task")


def test_results_and_errors_come_back():
    async def scenario():
        threads = BriefThreads(2, "test")
        assert await threads.run(lambda: threading.current_thread().name) == "test_0"
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)
        return await threads.run(lambda: "still there")

    assert asyncio.run(scenario()) == "still there"


def test_no_more_at_once_than_allowed_even_when_nobody_waits():
    at_work, most, lock, go_on = 0, 0, threading.Lock(), threading.Event()

    def work() -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        go_on.wait(PATIENCE)
        with lock:
            at_work -= 1

    async def scenario():
        threads = BriefThreads(2, "test")
        gone = [asyncio.create_task(threads.run(work)) for _ in range(2)]
        while at_work < 2:
            await asyncio.sleep(0.005)
        for task in gone:
            task.cancel()
        others = [asyncio.create_task(threads.run(work)) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert at_work == 2  # the two that nothing waits for
        go_on.set()
        await asyncio.gather(*others)
        await threads.rest()

    asyncio.run(scenario())
    assert (most, at_work) == (2, 0)


def test_what_waits_for_its_turn_is_dropped_with_its_request():
    go_on, ran = threading.Event(), []

    async def scenario():
        threads = BriefThreads(1, "test")
        first = asyncio.create_task(threads.run(lambda: go_on.wait(PATIENCE)))
        await asyncio.sleep(0.02)
        second = asyncio.create_task(threads.run(lambda: ran.append("second")))
        await asyncio.sleep(0.02)
        second.cancel()
        go_on.set()
        await threads.run(lambda: ran.append("third"))
        return await first

    assert asyncio.run(scenario()) is True
    assert ran == ["third"]


def test_the_process_does_not_wait_for_work_that_hangs():
    script = """
import asyncio, time
from denn.service.threads import BriefThreads
async def main():
    threads = BriefThreads(1, "test")
    task = asyncio.create_task(threads.run(lambda: time.sleep(1000)))
    await asyncio.sleep(0.01)
    await threads.rest(0.01)
asyncio.run(main())"""
    assert subprocess.run([sys.executable, "-c", script], timeout=PATIENCE).returncode == 0


@pytest.fixture
def two_threads():
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(usual)


@pytest.mark.skipif(not TASKS.is_dir(), reason="threads of the system are counted in /proc")
def test_torchs_helpers_end_with_the_thread(two_threads):
    def tasks() -> set[str]:
        return {task.name for task in TASKS.iterdir()}

    def work() -> set[str]:
        before = tasks()
        torch.ones(1 << 20).exp()  # large enough to be split among threads
        return tasks() - before

    helpers = asyncio.run(BriefThreads(1, "test").run(work))
    assert helpers
    eventually(lambda: not helpers & tasks())

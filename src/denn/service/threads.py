"""Threads that end with their work, so that the model's keep the processor to themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class BriefThreads:
    """At most so many at once, first come, first served.

    A thread that has worked with torch keeps helpers of its own for as long as it lives. Once there are more of them
    than cores, OpenMP lets all of them sleep between two steps instead of waiting awake, and a batch takes a fifth
    longer.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._free = asyncio.Semaphore(most)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do the work in a thread; once begun it is finished, though nobody waits for it any more."""
        await self._free.acquire()
        once = ThreadPoolExecutor(1, self._name)
        done = asyncio.get_running_loop().run_in_executor(once, work)
        done.add_done_callback(lambda _: self._free.release())
        once.shutdown(wait=False)
        return await asyncio.shield(done)

    async def rest(self) -> None:
        """Wait until none is at work."""
        for _ in range(self._most):
            await self._free.acquire()
        for _ in range(self._most):
            self._free.release()

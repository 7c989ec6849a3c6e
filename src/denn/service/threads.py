"""Threads that end with their work, so that the model's keep the processor to themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
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
        found: Future[Result] = Future()
        found.set_running_or_notify_cancel()
        # The interpreter does not wait for a daemon, which may hang; who needs the end of the work waits with `rest`.
        threading.Thread(target=_do, args=(work, found), name=f"{self._name}_0", daemon=True).start()
        done = asyncio.wrap_future(found)
        done.add_done_callback(lambda _: self._free.release())
        return await asyncio.shield(done)

    async def rest(self, seconds: float | None = None) -> None:
        """Wait until none is at work, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for _ in range(self._most):
                    await self._free.acquire()
                for _ in range(self._most):
                    self._free.release()


def _do(work: Callable[[], Result], found: Future[Result]) -> None:
    try:
        found.set_result(work())
    except BaseException as error:
        found.set_exception(error)
        del work, found  # which the error's own frames hold

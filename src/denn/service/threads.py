"""Short-lived threads, which leave the cores to the model's own threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


class BriefThreads:
    """Run work in up to `most` threads at once, in order of arrival.

    A thread that has used torch keeps its own pool of OpenMP workers for as long as it lives. Once there are more
    workers than cores, OpenMP puts them all to sleep between two steps instead of letting them spin, and a batch takes
    a fifth longer.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._free = asyncio.Semaphore(most)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run work in a thread; once started it finishes, even if the caller is cancelled."""
        await self._free.acquire()
        found: Future[Result] = Future()
        found.set_running_or_notify_cancel()
        # A daemon thread that hangs does not block the interpreter's exit; use `rest` to wait for the work.
        threading.Thread(target=_do, args=(work, found), name=f"{self._name}_0", daemon=True).start()
        done = asyncio.wrap_future(found)
        done.add_done_callback(lambda _: self._free.release())
        return await asyncio.shield(done)

    async def rest(self, seconds: float | None = None) -> None:
        """Wait until no thread is running, or until the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for _ in range(self._most):
                    await self._free.acquire()
                for _ in range(self._most):
                    self._free.release()


def _do(work: Callable[[], Result], found: Future[Result]) -> None:
    try:
        found.set_result(work())
    except BaseException as error:  # whoever waits for the result gets it
        found.set_exception(error)
        del work, found  # break the reference cycle with the error's frames

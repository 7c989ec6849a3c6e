"""How the datastore is, kept at hand: whoever asks whether the service is ready must not wait for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from denn.errors import DennError
from denn.service.threads import BriefThreads

log = logging.getLogger("denn.service")

EVERY = 2.0  # seconds between two looks
LATE = 6.0  # seconds after which a datastore that has not answered counts as away


class Probe:
    """Counts the documents of a datastore again and again, in a thread of its own; one that hangs is not repeated."""

    def __init__(self, count: Callable[[], int], every: float = EVERY, late: float = LATE) -> None:
        self._count, self._every, self._late = count, every, late
        self._thread = BriefThreads(1, "denn-probe")
        self._answered = time.monotonic()  # the model was loaded just now, with its datastore
        self._failed = False
        self._task: asyncio.Task[None] | None = None
        self.documents = 0

    @property
    def well(self) -> bool:
        """Whether the datastore answered the last look, and not too long ago."""
        return not self._failed and time.monotonic() - self._answered < self._late

    def start(self) -> None:
        """Begin to look, inside a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
        await self._thread.rest(self._late)

    async def _run(self) -> None:
        while True:
            try:
                self.documents = await self._thread.run(self._count)
                self._answered, self._failed = time.monotonic(), False
            except DennError:
                self._failed = True
            except Exception:  # a fault of our own: it is told, and the next look may find the datastore well
                self._failed = True
                log.exception("a look at the datastore failed")
            await asyncio.sleep(self._every)

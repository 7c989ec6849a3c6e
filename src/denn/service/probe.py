"""Health checks of the datastore in the background, so that readiness requests need not wait for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from denn.errors import DennError
from denn.service.threads import BriefThreads

log = logging.getLogger("denn.service")

EVERY = 2.0  # seconds between two checks
LATE = 6.0  # seconds without an answer after which a datastore counts as unavailable


class Probe:
    """Count the documents of a datastore periodically in a thread; never start a count while one hangs."""

    def __init__(self, count: Callable[[], int], every: float = EVERY, late: float = LATE) -> None:
        self._count, self._every, self._late = count, every, late
        self._thread = BriefThreads(1, "denn-probe")
        self._answered = time.monotonic()  # the model and its datastore have just been loaded
        self._failed = False
        self._task: asyncio.Task[None] | None = None
        self.documents = 0

    @property
    def well(self) -> bool:
        """Whether the datastore answered the last check recently."""
        return not self._failed and time.monotonic() - self._answered < self._late

    def start(self) -> None:
        """Start checking, inside a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop checking."""
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
            except Exception:  # a bug: log it, and check again
                self._failed = True
                log.exception("the check of the datastore failed")
            await asyncio.sleep(self._every)

"""A server that still answers for a while after SIGTERM, so that a proxy can send new requests elsewhere."""

from __future__ import annotations

import logging
import math
import signal
import socket
import threading
import time
from types import FrameType

import uvicorn

log = logging.getLogger("denn.service")


class DrainingServer(uvicorn.Server):
    """uvicorn's server; the first SIGTERM only sets `draining`, and the server stops this many seconds later."""

    def __init__(self, config: uvicorn.Config, draining: threading.Event, seconds: float) -> None:
        super().__init__(config)
        self._draining, self._seconds, self._end = draining, seconds, math.inf

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start to drain on the first SIGTERM; skip the wait on any other signal."""
        if sig == signal.SIGTERM and self._seconds and not self._draining.is_set():
            self._draining.set()
        else:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Log the stop, then finish what was accepted."""
        log.info("stopping")
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop; called ten times a second."""
        if self._draining.is_set() and self._end == math.inf:
            self._end = time.monotonic() + self._seconds
            log.info("draining: no longer ready", extra={"facts": {"seconds": self._seconds}})
        if time.monotonic() >= self._end:
            super().handle_exit(signal.SIGTERM, None)  # ends the process like a SIGTERM without draining
        return await super().on_tick(counter)

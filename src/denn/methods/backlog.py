"""A queue for work that can wait: a short-lived thread works on one item at a time, newest first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from denn.errors import DennError


class Backlog:
    """Items that wait for one thread, which starts with the first item and ends with the last.

    A thread that has worked with torch keeps helper threads for as long as it lives, so no thread stays idle. It pauses
    after each item for as long as the item took, because somebody may be waiting for other work.
    """

    def __init__(self, work: Callable[[str], None], name: str) -> None:
        self._work, self._name = work, name
        self._lock = threading.Lock()
        self._waiting: dict[str, None] = {}  # an ordered set
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, items: Iterable[str]) -> None:
        """Queue items; an item that is already waiting moves to the front."""
        with self._lock:
            for item in items:
                self._waiting.pop(item, None)
                self._waiting[item] = None
            if self._waiting and self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Drop waiting items, and return when no item is being worked on."""
        with self._lock:
            thread = self._thread
            self._closed.set()
            self._waiting.clear()
        if thread is not None:
            thread.join()
        self._work = lambda _: None  # breaks the reference cycle with the owner, so that memory is freed at once

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                begun = time.monotonic()
                with suppress(DennError):  # the datastore may be unavailable; it is queued again when it is needed
                    self._work(item)
                self._closed.wait(time.monotonic() - begun)
        except BaseException:  # a bug, which Python reports; the next item starts another thread
            with self._lock:
                self._thread = None
            raise

    def _next(self) -> str | None:
        """Take the newest item; if there is none, the thread ends and the next item starts another one."""
        with self._lock:
            if not self._waiting:
                self._thread = None
                return None
            return self._waiting.popitem()[0]

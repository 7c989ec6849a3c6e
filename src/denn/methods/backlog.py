"""Work that can wait: done by one brief thread, each item once at a time, the newest first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from denn.errors import DennError


class Backlog:
    """Items that wait for one thread, which starts with the first of them and ends with the last.

    A thread that has worked with torch keeps helpers of its own for as long as it lives, so none stays without work.
    It rests after each item for as long as that took, since somebody may be waiting for other work.
    """

    def __init__(self, work: Callable[[str], None], name: str) -> None:
        self._work, self._name = work, name
        self._lock = threading.Lock()
        self._waiting: dict[str, None] = {}  # a set in the order in which they came
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, items: Iterable[str]) -> None:
        """Have the items worked on; one that waits already moves to the front."""
        with self._lock:
            for item in items:
                self._waiting.pop(item, None)
                self._waiting[item] = None
            if self._waiting and self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Drop what waits, and return when nothing is worked on."""
        with self._lock:
            thread = self._thread
            self._closed.set()
            self._waiting.clear()
        if thread is not None:
            thread.join()
        self._work = lambda _: None  # its owner holds this backlog; without the cycle, memory is freed at once

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                begun = time.monotonic()
                with suppress(DennError):  # the datastore may be away; whoever needs the item puts it in again
                    self._work(item)
                self._closed.wait(time.monotonic() - begun)
        except BaseException:  # a fault of our own, which Python reports: the next item starts another thread
            with self._lock:
                self._thread = None
            raise

    def _next(self) -> str | None:
        """Take the newest item; where there is none the thread ends, and the next item starts another."""
        with self._lock:
            if not self._waiting:
                self._thread = None
                return None
            return self._waiting.popitem()[0]

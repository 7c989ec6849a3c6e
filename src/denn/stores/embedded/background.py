"""Work in the background that can be told to stop."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

NICENESS = 10  # of building; searches beside it took twice as long without


class Stopped(Exception):
    """The store was closed, or vacuumed, during a build."""


class Work:
    """A thread that can be told to stop."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether the last work is still going on."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, task: Callable[[], None]) -> None:
        """Begin a task."""
        self._thread = threading.Thread(target=self._run, args=(task,), name="denn index", daemon=True)
        self._thread.start()

    def _run(self, task: Callable[[], None]) -> None:
        if sys.platform == "linux":  # where a thread has a niceness of its own: searches go first
            os.nice(NICENESS)
        task()

    def wait(self) -> None:
        """Return when the running task has ended."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def halt(self) -> None:
        """Have the running task end early."""
        self._stop.set()
        self.wait()
        self._stop.clear()

    def check(self) -> None:
        """Raise where the task is to end."""
        if self._stop.is_set():
            raise Stopped

"""Background work that can be stopped."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from denn.machine import lower_priority

NICENESS = 10  # of the building thread; at normal priority, concurrent searches took twice as long


class Stopped(Exception):
    """The store was closed or vacuumed during a build."""


class Work:
    """A thread that can be stopped."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether the last task is still running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, task: Callable[[], None]) -> None:
        """Start a task."""
        self._thread = threading.Thread(target=self._run, args=(task,), name="denn index", daemon=True)
        self._thread.start()

    def _run(self, task: Callable[[], None]) -> None:
        if sys.platform == "linux":  # threads have their own niceness here, so searches go first
            lower_priority(NICENESS)
        task()

    def wait(self) -> None:
        """Return when the running task has ended."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def halt(self) -> None:
        """Make the running task end early."""
        self._stop.set()
        self.wait()
        self._stop.clear()

    def check(self) -> None:
        """Raise Stopped if the task should end."""
        if self._stop.is_set():
            raise Stopped

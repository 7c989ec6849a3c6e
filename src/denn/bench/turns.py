"""When a training of a benchmark begins: wait for the turn at the accelerator, and measure how fast that is."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import IO

from denn.types import Progress


class Turns:
    """Progress that holds a lock on a file, if there is one, from the start of a training to what follows it.

    So several benchmarks at once can share an accelerator: one trains while the others write and evaluate their
    models. The system gives the lock back when the process ends, however it ends. `begin` is called with the lock held.
    """

    def __init__(self, progress: Progress, path: Path | None, begin: Callable[[], None]) -> None:
        self.progress, self.path, self.begin = progress, path, begin
        self._file: IO[str] | None = None

    def start(self, what: str, total: int | None) -> None:
        """Begin a stage, after the trainings of other processes where it is one itself."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if what == "training":
            if self.path is not None:
                self._file = self.path.open("w")
                self.progress.start("waiting for another training", None)
                fcntl.flock(self._file, fcntl.LOCK_EX)
            self.begin()
        self.progress.start(what, total)

    def advance(self, done: int, **values: object) -> None:
        """Pass it on."""
        self.progress.advance(done, **values)

    def note(self, message: str) -> None:
        """Pass it on."""
        self.progress.note(message)

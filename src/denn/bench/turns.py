"""Several benchmarks at once on one accelerator: one trains, the others write and evaluate their models."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from denn.types import Progress


class Turns:
    """Progress that holds a lock on a file from the start of a training to the start of what follows it.

    The system gives the lock back when the process ends, however it ends.
    """

    def __init__(self, progress: Progress, path: Path) -> None:
        self.progress, self.path = progress, path
        self._file: IO[str] | None = None

    def start(self, what: str, total: int | None) -> None:
        """Begin a stage, after those of other processes where it is a training."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if what == "training":
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w")
            self.progress.start("waiting for another training", None)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self.progress.start(what, total)

    def advance(self, done: int, **values: object) -> None:
        """Pass it on."""
        self.progress.advance(done, **values)

    def note(self, message: str) -> None:
        """Pass it on."""
        self.progress.note(message)

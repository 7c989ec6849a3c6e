"""Take turns at the GPU: wait before a benchmark trains, and measure the GPU's speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock

from denn.protocols import Progress
from denn.types import Stage


class Turns:
    """Progress that holds a file lock, if given, from the start of training until the next stage.

    Several benchmarks can then share a GPU: one trains or is timed while the others save and evaluate their models.
    The operating system releases the lock when the process ends, however it ends. `begin` is called with the lock
    held.
    """

    def __init__(self, progress: Progress, path: Path | None, begin: Callable[[], None]) -> None:
        self.progress, self.path, self.begin = progress, path, begin
        self.waited = 0.0  # seconds
        self._turn = ExitStack()

    def start(self, stage: Stage) -> None:
        """Start a stage; if it is training, wait for the training of other processes first."""
        self._turn.close()
        if stage.trains:
            self._turn.enter_context(self.alone())
            self.begin()
        self.progress.start(stage)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Acquire the lock."""
        if self.path is None:
            yield
            return
        self.progress.start(Stage("waiting for another run"))
        begun = time.monotonic()
        with FileLock(self.path):
            self.waited += time.monotonic() - begun
            yield

    def close(self) -> None:
        """Release the lock if it is held."""
        self._turn.close()

    def advance(self, done: int, **values: object) -> None:
        """Forward it."""
        self.progress.advance(done, **values)

    def note(self, message: str) -> None:
        """Forward it."""
        self.progress.note(message)

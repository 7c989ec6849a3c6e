"""When a training of a benchmark begins: wait for the turn at the accelerator, and measure how fast that is."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from denn.protocols import Progress
from denn.types import Stage


class Turns:
    """Progress that holds a lock on a file, if there is one, from the start of a training to what follows it.

    So several benchmarks at once can share an accelerator: one trains or is timed while the others write and evaluate
    their models. The system gives the lock back when the process ends, however it ends. `begin` is called with the
    lock held.
    """

    def __init__(self, progress: Progress, path: Path | None, begin: Callable[[], None]) -> None:
        self.progress, self.path, self.begin = progress, path, begin
        self.waited = 0.0  # seconds
        self._turn = ExitStack()

    def start(self, stage: Stage) -> None:
        """Begin a stage, after the trainings of other processes where it is one itself."""
        self._turn.close()
        if stage.trains:
            self._turn.enter_context(self.alone())
            self.begin()
        self.progress.start(stage)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for the lock and hold it."""
        if self.path is None:
            yield
            return
        with self.path.open("w") as file:
            self.progress.start(Stage("waiting for another run"))
            begun = time.monotonic()
            fcntl.flock(file, fcntl.LOCK_EX)
            self.waited += time.monotonic() - begun
            yield

    def close(self) -> None:
        """Give the lock back, if it is held."""
        self._turn.close()

    def advance(self, done: int, **values: object) -> None:
        """Pass it on."""
        self.progress.advance(done, **values)

    def note(self, message: str) -> None:
        """Pass it on."""
        self.progress.note(message)

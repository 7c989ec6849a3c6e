"""Progress on stderr: a bar on a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from denn.build import Silent
from denn.cli.show import console, span
from denn.types import Stage
from denn.wording import counted

if TYPE_CHECKING:
    import rich.progress

    from denn.protocols import Progress

log = logging.getLogger(__name__)


@contextmanager
def watching() -> Iterator[Progress]:
    """Yield a progress display that suits stderr."""
    if not log.isEnabledFor(logging.INFO):
        yield Silent()
    elif not sys.stderr.isatty():
        yield Plain()
    else:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(12),
            TaskProgressColumn(),
            TextColumn("{task.fields[pace]}"),
        )
        with Progress(*columns, console=console(stderr=True), transient=True) as display:
            yield Bar(display)


class Pace:
    """Rate and remaining time of one stage."""

    def __init__(self, stage: Stage) -> None:
        self.total, self.unit, self.begun = stage.total, stage.unit, time.monotonic()
        self.first: int | None = (
            None  # count at the first report: work done before this process does not count for the rate
        )

    def describe(self, done: int, values: dict[str, object]) -> str:
        """Return rate, loss and time left, as far as known."""
        if self.first is None:
            self.first, self.begun = done, time.monotonic()
        seconds = time.monotonic() - self.begun
        rate = (done - self.first) / seconds if seconds > 0 else 0.0
        loss, left = values.get("loss"), values.get("seconds_left")
        if left is None and self.total is not None and rate > 0:
            left = (self.total - done) / rate
        parts = [f"{rate:.0f} {self.unit}/s"] if rate > 0 else []
        parts += [f"loss {loss:.3f}"] if isinstance(loss, float) and loss == loss else []
        parts += [f"{span(left)} left"] if isinstance(left, float | int) else []
        return ", ".join(parts)


class Plain:
    """Progress as a line for each stage and each note."""

    def __init__(self) -> None:
        self.pace, self.status = Pace(Stage("")), ""

    def start(self, stage: Stage) -> None:
        """Log the start of a stage."""
        self.pace, self.status = Pace(stage), ""
        size = None if stage.total is None else counted(stage.total, stage.unit.removesuffix("s"))
        log.info(stage.what if size is None else f"{stage.what}: {size}")

    def advance(self, done: int, **values: object) -> None:
        """Remember the pace for the next note of this stage."""
        over = self.pace.total is not None and done >= self.pace.total
        self.status = "" if over else self.pace.describe(done, {**values, "loss": None})

    def note(self, message: str) -> None:
        """Log a message with the pace."""
        log.info(f"{message} ({self.status})" if self.status else message)


class Bar:
    """Progress as a bar for the current stage, with notes above it."""

    def __init__(self, display: rich.progress.Progress) -> None:
        self.display, self.pace = display, Pace(Stage(""))

    def start(self, stage: Stage) -> None:
        """Replace the bar by one for the new stage."""
        for task in self.display.task_ids:
            self.display.remove_task(task)
        self.pace = Pace(stage)
        self.task = self.display.add_task(stage.what, total=stage.total, pace="")

    def advance(self, done: int, **values: object) -> None:
        """Move the bar."""
        self.display.update(self.task, completed=done, pace=self.pace.describe(done, values))

    def note(self, message: str) -> None:
        """Print a line above the bar."""
        self.display.console.print(message)

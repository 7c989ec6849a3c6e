"""Displays of progress on stderr: a bar on a terminal, plain lines in a notebook, or nothing."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from denn.types import Stage
from denn.wording import counted, span

if TYPE_CHECKING:
    import rich.progress

    from denn.protocols import Progress

log = logging.getLogger(__name__)


@contextmanager
def displayed(progress: Progress | bool | None) -> Iterator[Progress]:
    """Yield the given display, or one that suits stderr if `progress` is True, or None in a terminal or notebook."""
    if progress is None:
        progress = on_terminal() or _in_notebook()
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield Silent()
    elif on_terminal():
        with bar() as shown:
            yield shown
    else:
        yield Plain(partial(print, file=sys.stderr, flush=True))


def on_terminal() -> bool:
    """Return whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()  # None: Python without a console on Windows


def _in_notebook() -> bool:
    """Return whether IPython runs this code; it is not imported for that."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


@contextmanager
def bar() -> Iterator[Progress]:
    """Yield a bar on stderr that disappears at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(12),
        TaskProgressColumn(),
        TextColumn("{task.fields[pace]}"),
    )
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    with Progress(*columns, console=console, transient=True) as display:
        yield Bar(display)


class Silent:
    """Progress that is not shown; notes go to the log."""

    def start(self, stage: Stage) -> None:
        """Ignore a new stage."""

    def advance(self, done: int, **values: object) -> None:
        """Ignore progress."""

    def note(self, message: str) -> None:
        """Log a line."""
        log.info(message)


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
    """Progress as a line for each stage and each note, in the log or where `say` writes it."""

    def __init__(self, say: Callable[[str], object] = log.info) -> None:
        self.say, self.pace, self.status = say, Pace(Stage("")), ""

    def start(self, stage: Stage) -> None:
        """Log the start of a stage."""
        self.pace, self.status = Pace(stage), ""
        size = None if stage.total is None else counted(stage.total, stage.unit.removesuffix("s"))
        self.say(stage.what if size is None else f"{stage.what}: {size}")

    def advance(self, done: int, **values: object) -> None:
        """Remember the pace for the next note of this stage."""
        over = self.pace.total is not None and done >= self.pace.total
        self.status = "" if over else self.pace.describe(done, {**values, "loss": None})

    def note(self, message: str) -> None:
        """Log a message with the pace."""
        self.say(f"{message} ({self.status})" if self.status else message)


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

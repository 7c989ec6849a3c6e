"""Options that several commands share, and what their values mean."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from denn.config import check_seed

LONGEST = 10**9  # seconds: 31 years


def duration(text: str) -> float:
    """Return the seconds of "90", "90s", "5m" or "1h30m"."""
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?", text)
    if not text or found is None:
        raise typer.BadParameter(f"got {text!r}, expected a time such as 90, 90s, 5m or 1h30m")
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    total = 3600 * hours + 60 * minutes + seconds
    if total > LONGEST:
        raise typer.BadParameter(f"got {text[:20]!r}, expected at most {LONGEST:,} seconds")
    return total


def finite(value: float | None) -> float | None:
    """Refuse infinity and what is not a number, which lie in every range."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"got {value}, expected a finite number")
    return value


def _seed(seed: int | None) -> int | None:
    check_seed(seed)
    return seed


def _level(level: int) -> Callable[[bool], None]:
    def choose(asked: bool) -> None:
        if asked:
            logging.getLogger("denn").setLevel(level)

    return choose


def _methods(incomplete: str) -> list[str]:
    """Complete the name of a method."""
    from denn.registry import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Say nothing but warnings and errors.",
        callback=_level(logging.WARNING),
        expose_value=False,
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Say more, and show the traceback of a fault.",
        callback=_level(logging.DEBUG),
        expose_value=False,
    ),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of a trained model.")]
Method = Annotated[
    str | None, typer.Option(help="How to learn; denn unless the recipe says otherwise.", autocompletion=_methods)
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace a model that is already in the output folder, without asking.")
]
Seed = Annotated[int | None, typer.Option(callback=_seed, help="What everything drawn by lot depends on.")]
DataDir = Annotated[
    Path | None,
    typer.Option(envvar="DENN_DATA", help="Where the known corpora lie, each in a folder of its name."),
]
TextColumn = Annotated[str, typer.Option(help="The name of the column of texts.")]
LabelsColumn = Annotated[str, typer.Option(help="The name of the column of labels.")]
IdColumn = Annotated[str, typer.Option(help="The name of the column of ids.")]
Separator = Annotated[str | None, typer.Option(help="What label strings are split at; found out unless given.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out instead of stopping.")]
MinLabels = Annotated[int, typer.Option(min=0, max=10**6, help="Give at least so many labels, the best ones.")]

"""Options that several commands share, and what their values mean."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

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


def model_folder(text: str) -> Path:
    """Return the folder of a model, which is downloaded first if a name on the hub is given."""
    from denn.hub import is_hub_name

    name, _, revision = text.partition("@")
    if Path(text).exists() or not is_hub_name(name):
        return Path(text)
    from denn.sharing import fetch

    return fetch(name, revision or None)


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


def _combiners(incomplete: str) -> list[str]:
    """Complete the name of a combiner."""
    from denn.registry import COMBINERS

    return [name for name in COMBINERS if name.startswith(incomplete)]


Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Show only warnings and errors.",
        callback=_level(logging.WARNING),
        expose_value=False,
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Show more detail, and tracebacks for errors.",
        callback=_level(logging.DEBUG),
        expose_value=False,
    ),
]
Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="Folder of a trained model, or its name on the Hugging Face hub: user/model or user/model@revision.",
        parser=model_folder,
    ),
]
Method = Annotated[
    str | None, typer.Option(help="Method to train.  [default: that of the recipe, or denn]", autocompletion=_methods)
]
Combination = Annotated[
    str | None,
    typer.Option(
        metavar="[learnt|average|confidence]",
        help="How to combine the witnesses: learnt on validation documents, their average, or the paper's confidence "
        "λ.  [default: learnt]",
        autocompletion=_combiners,
    ),
]
Optimise = Annotated[
    Literal["micro_f1", "macro_f1", "precision_at_k"] | None,
    typer.Option(
        help="Metric to choose combination and thresholds for; precision_at_k is that of the 5 best labels.  "
        "[default: micro_f1]"
    ),
]
Precision = Annotated[
    Literal["auto", "float32", "bfloat16", "int8"],
    typer.Option(
        help="Number format of the encoder. auto: the fastest here; int8 only if it loses at most 0.1 points of micro "
        "F1 on the model's validation documents, which is measured once."
    ),
]
Effort = Annotated[
    Literal["quick", "balanced", "best"] | None,
    typer.Option(
        help="quick: keep the encoder as it is; balanced: then fine-tune it, and keep the better model; best: the same "
        "with a large encoder.  [default: what suits the machine and the time]"
    ),
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace a model in the output folder without asking.")]
Seed = Annotated[int | None, typer.Option(callback=_seed, help="Random seed.")]
DataDir = Annotated[
    Path | None,
    typer.Option(envvar="DENN_DATA", help="Folder of the known corpora, one subfolder each."),
]
InputFormat = Annotated[
    Literal["lines", "csv", "tsv"] | None,
    typer.Option(
        help="Format of standard input or of a file without a known extension; lines: texts or JSON objects.  "
        "[default: csv or tsv if the first line names the text column, else lines]"
    ),
]
TextColumn = Annotated[str, typer.Option(help="Column that holds the texts.")]
LabelsColumn = Annotated[str, typer.Option(help="Column that holds the labels.")]
LabelColumns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Columns of 0 and 1, one per label, instead: 'sports,politics', 'topic_*' for all that begin so, '*' for "
        "all but text and id.",
    ),
]
IdColumn = Annotated[str, typer.Option(help="Column that holds the ids.")]
Vocabulary = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Names and descriptions of labels by their ids: CSV, TSV, JSON or SKOS (.ttl, .rdf). The corpus may use "
        "ids or names.",
    ),
]
VocabularyLanguage = Annotated[
    str | None, typer.Option(metavar="CODE", help="Language of the names in the vocabulary.  [default: en]")
]
Separator = Annotated[str | None, typer.Option(help="Label separator; detected by default.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip bad rows instead of stopping.")]
MinLabels = Annotated[int, typer.Option(min=0, max=10**6, help="Always return at least this many labels.")]

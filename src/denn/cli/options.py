"""Options that several commands share."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from denn.clock import seconds_in
from denn.config import check_seed
from denn.errors import ConfigError


def duration(text: str) -> float:
    """Convert "90", "90s", "5m" or "1h30m" to seconds."""
    try:
        return seconds_in(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error).removesuffix(".")) from error


def model_folder(text: str) -> Path:
    """Return the folder of a model; download it first if the name is on the hub."""
    from denn.hub import is_hub_name

    name, _, revision = text.partition("@")
    if Path(text).exists() or not is_hub_name(name):
        return Path(text)
    from denn.sharing import fetch

    return fetch(name, revision or None)


def confirm(what: str, unchanged: str = "Nothing was changed.", alternative: str = "") -> None:
    """Ask whether to continue; without a terminal, require --yes."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{what} {unchanged} Pass --yes to proceed{alternative}.")
    if not typer.confirm(f"{what}\nContinue?", err=True):
        raise ConfigError(unchanged)


def finite(value: float | None) -> float | None:
    """Reject infinity and NaN, which pass every range check."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
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
    str | None, typer.Option(help="Method to train.  [default: the recipe's method, or denn]", autocompletion=_methods)
]
Combination = Annotated[
    str | None,
    typer.Option(
        metavar="[learnt|average|confidence]",
        help="How to combine the witnesses: a combination learnt on held-out documents, the average, or the paper's "
        "confidence λ.  [default: learnt]",
        autocompletion=_combiners,
    ),
]
Optimise = Annotated[
    Literal["micro_f1", "macro_f1", "precision_at_k"] | None,
    typer.Option(
        help="Metric to optimise when choosing the combination and the thresholds; macro_f1 decides with a threshold "
        "for each label; precision_at_k is the precision of the 5 best labels.  [default: micro_f1]"
    ),
]
Precision = Annotated[
    Literal["auto", "float32", "bfloat16", "int8"],
    typer.Option(
        help="Numeric precision of the encoder. auto picks the fastest on this machine, but int8 only if it costs at "
        "most 0.1 points of micro-F1 on the model's validation documents (measured once)."
    ),
]
Effort = Annotated[
    Literal["quick", "balanced", "best"] | None,
    typer.Option(
        help="quick keeps the encoder frozen; balanced also fine-tunes it and keeps the better model; best does the "
        "same with a large encoder.  [default: depends on the number of documents, the machine and the time budget]"
    ),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace an existing model in the output folder without asking.")
]
Seed = Annotated[int | None, typer.Option(callback=_seed, help="Random seed; default: 0.")]
DataDir = Annotated[
    Path | None,
    typer.Option(envvar="DENN_DATA", help="Folder of the known corpora, with one subfolder each."),
]
InputFormat = Annotated[
    Literal["lines", "csv", "tsv"] | None,
    typer.Option(
        help="Format of standard input, or of a file without a known extension; lines: texts or JSON objects.  "
        "[default: csv or tsv if the first line contains the name of the text column, otherwise lines]"
    ),
]
TextColumn = Annotated[str, typer.Option(help="Column with the texts.")]
LabelsColumn = Annotated[str, typer.Option(help="Column with the labels.")]
LabelColumns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Columns of 0 and 1, one per label, instead of --labels-column: a list such as 'sports,politics', a "
        "prefix such as 'topic_*', or '*' for all except text, labels, id and rejected.",
    ),
]
IdColumn = Annotated[str, typer.Option(help="Column with the ids.")]
Vocabulary = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File with names and descriptions of label ids: CSV, TSV, JSON or SKOS (.ttl, .rdf). The corpus may use "
        "ids or names.",
    ),
]
VocabularyLanguage = Annotated[
    str | None, typer.Option(metavar="CODE", help="Language of the names in the vocabulary.  [default: en]")
]
Separator = Annotated[str | None, typer.Option(help="Label separator; detected by default.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip bad rows instead of stopping.")]
MinLabels = Annotated[int, typer.Option(min=0, max=10**6, help="Always return at least this many labels.")]

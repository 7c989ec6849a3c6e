"""What is shown to people: lines on stderr, tables on stdout; text of users is never taken for markup."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from denn.bundle import Card
    from denn.evaluation import Evaluation
    from denn.report.combination import Combination

logger = logging.getLogger("denn")
METRICS = {
    "P": "micro_precision",
    "R": "micro_recall",
    "F1": "micro_f1",
    "macro\nF1": "macro_f1",
    "supp.\nF1": "supported_macro_f1",
    "doc.\nF1": "example_f1",
    "P@1": "p_at_1",
    "P@3": "p_at_3",
    "P@5": "p_at_5",
    "empty": "empty_predictions",
}
LEGEND = (
    "All in per cent. P, R, F1: micro; macro F1: mean over all labels, supp. F1: over those that occur here; doc. F1: "
    "mean over documents; P@k: precision of the k best; empty: texts without a label. Cut: the score that makes a "
    "label; tuned on validation: {tuned}; each: one per label."
)


class Lines(logging.Handler):
    """Log records as plain lines on whatever stderr is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        warning = "warning: " if record.levelno >= logging.WARNING else ""
        typer.echo(warning + self.format(record), err=True)


def listen() -> None:
    """Show what the library and the commands log, from INFO on."""
    logger.handlers = [Lines()]
    logger.setLevel(logging.INFO)


def is_quiet() -> bool:
    """Say whether --quiet was given."""
    return logger.level >= logging.WARNING


def is_verbose() -> bool:
    """Say whether --verbose was given."""
    return logger.level <= logging.DEBUG


def complain(sentence: str) -> None:
    """Say an error."""
    typer.echo(f"denn: {sentence}", err=True)


@contextmanager
def interruptible(sentence: str) -> Iterator[None]:
    """Say how things stand when Ctrl-C is pressed; Typer then exits with 130."""
    try:
        yield
    except KeyboardInterrupt:
        complain(sentence)
        raise


def console(stderr: bool = False) -> Console:
    """Return a console that takes nothing in a text for markup."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def span(seconds: float) -> str:
    """Write seconds as 45s, 1m20s or 1h05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60:02}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02}m"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], words: Collection[int] = (0,)) -> None:
    """Print a table to stdout; the columns of words are aligned to the left, those of numbers to the right."""
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, padding=0)
    for number, header in enumerate(headers):
        shown.add_column(header, justify="left" if number in words else "right", vertical="bottom", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    console().print(shown)


def evaluation(found: Evaluation, card: Card) -> None:
    """Print all parts of the score at all thresholds, the frequency bands, and what is worth a sentence."""
    from denn.report.combination import combination_of, system_names

    rows, cuts = [], []
    for system, name in system_names(found.systems, card).items():
        thresholds = found.systems[system]
        cuts.append(f"{name} {thresholds['tuned']['threshold']:.2f}")
        for kind, metrics in thresholds.items():
            kind = {"per_label": "each"}.get(kind, kind)
            rows.append([name, kind, *(f"{100 * metrics[metric]:.1f}" for metric in METRICS.values())])
            name = ""
    table(["", "cut", *METRICS], rows, words=(0, 1))
    say = console().print
    say(LEGEND.format(tuned=", ".join(cuts)))
    table(
        ["training documents\nof a label", "labels", "of them\nhere", "micro F1", "macro F1"],
        [
            [band["name"], str(band["labels"]), str(band["supported"])]
            + [f"{100 * band[metric]:.1f}" for metric in ("micro_f1", "macro_f1")]
            for band in found.bands
            if band["labels"]
        ],
    )
    for sentence in sentences(found, combination_of(card)):
        say(sentence)


def sentences(found: Evaluation, heard: Combination | None) -> list[str]:
    """Say what the tables do not show."""
    empty = round(found.headline["empty_predictions"] * found.documents)
    said = [f"{empty} of {found.documents} documents are given no label at the tuned threshold."]
    if found.familiarity_sentence:
        said.append(found.familiarity_sentence)
    if found.unknown_labels:
        said.append(f"{found.unknown_labels} labels here are unknown to the model; each is counted as missed.")
    if heard is not None:
        said.append(heard.sentence)
        if heard.uses_lambda and found.confidence is not None:
            said.append(f"Mean λ {found.confidence:.2f}: the weight of the neighbours against the classifier's.")
    return said

"""Terminal output: messages on stderr, tables on stdout; markup in users' texts is never interpreted."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from denn.wording import counted

if TYPE_CHECKING:
    from rich.console import Console

    from denn.bundle_card import Card
    from denn.evaluation import Evaluation
    from denn.report.combination import Combination

logger = logging.getLogger("denn")
HEADLINE = {
    "micro-precision": ("micro_precision", "correct share of all predicted labels"),
    "micro-recall": ("micro_recall", "predicted share of all correct labels"),
    "micro-F1": ("micro_f1", "harmonic mean of the two"),
    "macro-precision": ("macro_precision", "mean over all labels"),
    "macro-recall": ("macro_recall", "mean over all labels"),
    "macro-F1": ("macro_f1", "mean over all labels"),
    "example-F1": ("example_f1", "mean over documents"),
    "empty": ("empty_predictions", "documents without a predicted label"),
}
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
    "All values in percent. P, R, F1: micro averages; macro-F1: mean over all labels; supp. F1: mean over the labels "
    "that occur here; doc. F1: mean over documents; P@k: precision of the k best labels; empty: texts without a label. "
    "Thresholds tuned on held-out documents: {tuned}; each: one per label."
)


class Lines(logging.Handler):
    """Write log records as plain lines to the current stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        warning = "warning: " if record.levelno >= logging.WARNING else ""
        typer.echo(warning + self.format(record), err=True)


def listen() -> None:
    """Show log messages of the library and the commands, from level INFO."""
    logger.handlers = [Lines()]
    logger.setLevel(logging.INFO)


def is_quiet() -> bool:
    """Return whether --quiet was given."""
    return logger.level >= logging.WARNING


def is_verbose() -> bool:
    """Return whether --verbose was given."""
    return logger.level <= logging.DEBUG


def complain(sentence: str) -> None:
    """Print an error message."""
    typer.echo(f"denn: {sentence}", err=True)


@contextmanager
def interruptible(sentence: str) -> Iterator[None]:
    """Print a message when Ctrl-C is pressed; Typer then exits with 130."""
    try:
        yield
    except KeyboardInterrupt:
        complain(sentence)
        raise


def console(stderr: bool = False) -> Console:
    """Return a console that does not interpret markup."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], words: Collection[int] = (0,)) -> None:
    """Print a table to stdout; `words` are the left-aligned columns, numbers are right-aligned."""
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, padding=0)
    for number, header in enumerate(headers):
        shown.add_column(header, justify="left" if number in words else "right", vertical="bottom", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    console().print(shown)


def evaluation(found: Evaluation, card: Card, compare: bool = False) -> None:
    """Print the scores of the model's own decision, F1 by label frequency, and remarks.

    `compare` adds the scores of each witness and combination at each threshold.
    """
    from denn.report.combination import combination_of

    say, headline = console().print, found.headline
    on = counted(found.documents, "document")
    say(f"{card.method} on {on}, {found.thresholds.sentence}:")
    table(
        ["", "percent", ""],
        [[name, f"{100 * headline[metric]:.1f}", f"  {note}"] for name, (metric, note) in HEADLINE.items()],
        words=(0, 2),
    )
    table(
        ["training documents\nper label", "labels", "occurring\nhere", "micro-F1", "macro-F1"],
        [
            [band["name"], str(band["labels"]), str(band["supported"])]
            + [f"{100 * band[metric]:.1f}" for metric in ("micro_f1", "macro_f1")]
            for band in found.bands
            if band["labels"]
        ],
    )
    for sentence in sentences(found, combination_of(card)):
        say(sentence)
    if compare:
        _comparison(found, card)
    else:
        what = "witnesses, combinations and thresholds" if len(found.systems) > 1 else "thresholds"
        say(f"To compare {what}, add --compare.")


def _comparison(found: Evaluation, card: Card) -> None:
    """Print the scores of each witness, each combination and the model at each threshold."""
    from denn.report.combination import system_names

    rows, cuts = [], []
    for system, name in system_names(found.systems, card).items():
        thresholds = found.systems[system]
        cuts.append(f"{name} {thresholds['tuned']['threshold']:.2f}")
        for kind, metrics in thresholds.items():
            kind = {"per_label": "each"}.get(kind, kind)
            rows.append([name, kind, *(f"{100 * metrics[metric]:.1f}" for metric in METRICS.values())])
            name = ""
    table(["", "threshold", *METRICS], rows, words=(0, 1))
    console().print(LEGEND.format(tuned=", ".join(cuts)))


def sentences(found: Evaluation, combination: Combination | None) -> list[str]:
    """Return sentences on what the tables do not show."""
    remarks = []
    if found.familiarity_sentence:
        remarks.append(found.familiarity_sentence)
    if found.unknown_labels:
        remarks.append(
            f"The model does not know {counted(found.unknown_labels, 'label')} used here, which count as missed."
        )
    if combination is not None:
        remarks.append(combination.sentence)
        if combination.uses_lambda and found.confidence is not None:
            remarks.append(f"Mean λ {found.confidence:.2f}: the weight of the neighbours relative to the classifier.")
    return remarks

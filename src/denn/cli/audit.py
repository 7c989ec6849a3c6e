"""`denn audit`: find labels that look wrong."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from denn.cli.options import Model, Quiet, Verbose
from denn.cli.sources import Reading, check_needed, read_file, with_reading
from denn.strict_json import dumps

if TYPE_CHECKING:
    from denn.analysis.audit import Doubt, Suspect
    from denn.vocabulary import Vocabulary

log = logging.getLogger(__name__)

BEGINNING = 40  # characters of each text shown in the table


@with_reading
def audit(
    model: Model,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="File of labelled documents to audit; default: the datastore."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="Number of documents to list.")] = 100,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Output file, written when complete.")] = None,
    *,
    reading: Reading,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Find documents whose labels look wrong.

    Ranks documents by suspicion and suggests labels to add or drop. No document is judged by its own labels: stored
    documents are scored by witnesses refitted on the other documents. Prints a table on a terminal, and JSON lines
    otherwise, one object per document.
    """
    from denn.cli.output import check_file, writing
    from denn.cli.progress import watching
    from denn.cli.queue import warn_uncalibrated
    from denn.cli.show import interruptible
    from denn.model import load

    if file is None:
        check_needed(reading, "FILE")
    check_file(out, "--out")
    with interruptible("interrupted"), load(model) as loaded, watching() as progress:
        warn_uncalibrated(loaded.card.corpus)
        documents = None if file is None else read_file(file, reading, "train")
        suspects, vocabulary = loaded.audit(documents, count=count, progress=progress), loaded.vocabulary
    if out is None and sys.stdout.isatty():
        show(suspects, vocabulary)
        return
    with writing(out) as written:
        for suspect in suspects:
            written.write(dumps(as_row(suspect, vocabulary), "A document", ensure_ascii=False).encode() + b"\n")


def show(suspects: Sequence[Suspect], vocabulary: Vocabulary) -> None:
    """Print a table of suspicious documents."""
    from denn.cli.show import table

    table(
        ["", "id", "add", "drop", "labels", "text"],
        (
            [
                str(suspect.rank),
                str(suspect.document.id),
                _in_words(suspect.add, vocabulary),
                _in_words(suspect.drop, vocabulary),
                ", ".join(map(vocabulary.name, suspect.document.labels)),
                " ".join(suspect.document.text[: 2 * BEGINNING].split())[:BEGINNING],
            ]
            for suspect in suspects
        ),
        words=(1, 2, 3, 4, 5),
    )


def _in_words(doubts: Sequence[Doubt], vocabulary: Vocabulary) -> str:
    return ", ".join(f"{vocabulary.name(doubt.label)} {doubt.score:.2f}" for doubt in doubts)


def as_row(suspect: Suspect, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return a suspicious document as a JSON object."""
    document = suspect.document
    doubted = (doubt.label for doubt in (*suspect.add, *suspect.drop))
    names = vocabulary.names(
        (*document.labels, *doubted, *(label for one in suspect.neighbours for label in one.labels))
    )
    return ({"names": names} if names else {}) | {
        "rank": suspect.rank,
        "id": document.id,
        "text": document.text,
        "labels": document.labels,
        "suspicion": round(suspect.suspicion, 4),
        "add": [_doubt(doubt) for doubt in suspect.add],
        "drop": [_doubt(doubt) for doubt in suspect.drop],
        "neighbours": [
            {"id": one.id, "similarity": round(one.similarity, 4), "labels": one.labels, "text": one.text}
            for one in suspect.neighbours
        ],
    }


def _doubt(doubt: Doubt) -> dict[str, Any]:
    return {
        "label": doubt.label,
        "score": round(doubt.score, 4),
        "parts": {witness: round(score, 4) for witness, score in doubt.parts.items()},
        "words": [word for word, _ in doubt.words],
    }

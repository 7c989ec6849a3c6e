"""`denn queue`: choose the texts to label next."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from denn.cli.options import IdColumn, Model, Quiet, TextColumn, Verbose
from denn.strict_json import dumps

if TYPE_CHECKING:
    from denn.analysis.queue import Queued

log = logging.getLogger(__name__)


def queue(
    model: Model,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="File of texts; - reads standard input.")],
    count: Annotated[int, typer.Option(min=1, max=10_000, help="Number of texts to list.")] = 100,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Output file, written when complete.")] = None,
    text_column: TextColumn = "text",
    id_column: IdColumn = "id",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Choose the texts to label next.

    Ranks unlabelled texts by how much the model would learn from their labels: uncertain and unfamiliar texts come
    first, and texts similar to one already listed come later. Reads the same formats as `denn predict` and writes JSON
    lines, one object per text.
    """
    from denn.cli.output import check_file, writing
    from denn.cli.show import interruptible
    from denn.data.files import iterate_texts
    from denn.model import load
    from denn.types import Document

    check_file(out, "--out")
    source = sys.stdin.buffer if file == "-" else file
    rows = iterate_texts(source, text_column=text_column, id_column=id_column)
    with interruptible("interrupted"), load(model) as loaded:
        warn_uncalibrated(loaded.card.corpus)
        ranked = loaded.queue((Document(text, id=id) for text, id in rows), count=count)
    with writing(out) as written:
        for found in ranked:
            written.write(dumps(as_row(found), "A text", ensure_ascii=False).encode() + b"\n")


def warn_uncalibrated(corpus: dict[str, Any]) -> None:
    """Warn if the scores are uncalibrated for lack of validation documents."""
    if not corpus["valid"]:
        log.warning(
            "the model was trained without validation documents, so its scores and this ranking are only approximate"
        )


def as_row(found: Queued) -> dict[str, Any]:
    """Return a ranked text as a JSON object."""
    row: dict[str, Any] = {"rank": found.rank} | ({} if found.id is None else {"id": found.id})
    row |= {"text": found.text, "uncertainty": round(found.uncertainty, 4), "nearness": round(found.nearness, 4)}
    row["labels"] = found.prediction.labels
    row["scores"] = {label: round(score, 4) for label, score in found.prediction.scores.items()}
    if names := found.prediction.vocabulary.names((*found.prediction.labels, *found.prediction.scores)):
        row["names"] = names
    return row

"""`denn predict`: texts in, JSON lines out, in order and in constant memory."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from denn.cli.options import IdColumn, MinLabels, Model, Precision, Quiet, TextColumn, Verbose, finite
from denn.errors import DataError
from denn.strict_json import dumps

if TYPE_CHECKING:
    from denn.types import Prediction

log = logging.getLogger(__name__)


def predict(
    model: Model,
    file: Annotated[str, typer.Argument(metavar="[FILE|-]", help="File of texts; - reads standard input.")] = "-",
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Add the evidence: similar documents and supporting words.")
    ] = False,
    neighbours: Annotated[int, typer.Option(min=1, max=10**4, help="Number of similar documents to show.")] = 3,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, callback=finite, help="Minimum score for a label; default: the tuned threshold."),
    ] = None,
    per_label: Annotated[bool, typer.Option("--per-label", help="Use the threshold tuned for each label.")] = False,
    min_labels: MinLabels = 0,
    precision: Precision = "auto",
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Output file, written when complete.")] = None,
    text_column: TextColumn = "text",
    id_column: IdColumn = "id",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Tag texts and show the evidence.

    Each line is a text, or a JSON object with a "text"; CSV, TSV and Parquet files are read by their extension. Writes
    one JSON object per text, on a line each, in the order of the input.
    """
    if per_label and threshold is not None:
        raise typer.BadParameter("give either --threshold or --per-label")
    from denn.cli.output import check_file, writing
    from denn.cli.show import interruptible
    from denn.data.files import iterate_texts
    from denn.int8 import use_remembered
    from denn.model import load

    check_file(output, "--output")
    if file == "-" and sys.stdin.isatty():
        log.info("Type or paste texts, one a line; end with Ctrl-D.")
    source = sys.stdin.buffer if file == "-" else file
    texts = TextsBeforeError(iterate_texts(source, text_column=text_column, id_column=id_column))
    limit = neighbours if evidence else 0
    exact = None if precision == "auto" else precision
    with interruptible("interrupted"), load(model, precision=exact) as loaded, writing(output) as out:
        if precision == "auto":
            use_remembered(loaded.method, loaded.card)
        decided = loaded.stream(texts, threshold=threshold, per_label=per_label, min_labels=min_labels, evidence=limit)
        for prediction in decided:
            row = as_row(texts.ids.popleft(), prediction, evidence)
            out.write(dumps(row, "A prediction", ensure_ascii=False).encode() + b"\n")
            if not texts.ids:  # all that was read is answered
                out.flush()
        if texts.error is not None:
            raise texts.error


class TextsBeforeError:
    """Texts up to the first bad row, which is kept until those before it are answered; ids wait for their answers."""

    def __init__(self, rows: Iterable[tuple[str, str | None]]) -> None:
        self.rows = rows
        self.ids: deque[str | None] = deque()
        self.error: DataError | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            for text, id in self.rows:
                self.ids.append(id)
                yield text
        except DataError as error:
            self.error = error


def as_row(id: str | None, prediction: Prediction, evidence: bool) -> dict[str, Any]:
    """Return what is printed of a prediction."""
    row: dict[str, Any] = {} if id is None else {"id": id}
    row["labels"] = prediction.labels
    row["scores"] = {label: round(score, 4) for label, score in prediction.scores.items()}
    row["confidence"] = None if prediction.confidence is None else round(prediction.confidence, 4)
    row["familiarity"] = None if prediction.familiarity is None else round(prediction.familiarity, 4)
    if prediction.unfamiliar:
        row["unfamiliar"] = True
    if prediction.same_text is not None:
        row["same_text"] = prediction.same_text
    row["parts"] = {
        label: {witness: round(score, 4) for witness, score in heard.items()}
        for label, heard in prediction.parts.items()
    }
    shown = (*prediction.labels, *prediction.scores, *(label for one in prediction.neighbours for label in one.labels))
    if names := prediction.vocabulary.names(shown):
        row["names"] = names
    if evidence:
        row["words"] = {label: [word for word, _ in words] for label, words in prediction.words.items()}
        row["neighbours"] = [
            {"id": n.id, "similarity": round(n.similarity, 4), "labels": n.labels, "text": n.text}
            | ({"rejected": n.rejected} if n.rejected else {})
            for n in prediction.neighbours
        ]
    return row

"""`denn predict`: tag texts, in input order and constant memory."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from denn.cli.options import IdColumn, InputFormat, MinLabels, Model, Precision, Quiet, TextColumn, Verbose, finite
from denn.errors import DataError

log = logging.getLogger(__name__)


def predict(
    model: Model,
    file: Annotated[str, typer.Argument(metavar="[FILE|-]", help="File of texts; - reads standard input.")] = "-",
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Add the evidence: similar documents and supporting words.")
    ] = False,
    neighbours: Annotated[
        int, typer.Option(min=1, max=10**4, help="Number of similar documents to show with --evidence.")
    ] = 3,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, callback=finite, help="Minimum score for a label; default: the tuned threshold."),
    ] = None,
    per_label: Annotated[
        bool, typer.Option("--per-label", help="Use a separate tuned threshold for each label.")
    ] = False,
    min_labels: MinLabels = 0,
    precision: Precision = "auto",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Output file, written when complete: a table if it ends with .csv, .tsv or .parquet, else JSON lines.",
        ),
    ] = None,
    input_format: InputFormat = None,
    text_column: TextColumn = "text",
    id_column: IdColumn = "id",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Tag texts and show the evidence.

    Each input line is a text, or a JSON object with a "text". CSV, TSV and Parquet files are recognised by their
    extension; standard input is read as CSV or TSV if its first line contains the name of the text column. Writes JSON
    lines or a table, one entry per text, in input order.
    """
    if per_label and threshold is not None:
        raise typer.BadParameter("give --threshold or --per-label, not both")
    from denn.cli.output import check_file, writing
    from denn.cli.prediction_files import check_format, prediction_writer
    from denn.cli.show import interruptible
    from denn.data.files import iterate_texts
    from denn.int8 import use_remembered
    from denn.model import load

    if " " in file and not Path(file).exists():
        raise typer.BadParameter(
            f"there is no file {file[:60]!r}. To tag a text, write: echo TEXT | denn predict {model}"
        )
    check_file(output, "--output")
    check_format(output, evidence)
    if file == "-" and sys.stdin.isatty():
        log.info("Type or paste texts, one per line; end with Ctrl-D.")
    source = sys.stdin.buffer if file == "-" else file
    rows = iterate_texts(source, text_column=text_column, id_column=id_column, format=input_format)
    texts = TextsBeforeError(rows)
    limit = neighbours if evidence else 0
    exact = None if precision == "auto" else precision
    with interruptible("interrupted"), load(model, precision=exact) as loaded, writing(output) as out:
        if precision == "auto":
            use_remembered(loaded.method, loaded.card)
        decided = loaded.stream(texts, threshold=threshold, per_label=per_label, min_labels=min_labels, evidence=limit)
        with prediction_writer(out, output, evidence, bool(loaded.vocabulary)) as write:
            for prediction in decided:
                write(*texts.waiting.popleft(), prediction)
                if not texts.waiting:  # every text read so far has its answer
                    out.flush()
        if texts.error is not None:
            raise texts.error


class TextsBeforeError:
    """Texts up to the first bad row, whose error is kept until all texts before it have been answered."""

    def __init__(self, rows: Iterable[tuple[str, str | None]]) -> None:
        self.rows = rows
        self.waiting: deque[tuple[str | None, str]] = deque()
        self.error: DataError | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            for text, id in self.rows:
                self.waiting.append((id, text))
                yield text
        except DataError as error:
            self.error = error

"""`denn predict`: tag texts, in input order and constant memory."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from denn.cli.options import IdColumn, InputFormat, MinLabels, Model, Precision, Quiet, TextColumn, Verbose, finite
from denn.cli.partitioned import Engine, PartitionRows, RayAddress, Workers, digest_of, is_pattern, write_results
from denn.errors import DataError

log = logging.getLogger(__name__)

NEIGHBOURS = 3  # shown with --evidence


def predict(
    model: Model,
    file: Annotated[
        str,
        typer.Argument(
            metavar="[FILE|-]",
            help="File of texts; - reads standard input. A pattern in quotes, such as 'folder/*.parquet', reads many "
            "files.",
        ),
    ] = "-",
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Add the evidence: similar documents and supporting words.")
    ] = False,
    neighbours: Annotated[
        int | None,
        typer.Option(min=1, max=10**4, help="Number of similar documents to show with --evidence.  [default: 3]"),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, callback=finite, help="Labels score above this; default: the model's own."),
    ] = None,
    per_label: Annotated[
        bool, typer.Option("--per-label", help="Use a separate threshold for each label, lower for rare ones.")
    ] = False,
    min_labels: MinLabels = 0,
    precision: Precision = "auto",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR",
            help="Output file, written when complete: a table if it ends with .csv, .tsv or .parquet, else JSON lines. "
            "With a pattern or --engine ray: folder for the results, one file per partition.",
        ),
    ] = None,
    output_format: Annotated[
        Literal["jsonl", "csv", "tsv", "parquet"] | None,
        typer.Option(help="Format of the results in a folder.  [default: jsonl]"),
    ] = None,
    engine: Engine = "local",
    ray_address: RayAddress = None,
    workers: Workers = None,
    partition_rows: PartitionRows = None,
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

    Many files, given as a pattern, are processed in partitions, with --engine ray on several workers or machines. Each
    partition has a file in the folder --output. Run the same command again to resume after an interruption.
    """
    if per_label and threshold is not None:
        raise typer.BadParameter("give --threshold or --per-label, not both")
    if neighbours is not None and not evidence:
        raise typer.BadParameter("--neighbours needs --evidence. Add it, or omit --neighbours")
    limit, exact = (neighbours or NEIGHBOURS) if evidence else 0, None if precision == "auto" else precision
    deciding: dict[str, Any] = {"threshold": threshold, "per_label": per_label, "min_labels": min_labels}
    if engine == "ray" or is_pattern(file):
        from denn.batch.partitions import Reading
        from denn.batch.tasks import Predict

        extension, reading = f".{output_format or 'jsonl'}", Reading(text_column, id_column, input_format)
        folder = _results_folder(file, output, extension, evidence)
        task = Predict(model.absolute(), digest_of(model), folder, reading, extension, limit, exact, deciding)
        write_results(task, file, partition_rows, engine, ray_address, workers)
        return
    from denn.cli.output import check_file, writing
    from denn.cli.show import interruptible
    from denn.data.files import iterate_texts
    from denn.int8 import use_remembered
    from denn.model import load
    from denn.prediction_files import check_format, prediction_writer

    _check_one(model, file, output_format or partition_rows or ray_address or workers)
    check_file(output, "--output")
    check_format(output, evidence)
    source = sys.stdin.buffer if file == "-" else file
    rows = iterate_texts(source, text_column=text_column, id_column=id_column, format=input_format)
    texts = TextsBeforeError(rows)
    with interruptible("interrupted"), load(model, precision=exact) as loaded, writing(output) as out:
        if exact is None:
            use_remembered(loaded.method, loaded.card)
        decided = loaded.stream(texts, evidence=limit, **deciding)
        with prediction_writer(out, output, evidence, bool(loaded.vocabulary)) as write:
            for prediction in decided:
                write(*texts.waiting.popleft(), prediction)
                if not texts.waiting:  # every text read so far has its answer
                    out.flush()
        if texts.error is not None:
            raise texts.error


def _check_one(model: Path, file: str, of_many: object) -> None:
    """Raise if options for many files are given for one, or a text instead of a file."""
    if of_many:
        raise typer.BadParameter(
            "--output-format, --partition-rows, --ray-address and --workers are for many files. Add --engine ray, or "
            "give a pattern"
        )
    if " " in file and not Path(file).exists():
        raise typer.BadParameter(
            f"there is no file {file[:60]!r}. To tag a text, write: echo TEXT | denn predict {model}"
        )
    if file == "-" and sys.stdin.isatty():
        log.info("Type or paste texts, one per line; end with Ctrl-D.")


def _results_folder(file: str, output: Path | None, extension: str, evidence: bool) -> Path:
    """Return the folder for the results of many files; raise if it or the format is unsuitable."""
    from denn.prediction_files import check_format

    if file == "-":
        raise typer.BadParameter("--engine ray reads files, not standard input. Give a file or a pattern")
    if output is None:
        raise typer.BadParameter("give a folder for the results: --output DIR")
    if evidence and extension != ".jsonl":
        raise typer.BadParameter(f"{extension} files cannot include --evidence. Use --output-format jsonl")
    check_format(Path(f"results{extension}"), evidence)
    return output.absolute()


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

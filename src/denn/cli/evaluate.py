"""`denn evaluate`: measure a model on labelled documents."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from denn.cli.options import DataDir, MinLabels, Model, Quiet, Verbose
from denn.cli.partitioned import PARTITION_ROWS, Engine, RayAddress, Workers, is_pattern
from denn.cli.sources import Reading, open_documents, read_file, with_reading
from denn.errors import ConfigError
from denn.strict_json import dumps
from denn.wording import counted

if TYPE_CHECKING:
    from denn.evaluation import Evaluation
    from denn.types import Document
    from denn.vocabulary import Vocabulary

log = logging.getLogger(__name__)


@with_reading
def evaluate(
    model: Model,
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS",
            help="File or folder of labelled documents, a pattern in quotes such as 'folder/*.parquet', or corpus name "
            "from `denn data list` (its test split).",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as one JSON object.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also show each witness and combination at each threshold.")
    ] = False,
    stored: Annotated[
        bool,
        typer.Option("--stored", help="The documents are in the datastore; exclude each one from its own evidence."),
    ] = False,
    min_labels: MinLabels = 0,
    per_label: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write counts and scores of each label to a tab-separated file.")
    ] = None,
    engine: Engine = "local",
    ray_address: RayAddress = None,
    workers: Workers = None,
    partition_rows: Annotated[
        int | None,
        typer.Option(min=1, max=10**9, help="Documents per partition for --engine ray.  [default: 10,000]"),
    ] = None,
    data_dir: DataDir = None,
    *,
    reading: Reading,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Evaluate a model on labelled documents."""
    from denn.batch.job import score
    from denn.cli import show
    from denn.cli.output import check_file
    from denn.cli.partitioned import engine as chosen
    from denn.cli.progress import watching
    from denn.model import load

    if partition_rows is not None and engine != "ray":
        raise ConfigError("--partition-rows needs --engine ray. Add it, or omit --partition-rows.")
    check_file(per_label, "--per-label")
    with show.interruptible("interrupted"), load(model) as loaded:
        documents, scores = _documents(corpus, data_dir, reading, stored), None
        log.info(f"scoring {counted(len(documents), 'document')}")
        with chosen(engine, ray_address, workers) as compute, watching() as progress:
            if engine == "ray":
                scores = score(model.absolute(), documents, stored, partition_rows or PARTITION_ROWS, compute, progress)
        found = loaded.evaluate(documents, stored=stored, min_labels=min_labels, scores=scores)
    if per_label is not None:
        _write_labels(per_label, found, loaded.vocabulary)
    if as_json:
        typer.echo(dumps(found.as_dict(), "The evaluation"))
    else:
        show.evaluation(found, loaded.card, compare)


def _documents(corpus: str, data_dir: Path | None, reading: Reading, stored: bool) -> list[Document]:
    """Read a source, or the files that a pattern matches.

    Stored documents without ids have those of training, train-1 and so on, which identify rows of a single file only.
    """
    from denn.batch.partitions import find

    sources = [str(file) for file in find(corpus).values()] if is_pattern(corpus) else [corpus]
    if not stored or len(sources) == 1:
        part = "train" if stored else "document"
        return [document for source in sources for document in open_documents(source, data_dir, reading, part)]
    documents: list[Document] = []
    for source in sources:
        read = read_file(source, reading, part=None)
        if any(document.id is None for document in read):
            raise ConfigError(
                f"{source} has documents without ids. With --stored, documents of several files need ids to be found "
                "in the datastore. Evaluate the file of the training documents alone, or add ids."
            )
        documents += read
    return documents


def _write_labels(path: Path, found: Evaluation, vocabulary: Vocabulary) -> None:
    """Write a header and one line per label, with its name if the model has a vocabulary."""
    from denn.cli.output import writing
    from denn.data.spreadsheets import write_table

    columns = ["label", *(["name"] if vocabulary else []), *vars(found.table)]
    per_label = (row | {"name": vocabulary.name(row["label"])} for row in found.as_dict()["per_label"])
    rows = ([row[column] for column in columns] for row in per_label)
    with writing(path) as file:
        file.write(write_table([columns, *rows], "\t"))

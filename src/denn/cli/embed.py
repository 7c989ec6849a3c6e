"""`denn embed`: write the embeddings of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from denn.cli.options import IdColumn, InputFormat, Model, Quiet, TextColumn, Verbose
from denn.cli.partitioned import Engine, PartitionRows, RayAddress, Workers, digest_of, write_results


def embed(
    model: Model,
    files: Annotated[
        str, typer.Argument(metavar="FILES", help="File of texts, or a pattern in quotes such as 'folder/*.parquet'.")
    ],
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the results, one Parquet file per partition.")
    ],
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
    """Embed texts with the encoder of a model.

    Reads the same formats as `denn predict` and writes Parquet files with the columns id and embedding, in input order.
    Run the same command again to resume after an interruption.
    """
    from denn.batch.partitions import Reading
    from denn.batch.tasks import Embed
    from denn.data.compressed import arrow

    arrow("Writing embeddings")
    reading = Reading(text_column, id_column, input_format)
    task = Embed(model.absolute(), digest_of(model), output.absolute(), reading)
    write_results(task, files, partition_rows, engine, ray_address, workers)

"""Options and steps of commands that process files in partitions."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from denn.errors import ConfigError
from denn.wording import counted, span

if TYPE_CHECKING:
    from denn.batch.engines import Engine as Runs
    from denn.batch.tasks import WritingTask

log = logging.getLogger(__name__)

Engine = Annotated[
    Literal["local", "ray"],
    typer.Option(
        help="Where to compute: in this process, or on the workers of a Ray cluster, each with its own model."
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Address of a Ray cluster for --engine ray.  [default: RAY_ADDRESS, or a cluster on this machine]",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, max=10_000, help="Number of workers for --engine ray.  [default: one per GPU, or per 4 CPUs]"),
]
PartitionRows = Annotated[
    int | None, typer.Option(min=1, max=10**9, help="Rows per partition of a Parquet file.  [default: 10,000]")
]
PARTITION_ROWS = 10_000


def is_pattern(file: str) -> bool:
    """Return whether a name has wildcards that match files; a text with a question mark does not."""
    if not has_magic(file) or Path(file).exists():
        return False
    from denn.batch.partitions import matching

    try:
        return bool(matching(file))
    except ValueError:  # not a pattern, such as a text with **
        return False


def digest_of(model: Path) -> str:
    """Check a model's files and return what identifies it."""
    from denn.batch.tasks import model_digest
    from denn.bundle import read

    return model_digest(read(model)[0])


def engine(kind: str, ray_address: str | None, workers: int | None) -> AbstractContextManager[Runs]:
    """Return the engine to compute with, not yet started; raise if it is not available."""
    from denn.batch.engines import in_process

    if kind == "ray":
        from denn.batch.on_ray import connected, import_ray

        import_ray()
        return connected(ray_address, workers)
    if ray_address is not None or workers is not None:
        raise ConfigError("--ray-address and --workers need --engine ray.")
    return nullcontext(in_process)


def write_results(
    task: WritingTask,
    pattern: str,
    rows: int | None,
    kind: str,
    ray_address: str | None,
    workers: int | None,
) -> None:
    """Run a task on the partitions of files, and report what was done."""
    from denn.batch.job import run
    from denn.batch.partitions import find, plan
    from denn.cli.output import check_folder
    from denn.cli.progress import watching
    from denn.cli.show import interruptible

    check_folder(task.folder, "--output")
    compute, rows = engine(kind, ray_address, workers), rows or PARTITION_ROWS
    files = {name: file for name, file in find(pattern).items() if not file.is_relative_to(task.folder)}
    partitions = plan(files, task.reading, rows)
    message = "interrupted; run the same command again to resume"
    with interruptible(message), watching() as progress:
        found = run(task, partitions, rows, compute, progress)
    skipped = f", {found.skipped:,} of them already finished" if found.skipped else ""
    speed = f" at {found.texts / found.seconds:,.0f} texts/s" if found.seconds else ""
    log.info(
        f"{counted(found.partitions, 'partition')}{skipped}; {counted(found.texts, 'text')} in {span(found.seconds)}"
        f"{speed}. The results are in {task.folder}."
    )

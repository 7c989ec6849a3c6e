"""A job over many partitions: every result is written once, and finished ones are skipped when it runs again."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from denn.batch.engines import Done, Engine
from denn.batch.partitions import Partition, state_of
from denn.batch.tasks import PART, UNFINISHED, Score, Texts, WritingTask, result, written_once
from denn.errors import BatchError, ConfigError
from denn.locks import alone
from denn.protocols import Progress
from denn.types import Document, Stage
from denn.untrusted import MOST_LARGE_JSON, read_object
from denn.wording import counted

if TYPE_CHECKING:
    from denn.prediction_types import Scores

log = logging.getLogger(__name__)

JOB = "job.json"  # settings and inputs of the results in a folder
FORMAT = 1
NOTE_EVERY = 10.0  # seconds between lines about progress
KEPT = " The results of the others are kept; run the same command again to repeat only those that failed."


class Input(BaseModel):
    """A file that was read: its state then, and the names of its results."""

    state: tuple[int, int]
    results: list[str] = []


INPUTS = TypeAdapter(dict[str, Input])


@dataclass(frozen=True)
class Summary:
    """What a job did."""

    partitions: int
    skipped: int  # partitions that were finished before
    texts: int  # in the partitions of this run
    seconds: float


def run(
    task: WritingTask,
    partitions: Sequence[Partition],
    rows: int,
    opening: AbstractContextManager[Engine],
    progress: Progress,
) -> Summary:
    """Process the partitions whose results are missing; raise a BatchError if some fail.

    `rows` is the number of rows per partition, which a second run must not change. `opening` starts the engine, unless
    all results exist.
    """
    task.folder.mkdir(parents=True, exist_ok=True)
    with alone(task.folder / ".lock") as held:
        if held is None:
            raise ConfigError(f"Another process is writing to {task.folder}. Wait for it, or give another --output.")
        _remember(task, partitions, rows)
        _clean(task.folder)
        waiting = [partition for partition in partitions if not result(task, partition).exists()]
        begun, texts = time.monotonic(), 0
        if waiting:
            try:
                with opening as engine:
                    texts = sum(done.count for done in _followed(task, waiting, engine, progress, KEPT))
            finally:
                _clean(task.folder)
    return Summary(len(partitions), len(partitions) - len(waiting), texts, time.monotonic() - begun)


def score(
    model: Path, documents: Sequence[Document], stored: bool, rows: int, engine: Engine, progress: Progress
) -> Scores:
    """Score documents for an evaluation, this many at a time; see `Model.scores`."""
    from denn.evaluation import concatenate

    parts = []
    for start in range(0, len(documents), rows):
        some = documents[start : start + rows]
        own = [document.id for document in some] if stored else None
        parts.append(Texts(f"documents from {start + 1:,}", [document.text for document in some], own))
    done = _followed(Score(model), parts, engine, progress)
    return concatenate([one.result for one in sorted(done, key=lambda one: one.number)])


def _followed(
    task: Any, partitions: Sequence[Any], engine: Engine, progress: Progress, afterwards: str = ""
) -> Iterator[Done]:
    """Yield the outcomes of all partitions and show progress; raise a BatchError at the end if some failed."""
    sizes = [partition.size for partition in partitions]
    total = None if None in sizes else sum(filter(None, sizes))
    progress.start(Stage(f"{task.name} {counted(len(partitions), 'partition')}", total, "texts"))
    failed: dict[int, str] = dict.fromkeys(range(len(partitions)), "it has no result")
    texts, noted = 0, time.monotonic()
    for count, done in enumerate(engine(task, partitions), 1):
        if done.is_fatal:
            raise BatchError(str(done.error))
        if done.deaths:
            log.warning(f"a worker died; {partitions[done.number].name} was computed again by another one")
        if done.error is not None:
            failed[done.number] = done.error
            continue
        del failed[done.number]
        texts += done.count
        progress.advance(texts)
        if time.monotonic() - noted > NOTE_EVERY:
            noted = time.monotonic()
            progress.note(f"{count:,} of {counted(len(partitions), 'partition')}")
        yield done
    if failed:
        first = min(failed)
        raise BatchError(
            f"{len(failed):,} of {counted(len(partitions), 'partition')} failed. The first is "
            f"{partitions[first].name}: {failed[first].rstrip('.')}.{afterwards}"
        )


def _remember(task: WritingTask, partitions: Sequence[Partition], rows: int) -> None:
    """Write settings and inputs to the folder; delete results of changed files, and raise if settings have changed."""
    settings: dict[str, Any] = {"job": FORMAT, "task": task.name, "model": task.digest}
    settings |= {"partition_rows": rows, "extension": task.extension, **task.settings}
    files: dict[str, Input] = {}
    for partition in partitions:
        one = files.setdefault(str(partition.file), Input(state=partition.state or state_of(partition.file)))
        one.results.append(result(task, partition).relative_to(task.folder).as_posix())
    known, before = _remembered(task.folder)
    if known and (other := [name for name in settings if settings[name] != known.get(name)]):
        raise ConfigError(
            f"{task.folder} contains results with different settings ({', '.join(other)}). Give another --output, or "
            "delete the folder."
        )
    owners = {name: file for file, was in before.items() for name in was.results}
    for file, now in files.items():
        if other_file := next((owners[name] for name in now.results if owners.get(name, file) != file), None):
            raise ConfigError(
                f"{task.folder} contains results of {other_file}, which have the same names as those of {file}. Give "
                "another --output."
            )
    for file, was in before.items():
        if file in files and was.state != files[file].state:
            log.warning(f"{file} has changed, so it is processed again")
            for name in was.results:
                (task.folder / name).unlink(missing_ok=True)
    if gone := [file for file in before if file not in files]:
        log.warning(f"{task.folder} also contains results of other inputs, such as {gone[0]}")
    recorded = {file: one.model_dump() for file, one in (before | files).items()}
    with written_once(task.folder / JOB) as out:
        out.write(json.dumps(settings | {"files": recorded}, indent=1).encode())


def _remembered(folder: Path) -> tuple[dict[str, Any], dict[str, Input]]:
    """Return the settings and inputs of the results in a folder; both are empty if the folder is."""
    path = folder / JOB
    if not path.exists():
        if any(UNFINISHED.search(one.name) is None for one in folder.glob("[!.]*")):
            raise ConfigError(f"{folder} contains other files. Give an empty folder for --output.")
        return {}, {}
    known = read_object(path, ConfigError, MOST_LARGE_JSON)
    try:
        before = INPUTS.validate_python(known.pop("files", {}))
    except ValidationError:
        raise ConfigError(f"{path} is damaged. Give another --output, or delete the folder.") from None
    for name in (name for one in before.values() for name in one.results):
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{path} names the file {name!r}, which is not in {folder}. Give another --output.")
    return known, before


def _clean(folder: Path) -> None:
    """Delete what killed workers left unfinished."""
    for path in folder.rglob(f"*{PART}*"):
        if UNFINISHED.search(path.name):
            path.unlink(missing_ok=True)

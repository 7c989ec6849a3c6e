"""What to do with a partition: predict or embed its texts and write the result, or score texts in memory.

Only workers import torch, when they load the model.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Protocol
from uuid import uuid4

from denn.batch.partitions import Partition, Reading
from denn.data.compressed import arrow
from denn.durable import sync
from denn.errors import ConfigError
from denn.prediction_files import prediction_writer

if TYPE_CHECKING:
    from denn.bundle_card import Card
    from denn.model import Model

PART = ".part-"  # in the names of unfinished results, before the process that writes them
UNFINISHED = re.compile(rf"{re.escape(PART)}.+-\d+-[0-9a-f]{{8}}$")
EMBEDDED_AT_ONCE = 2048

Work = Callable[[Any], tuple[Any, int]]  # partition → result, number of texts


class Task(Protocol):
    """Work on partitions; it is sent to the workers, so it holds settings only."""

    @property
    def name(self) -> str:
        """The first words of the progress display."""
        ...

    def opened(self) -> AbstractContextManager[Work]:
        """Load the model and yield the function that processes one partition."""
        ...


class WritingTask(Task, Protocol):
    """A task that writes one file per partition."""

    @property
    def digest(self) -> str:
        """What identifies the model; see `model_digest`."""
        ...

    @property
    def folder(self) -> Path:
        """The folder of the results."""
        ...

    @property
    def reading(self) -> Reading:
        """How to read the texts."""
        ...

    @property
    def extension(self) -> str:
        """The extension of the results."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """What the results depend on, besides model and inputs."""
        ...


@dataclass(frozen=True)
class Predict:
    """Write the predictions of each partition to a file."""

    model: Path
    digest: str
    folder: Path
    reading: Reading
    extension: str = ".jsonl"
    evidence: int = 0  # number of neighbours to write; 0: no evidence
    precision: str | None = None  # None: the fastest that was measured to be good enough
    deciding: dict[str, Any] = field(default_factory=dict)  # threshold, per_label and min_labels
    name: ClassVar[str] = "predicting"

    @property
    def settings(self) -> dict[str, Any]:
        """What the results depend on, besides model and inputs."""
        return {"evidence": self.evidence, "precision": self.precision, **asdict(self.reading), **self.deciding}

    @contextmanager
    def opened(self) -> Iterator[Work]:
        """Load the model and yield the function that writes the predictions of a partition."""
        from denn.int8 import use_remembered
        from denn.model import load

        with load(self.model, precision=self.precision) as model:
            check_same(self.digest, model)
            if self.precision is None:
                use_remembered(model.method, model.card)
            yield lambda partition: self._write(model, partition)

    def _write(self, model: Model, partition: Partition) -> tuple[None, int]:
        waiting: deque[tuple[str, str | None]] = deque()

        def texts() -> Iterator[str]:
            for text, id in self.reading.texts(partition):
                waiting.append((text, id))
                yield text

        path, count = result(self, partition), 0
        with (
            written_once(path) as out,
            prediction_writer(out, path, bool(self.evidence), bool(model.vocabulary)) as write,
        ):
            for prediction in model.stream(texts(), evidence=self.evidence, **self.deciding):
                text, id = waiting.popleft()
                write(id, text, prediction)
                count += 1
            partition.check_unchanged()
        return None, count


@dataclass(frozen=True)
class Embed:
    """Write the embeddings of each partition to a Parquet file."""

    model: Path
    digest: str
    folder: Path
    reading: Reading
    extension: str = ".parquet"
    name: ClassVar[str] = "embedding"

    @property
    def settings(self) -> dict[str, Any]:
        """What the results depend on, besides model and inputs."""
        return asdict(self.reading)

    @contextmanager
    def opened(self) -> Iterator[Work]:
        """Load the model and yield the function that writes the embeddings of a partition."""
        from denn.model import load

        with load(self.model) as model:
            check_same(self.digest, model)
            yield lambda partition: self._write(model, partition)

    def _write(self, model: Model, partition: Partition) -> tuple[None, int]:
        pa = arrow("Writing embeddings")
        from pyarrow import parquet

        texts, count = self.reading.texts(partition), 0
        width = model.embed([""]).shape[1]
        schema = pa.schema({"id": pa.string(), "embedding": pa.list_(pa.float32(), width)})
        with written_once(result(self, partition)) as out, parquet.ParquetWriter(out, schema) as file:
            while some := list(islice(texts, EMBEDDED_AT_ONCE)):
                vectors = model.embed([text for text, _ in some]).numpy()
                column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), width)
                file.write_table(pa.table([pa.array([id for _, id in some], pa.string()), column], schema))
                count += len(some)
            partition.check_unchanged()
        return None, count


@dataclass(frozen=True)
class Texts:
    """Texts in memory, with the ids of stored documents to exclude from their evidence."""

    name: str
    texts: list[str]
    own_ids: list[str | None] | None = None

    @property
    def size(self) -> int:
        """The number of texts."""
        return len(self.texts)


@dataclass(frozen=True)
class Score:
    """Score texts for an evaluation."""

    model: Path
    name: ClassVar[str] = "scoring"

    @contextmanager
    def opened(self) -> Iterator[Work]:
        """Load the model and yield the function that scores some texts."""
        from denn.model import load

        with load(self.model) as model:
            yield lambda some: (model.scores(some.texts, some.own_ids), len(some.texts))


def model_digest(card: Card) -> str:
    """Return what identifies a model; training and refitting change it, new documents in the datastore do not."""
    return hashlib.sha256(card.model_dump_json(include={"digests", "thresholds"}).encode()).hexdigest()


def check_same(digest: str, model: Model) -> None:
    """Raise a ConfigError if the model that a worker has loaded is not the one that the command began with."""
    if model_digest(model.card) != digest:
        raise ConfigError(
            f"{model.folder} was changed while its predictions were computed, for example by a refit. Give another "
            "--output, or delete the results and start again."
        )


def result(task: WritingTask, partition: Partition) -> Path:
    """Return the file of a partition's result."""
    return task.folder / f"{partition.name}{task.extension}"


@contextmanager
def written_once(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name when it is complete.

    Each attempt has a file of its own. So two workers with the same partition, one of them believed dead, do not mix
    their output.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}{PART}{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}")
    try:
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync(path.parent)

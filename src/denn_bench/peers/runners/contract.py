"""Input and output of a runner; only the standard library and numpy, which every peer's environment has."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float32]  # (texts, labels)
NEVER = -1e4  # score of a label that the peer did not learn, below every other score
WARM_UP, TRIAL = 64, 10  # 1/64 of the documents for warm-up, 1/10 to measure the speed
SAFETY = 0.8  # share of the remaining time that a plan may use
PORTION, GROWTH = 64, 4  # documents of the first portion; every portion is this many times as large as the one before


@dataclass(frozen=True)
class Document:
    """A text with the columns of its labels."""

    text: str
    labels: tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """Documents to learn from, and limits."""

    labels: tuple[str, ...]  # names in column order
    train: Sequence[Document]
    valid: Sequence[Document]
    test: Sequence[str]
    seconds: float  # from `started` to the model on disk
    started: float  # time.time() at the start of the process
    seed: int
    cores: int
    encoder: Path  # folder in Hugging Face format
    folder: Path  # empty folder for the model
    variant: str = ""  # of a peer with several rows
    data: Path = field(default_factory=Path)  # train.jsonl, valid.jsonl and test.jsonl

    def left(self) -> float:
        """Return the remaining seconds."""
        return self.started + self.seconds - time.time()

    def sample(self, count: int) -> list[Document]:
        """Sample training documents at random; a larger sample starts with the smaller one."""
        return random.Random(self.seed).sample(list(self.train), len(self.train))[: max(count, 1)]


@dataclass(frozen=True)
class Trained:
    """A trained model, and how it kept the time limit."""

    score: Callable[[Sequence[str]], Matrix]  # texts → (n,L); higher means more likely
    documents: int  # training documents that were used
    limit: str  # how the time limit was kept
    complete: bool  # whether training finished: more time would not change the model
    packages: Sequence[str] = ()  # whose versions to report
    own: Callable[[Matrix, Sequence[str]], npt.NDArray[np.bool_]] | None = None  # scores → the peer's own decisions
    facts: dict[str, Any] = field(default_factory=dict)  # steps, epochs, …
    # Scores as its users do, if `score` leaves out padding; the speed is that of a sample of texts.
    usual_score: Callable[[Sequence[str]], Matrix] | None = None


def read_job(data: Path, **options: Any) -> Job:
    """Read the documents that the parent wrote."""
    labels = tuple(json.loads((data / "labels.json").read_text(encoding="utf-8")))
    columns = {name: column for column, name in enumerate(labels)}

    def rows(part: str) -> list[dict[str, Any]]:
        with (data / f"{part}.jsonl").open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    train, valid = (
        [Document(row["text"], tuple(columns[name] for name in row["labels"])) for row in rows(part)]
        for part in ("train", "valid")
    )
    return Job(labels, train, valid, [row["text"] for row in rows("test")], data=data, **options)


def gold(documents: Sequence[Document], width: int) -> npt.NDArray[np.int64]:
    """Return the (n,L) 0/1 label matrix; int64, because scikit-learn 1.9 handles 128 columns of int8 wrongly."""
    matrix = np.zeros((len(documents), width), dtype=np.int64)
    for row, document in enumerate(documents):
        matrix[row, list(document.labels)] = 1
    return matrix


def seen_labels(documents: Sequence[Document]) -> list[int]:
    """Return the columns of the labels that occur in documents, ascending."""
    return sorted({column for document in documents for column in document.labels})


def spread(scores: Any, columns: Sequence[int], width: int) -> Matrix:
    """Put the scores of some labels into their columns of a wider matrix."""
    wide = np.full((len(scores), width), NEVER, dtype=np.float32)
    wide[:, list(columns)] = scores
    return wide


def fitting_documents(job: Job, fit: Callable[[Sequence[Document]], object]) -> list[Document]:
    """Fit small samples first, and return as many documents as the remaining time allows.

    The time of a linear model is roughly proportional to the number of documents. The first fit is a warm-up.
    """
    fit(job.sample(max(len(job.train) // WARM_UP, 100)))
    trial = job.sample(max(len(job.train) // TRIAL, 200))
    begun = time.time()
    fit(trial)
    pace = (time.time() - begun) / len(trial)
    return job.sample(int(SAFETY * max(job.left(), 0) / pace))


def add_in_portions(job: Job, add: Callable[[Sequence[Document]], object]) -> int:
    """Add documents in growing portions, as many as the time allows, and return their number.

    Each portion measures the speed for the next one. The last one uses the remaining time.
    """
    documents, added, portion, growing = job.sample(len(job.train)), 0, PORTION, True
    while portion > 0 and added < len(documents):
        some = documents[added : added + portion]
        begun = time.time()
        add(some)
        added += len(some)
        if not growing:
            break
        affordable = int(SAFETY * max(job.left(), 0) * len(some) / max(time.time() - begun, 1e-6))
        growing = affordable > GROWTH * portion
        portion = GROWTH * portion if growing else affordable
    return added

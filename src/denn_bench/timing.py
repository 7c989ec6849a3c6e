"""Measure the cost of a recipe on an otherwise idle machine: time a short training run and scoring.

Results of runs that shared a GPU (`denn bench run --shared`) have no meaningful times; these replace them.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from denn.build import train
from denn.clock import Clock
from denn.methods.neighbours import WithNeighbours
from denn.protocols import Progress
from denn.registry import METHODS, lookup
from denn.types import Corpus, Stage
from denn_bench.machine import matrix_rate, reset_peak_memory
from denn_bench.measure import cost, rounded, speed
from denn_bench.result import BRIEF
from denn_bench.run import Run, describe, write

SAMPLE = 8000  # training documents: enough for every length, few enough to prepare quickly
SCORED = 1000
RATE_SHARE = 0.3  # factor of the learning rate: prevents collapses, and a step takes as long
UTILISATION = ("mfu", "mfu_with_attention")
KEPT = {
    *BRIEF, "documents_per_second", *UTILISATION, "matrix_rate", "parameters", "peak_memory_bytes",
    "store_documents", "tokens_per_second",
}  # fmt: skip


class Stopwatch:
    """Record the time of each training update, and end training after a time limit."""

    def __init__(self, progress: Progress, clock: Clock, seconds: float) -> None:
        self.progress, self.training, self.clock, self.seconds = progress, False, clock, seconds
        self.times: list[tuple[float, int]] = []

    def start(self, stage: Stage) -> None:
        """Forward the stage, and record whether training starts."""
        self.training = stage.trains
        if self.training:
            self.clock.budget = self.clock.elapsed() + self.seconds
        self.progress.start(stage)

    def advance(self, done: int, **values: object) -> None:
        """Record the time."""
        if self.training:
            self.times.append((time.monotonic(), done))
        self.progress.advance(done, **values)

    def note(self, message: str) -> None:
        """Forward the note."""
        self.progress.note(message)

    def pace(self) -> float | None:
        """Return documents per second in the second half of training, after warm-up."""
        if len(self.times) < 4:
            return None
        first, last = self.times[0], self.times[-1]
        later = [moment for moment in self.times[:-1] if moment[0] >= (first[0] + last[0]) / 2]
        half = later[0] if later else self.times[-2]  # none if the last step took longer than all before it
        return (last[1] - half[1]) / (last[0] - half[0]) if last[0] > half[0] else None


def sample(corpus: Corpus, seed: int, *, whole: bool = False) -> Corpus:
    """Return a corpus with fewer documents but the same labels; the training split can stay complete."""
    some = list(corpus.train)
    if len(some) > SAMPLE and not whole:
        some = random.Random(seed).sample(some, SAMPLE)
    return replace(corpus, train=some, valid=corpus.valid[:SCORED])


def at_pace(spent: Mapping[str, Any], pace: float | None, documents: int, sampled: int) -> dict[str, Any]:
    """Return epoch time, tokens per second and utilisation for a speed in documents per second."""
    if pace is None:
        return dict.fromkeys(("epoch_seconds", "documents_per_second", "tokens_per_second", *UTILISATION))
    found: dict[str, Any] = {"epoch_seconds": documents / pace, "documents_per_second": pace}
    if spent["tokens"] and spent["epochs"]:
        found["tokens_per_second"] = pace * spent["tokens"] / (spent["epochs"] * sampled)
        for share in UTILISATION:
            if spent[share]:
                found[share] = spent[share] * found["tokens_per_second"] / spent["tokens_per_second"]
    return found


def measure_costs(
    run: Run, corpus: Corpus, checksum: str, folder: Path, seconds: float, progress: Progress
) -> dict[str, Any]:
    """Train for some seconds, score some documents, and write the time per epoch and per text to `folder`.

    A method with a datastore keeps all documents; others train on a sample.
    """
    reset_peak_memory()
    keeps_documents = issubclass(lookup(METHODS, run.method.method, "method"), WithNeighbours)
    some, clock, begun = sample(corpus, run.seed, whole=keeps_documents), Clock(), time.monotonic()
    watch = Stopwatch(progress, clock, seconds)
    rate = matrix_rate("cuda" if torch.cuda.is_available() else "cpu")
    settings = vars(run.method.parameters)
    if "time_budget" in settings:
        settings = settings | {"time_budget": None, "epochs": 10_000, "evaluate_every": 10_000_000, "patience": 0}
        settings["learning_rate"] *= RATE_SHARE
    with (
        tempfile.TemporaryDirectory() as place,
        train(
            some,
            out=Path(place) / "model",
            method=run.method.method,
            progress=watch,
            allow_poor=True,
            clock=clock,
            **settings,
        ) as model,
    ):
        model.scores([document.text for document in some.test[:64]])  # warm
        spent = cost(model, some, time.monotonic() - begun, 0, rate, speed(model, [*some.test, *some.valid]))
    spent |= at_pace(spent, watch.pace(), len(corpus.train), len(some.train))
    for name in spent.keys() - KEPT:
        del spent[name]  # not meaningful for a shortened training run
    data: dict[str, Any] = describe(run, corpus, checksum) | rounded({"cost": spent})
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / f"{run.name}.json", data)
    return data

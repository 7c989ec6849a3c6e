"""What a recipe costs when it has the machine for itself: a short training and a scoring, timed.

Results of trainings that shared an accelerator (`denn bench run --shared`) have no times of their own; these stand in.
"""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from denn.build import train
from denn.clock import Clock
from denn.protocols import Progress
from denn.types import Corpus, Stage
from denn_bench.machine import matrix_rate, reset_peak_memory
from denn_bench.measure import cost, rounded, speed
from denn_bench.result import BRIEF
from denn_bench.run import Run, describe, write

SAMPLE = 8000  # training documents: enough for every length, few enough to prepare quickly
SCORED = 1000
KEPT = {*BRIEF, "documents_per_second", "matrix_rate", "parameters", "peak_memory_bytes"}


class Stopwatch:
    """Progress that remembers when how much of the training was done, and ends it after some seconds."""

    def __init__(self, progress: Progress, clock: Clock, seconds: float) -> None:
        self.progress, self.training, self.clock, self.seconds = progress, False, clock, seconds
        self.times: list[tuple[float, int]] = []

    def start(self, stage: Stage) -> None:
        """Pass it on, and note whether training begins."""
        self.training = stage.trains
        if self.training:
            self.clock.budget = self.clock.elapsed() + self.seconds
        self.progress.start(stage)

    def advance(self, done: int, **values: object) -> None:
        """Note the time."""
        if self.training:
            self.times.append((time.monotonic(), done))
        self.progress.advance(done, **values)

    def note(self, message: str) -> None:
        """Pass it on."""
        self.progress.note(message)

    def pace(self) -> float | None:
        """Return documents per second in the later half of the training, when everything is warm."""
        if len(self.times) < 4:
            return None
        first, last = self.times[0], self.times[-1]
        later = [moment for moment in self.times[:-1] if moment[0] >= (first[0] + last[0]) / 2]
        half = later[0] if later else self.times[-2]  # none where the last step took longer than all before it
        return (last[1] - half[1]) / (last[0] - half[0]) if last[0] > half[0] else None


def sample(corpus: Corpus, seed: int) -> Corpus:
    """Return a corpus of fewer documents of the same kind and the same labels."""
    some = list(corpus.train)
    if len(some) > SAMPLE:
        some = random.Random(seed).sample(some, SAMPLE)
    return replace(corpus, train=some, valid=corpus.valid[:SCORED], test=corpus.test[:SCORED])


def measure_costs(
    run: Run, corpus: Corpus, checksum: str, folder: Path, seconds: float, progress: Progress
) -> dict[str, Any]:
    """Train for some seconds on some documents, score some, and write what an epoch and a text take to `folder`."""
    reset_peak_memory()
    some, clock, begun = sample(corpus, run.seed), Clock(), time.monotonic()
    watch = Stopwatch(progress, clock, seconds)
    rate = matrix_rate("cuda" if torch.cuda.is_available() else "cpu")
    settings = vars(run.method.parameters)
    if "time_budget" in settings:
        settings = settings | {"time_budget": None, "epochs": 10_000, "evaluate_every": 10_000_000, "patience": 0}
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
        spent = cost(model, some, time.monotonic() - begun, 0, rate, speed(model, some.test))
    pace = watch.pace()
    spent |= {"epoch_seconds": None if pace is None else len(corpus.train) / pace, "documents_per_second": pace}
    for name in spent.keys() - KEPT:
        del spent[name]  # of a training that was cut short
    data: dict[str, Any] = describe(run, corpus, checksum) | rounded({"cost": spent})
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / f"{run.name}.json", data)
    return data

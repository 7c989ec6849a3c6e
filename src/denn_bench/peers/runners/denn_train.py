"""denn itself with its defaults: `denn train --time-budget`, as a user would type it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .contract import Job, Matrix, Trained, spread

PACKAGES = ()  # it runs in its own environment


def train(job: Job) -> Trained:
    """Train with the command line in the remaining time, and score with the saved model."""
    out = job.folder / "model"
    command = [
        sys.executable, "-m", "denn", "train", str(job.data / "train.jsonl"), "--valid", str(job.data / "valid.jsonl"),
        "--out", str(out), "--seed", str(job.seed), "--allow-poor", "--time-budget", f"{max(job.left(), 1):.0f}s",
    ]  # fmt: skip
    said = job.folder.parent / "denn.txt"
    with said.open("wb") as file:
        ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=file)
    if ended.returncode:
        raise RuntimeError((said.read_text(encoding="utf-8").strip().splitlines() or ["no message"])[-1])
    card = json.loads((out / "bundle.json").read_text(encoding="utf-8"))
    places = {name: column for column, name in enumerate(job.labels)}
    decided: list[npt.NDArray[np.bool_]] = []  # batches of the texts scored last

    @cache
    def load() -> Any:  # when it scores: the time to train ends with the model on disk
        import denn

        return denn.load(out)

    def score(texts: Sequence[str]) -> Matrix:
        model = load()
        size, parts = model.batch(), []
        decided.clear()
        for begin in range(0, len(texts), size):
            scores = model.score(texts[begin : begin + size]).cpu()
            columns = [places[name] for name in scores.names]
            above = scores.final > model.decision_thresholds(scores)
            decided.append(spread(above.numpy(), columns, len(job.labels)) > 0)
            parts.append(spread(scores.final.numpy(), columns, len(job.labels)))
        return np.concatenate(parts)

    def own(_: Matrix, __: Sequence[str]) -> npt.NDArray[np.bool_]:
        return np.concatenate(decided)

    training = card["training"]
    facts = {name: training.get(name) for name in ("steps", "frozen", "documents_used")}
    used = training.get("documents_used") or len(job.train)
    return Trained(score, used, "its own time budget", False, ["denn"], own, facts)

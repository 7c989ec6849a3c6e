"""Scores of validation and test → one threshold and F1: the same code for every peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.errors import DataError
from denn.types import Corpus

CANDIDATES = 200
FACTOR = 4  # candidates yield between 1/FACTOR and FACTOR times the number of gold labels


def candidates(scores: Tensor, gold: Tensor) -> list[float]:
    """Return candidate thresholds by the number of labels they yield, because the scores of peers differ in scale."""
    ordered = scores.flatten().sort(descending=True).values
    total = max(int(gold.sum()), 1)
    ranks = np.geomspace(max(total / FACTOR, 1), total * FACTOR, CANDIDATES).astype(int).clip(max=len(ordered)) - 1
    return sorted({float(value) for value in ordered[torch.from_numpy(ranks)]})


def measure(path: Path, corpus: Corpus) -> dict[str, Any]:
    """Tune a threshold on validation; return it with test micro- and macro-F1, also at the peer's `own` threshold."""
    with np.load(path) as arrays:
        valid, test = (torch.from_numpy(arrays[part]).float() for part in ("valid", "test"))
        own = torch.from_numpy(arrays["own"]) if "own" in arrays else None
    golds = [corpus.labels.matrix(part) for part in (corpus.valid, corpus.test)]
    for name, scores, gold in zip(("validation", "test"), (valid, test), golds, strict=True):
        if scores.shape != gold.shape:
            raise DataError(f"Got {name} scores of shape {tuple(scores.shape)}, expected {tuple(gold.shape)}.")
        if not scores.isfinite().all():
            raise DataError(f"Some {name} scores are not finite.")
    threshold = tune_global(valid, golds[0], candidates(valid, golds[0]))
    tuned = _f1(decide(test, threshold), golds[1])
    return {**tuned, "threshold": threshold, "own": None if own is None else _f1(own, golds[1])}


def _f1(predicted: Tensor, gold: Tensor) -> dict[str, float]:
    scores = multilabel_scores(predicted, gold)
    return {name: round(scores[name], 5) for name in ("micro_f1", "macro_f1")}

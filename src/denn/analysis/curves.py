"""Compare scores with labels: threshold curves and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from denn.core.calibration import calibration_error
from denn.core.thresholds import counts_at


def threshold_curve(values: Tensor, gold: Tensor, grid: Sequence[float]) -> list[dict[str, float]]:
    """Return micro and macro precision, recall and F1 of (n,L) scores at each threshold of the ascending grid."""
    hits, given = counts_at(values, gold, grid)  # (L,G)
    support = gold.sum(0)[:, None]
    curves: dict[str, list[float]] = {"threshold": list(grid)}
    for kind, counts in (
        ("micro", [count.sum(0, keepdim=True) for count in (hits, given, support)]),
        ("macro", [hits, given, support]),
    ):
        right, predicted, positive = (count.double() for count in counts)
        curves[f"{kind}_precision"] = _mean_ratio(right, predicted)
        curves[f"{kind}_recall"] = _mean_ratio(right, positive.expand_as(right))
        curves[f"{kind}_f1"] = _mean_ratio(2 * right, predicted + positive)
    return [dict(zip(curves, row, strict=True)) for row in zip(*curves.values(), strict=True)]


def calibration(values: Tensor, gold: Tensor, bins: int = 10) -> dict[str, Any]:
    """Compare (n,L) scores with how often they are right, in bins of equal width, without empty bins."""
    bin_of = (values * bins).long().clamp(0, bins - 1).flatten()
    counts = bin_of.bincount(minlength=bins)
    scores = bin_of.bincount(values.flatten().double(), minlength=bins)
    right = bin_of[gold.flatten()].bincount(minlength=bins)
    rows = [
        {"low": b / bins, "high": (b + 1) / bins, "count": count, "score": score / count, "observed": hit / count}
        for b, (count, score, hit) in enumerate(zip(counts.tolist(), scores.tolist(), right.tolist(), strict=True))
        if count
    ]
    return {"bins": rows, "error": calibration_error(values, gold)}


def _mean_ratio(part: Tensor, whole: Tensor) -> list[float]:
    """Return the mean ratio over the rows of two (L,G) tensors, 0 where undefined."""
    ratio = torch.where(whole > 0, part / whole.clamp(min=1), 0.0)
    means: list[float] = (ratio.sum(0) / max(len(ratio), 1)).tolist()
    return means

"""Turn decision values into probabilities that are comparable across labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

KNOT = -0.5  # most decision values are near −1; those above this have a separate slope
STEPS = 30
RIDGE = 1e-3  # keeps the solution finite if decisions separate the documents
LEAST_SLOPE = 0.1  # so that a larger decision value never means a lower probability
DEFAULT = np.array([-1.0, 0.0, 2.0, 0.0, 2.0, 0.0])  # used if there is nothing to learn from


@dataclass(frozen=True)
class Calibration:
    """Platt's sigmoid with two slopes: logit p = a + b · min(m + ½, 0) + c · max(m + ½, 0) of decision values m."""

    curves: NDArray[np.float32]  # (3,L): a, b and c of each label

    @classmethod
    def fit(cls, decisions: Doubles, gold: Any, share: Doubles, shares: Doubles) -> Self:
        """Learn how a, b and c depend on the frequency of a label, each as x + y · ln share.

        `decisions` and the bool `gold` are (n,M), `share` is the share of training documents with each of these M
        labels, and `shares` are those of all L labels to calibrate.
        """
        coefficients = _maximum_likelihood(decisions.astype(np.float64), gold, np.log(share))
        curves = coefficients.reshape(3, 2) @ np.stack([np.ones(len(shares)), np.log(shares)])
        curves[1:] = np.maximum(curves[1:], LEAST_SLOPE)
        return cls(curves.astype(np.float32))

    def __call__(self, decisions: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits of (n,L) decision values."""
        offset, below, above = self.curves
        distance = decisions - np.float32(KNOT)
        logits: NDArray[np.float32] = offset + np.where(distance < 0, below, above) * distance
        return logits

    def loss(self, decisions: NDArray[np.float32], gold: Any) -> float:
        """Return the mean log loss against (n,L) bool gold; 0 if there are no documents."""
        logits = self(decisions).astype(np.float64)
        return float(np.logaddexp(0, np.where(gold, -logits, logits)).mean()) if gold.size else 0.0


def _maximum_likelihood(decisions: Doubles, gold: Any, frequency: Doubles) -> Doubles:
    """Return the six coefficients of the most likely curves, by Newton's method."""
    found = DEFAULT.copy()
    if not gold.any() or gold.all():
        return found
    distance = decisions.ravel() - KNOT
    parts = np.stack([np.ones_like(distance), np.minimum(distance, 0), np.maximum(distance, 0)], axis=1)
    by_frequency = parts * np.broadcast_to(frequency, decisions.shape).reshape(-1, 1)
    inputs = np.stack([parts, by_frequency], axis=2).reshape(-1, 6)
    target = gold.ravel().astype(np.float64)
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-np.clip(inputs @ found, -30, 30)))
        gradient = inputs.T @ (p - target) + RIDGE * (found - DEFAULT)
        curvature = (inputs * (p * (1 - p))[:, None]).T @ inputs + RIDGE * np.eye(6)
        step = np.linalg.solve(curvature, gradient)
        found -= step / max(1.0, np.abs(step).max())  # a full step may diverge far from the solution
        if np.abs(step).max() < 1e-6:
            break
    return found

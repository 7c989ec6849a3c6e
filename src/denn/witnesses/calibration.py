"""From decision values to probabilities that compare across labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

STEPS = 30
RIDGE = 1e-3  # keeps the solution finite where decisions separate the documents
LEAST_SLOPE = 0.1  # a larger decision value never means less
DEFAULT = np.array([2.0, 0.0, 0.0, 0.0])  # where there is nothing to learn from


def fit_calibration(decisions: Doubles, gold: Any, share: Doubles) -> Doubles:
    """Fit Platt's sigmoid, which depends on the frequency of a label, by maximum likelihood: (4,) coefficients c of

        logit p = c₀ m + c₁ + c₂ f + c₃ m f      with f = ln share

    to (n,L) decision values m, (n,L) bool gold and the (L,) share of training documents with each label.
    """
    if not gold.any() or gold.all():
        return DEFAULT
    frequency = np.broadcast_to(np.log(share), decisions.shape).ravel()
    m = decisions.ravel().astype(np.float64)
    inputs = np.stack([m, np.ones_like(m), frequency, m * frequency], axis=1)
    target, found = gold.ravel().astype(np.float64), DEFAULT.copy()
    for _ in range(STEPS):  # Newton
        p = 1 / (1 + np.exp(-np.clip(inputs @ found, -30, 30)))
        gradient = inputs.T @ (p - target) + RIDGE * (found - DEFAULT)
        curvature = (inputs * (p * (1 - p))[:, None]).T @ inputs + RIDGE * np.eye(4)
        step = np.linalg.solve(curvature, gradient)
        found -= step / max(1.0, np.abs(step).max())  # far from the solution a whole step leads astray
        if np.abs(step).max() < 1e-6:
            break
    return found


def slopes_and_offsets(coefficients: Doubles, share: Doubles) -> tuple[Doubles, Doubles]:
    """Return the (L,) a and b of logit p = a m + b."""
    frequency = np.log(share)
    slopes = np.maximum(coefficients[0] + coefficients[3] * frequency, LEAST_SLOPE)
    return slopes, coefficients[1] + coefficients[2] * frequency

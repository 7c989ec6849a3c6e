"""Principal components, for maps of embeddings."""

from __future__ import annotations

import torch
from torch import Tensor


def principal_axes(points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean (d,) of (n,d) points, their two principal axes (d,2), and the axes' shares of the variance (2,).

    The largest coordinate of an axis is positive, so that a map of similar points does not flip. In one dimension, both
    axes are the same, and the second explains nothing. Without points, the mean is 0.
    """
    centre = points.mean(0) if len(points) else points.new_zeros(points.shape[1])
    spread = points - centre
    values, vectors = torch.linalg.eigh(spread.T @ spread)  # ascending
    first, second = -1, -min(2, len(values))
    axes = vectors[:, [first, second]]
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    axes = torch.where(largest < 0, -axes, axes)
    shares = values[[first, second]].clamp(min=0) / values.sum().clamp(min=1e-12)
    return centre, axes, shares * points.new_tensor([1.0, float(first != second)])

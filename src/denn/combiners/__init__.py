"""Combiners: turn the scores of several witnesses into one score for each text and label."""

from __future__ import annotations

from torch import Tensor

from denn.prediction_types import Parts


def rows_of(parts: Parts, index: Tensor | slice) -> dict[str, Tensor]:
    """Return the scores of some of the texts."""
    return {name: part[index] for name, part in parts.items()}


def mean_known(parts: Parts) -> Tensor:
    """Return the (n,L) mean over the witnesses that know each label; 0 if none does."""
    first, *others = parts.values()
    total = first.clone()
    for part in others:
        total += part
    if not bool(total.isnan().any()):
        return total / len(parts)
    total, known = first.nan_to_num(0.0), (~first.isnan()).float()
    for part in others:
        total += part.nan_to_num(0.0)
        known += ~part.isnan()
    return total / known.clamp_(min=1)

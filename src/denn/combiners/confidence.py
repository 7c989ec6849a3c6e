"""The paper's combiner: the debiased confidence λ weighs the neighbours against the classifier (Eq. 11-13)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from denn.core.combine import combine, debiased_confidence
from denn.prediction_types import Context, Parts


class Confidence:
    """λ over the witnesses "classifier" and "neighbours"; the votes alone for labels unknown to the classifier."""

    hears: Collection[str] = ("classifier", "neighbours")
    held_out: Tensor | None = None

    def __init__(self, optimise: str = "micro_f1", seed: int = 0) -> None:
        """Accept the arguments of all combiners; this one has no options."""

    def fit(self, parts: Parts, gold: Tensor, context: Context) -> Mapping[str, object]:
        """Fit nothing."""
        self.held_out = self.combine(parts, context)
        return {}

    def combine(self, parts: Parts, context: Context) -> Tensor:
        """Return the (n,L) scores of Eq. 13; λ is 0 for a text without neighbours."""
        votes = parts["neighbours"].nan_to_num(0.0)  # no votes if a text has no neighbours
        classifier = parts["classifier"]
        known = torch.where(classifier.isnan(), votes, classifier)  # then any λ gives the vote
        return combine(known, votes, confidence_of(parts, context))

    def save(self, folder: Path) -> None:
        """Write nothing."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read nothing."""
        return cls()


def confidence_of(parts: Parts, context: Context) -> Tensor:
    """Return λ (n,) of Eq. 11-12 over the labels that the classifier knows."""
    confidence = debiased_confidence(parts["classifier"], parts["neighbours"], context.gamma)  # NaN is never above γ
    if context.similarity is None:
        return confidence
    return confidence.where(context.similarity.isfinite().any(1), 0.0)

"""Combiners: from the scores of several witnesses to one score for each text and label."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

from torch import Tensor

Parts = Mapping[str, Tensor]  # witness → (n,L) in [0,1], NaN where it does not know the label


@dataclass(frozen=True, eq=False)
class Context:
    """What a combiner may know besides the scores."""

    label_counts: Tensor  # (L,) training documents of each label
    similarity: Tensor | None = None  # (n,k) cosines of the neighbours, nearest first, −inf if there is none
    gamma: float = 0.7  # γ of λ

    def rows(self, index: Tensor | slice) -> Context:
        """Return what is known about some of the texts."""
        return self if self.similarity is None else replace(self, similarity=self.similarity[index])


class Combiner(Protocol):
    """Turns the scores of witnesses into one for each text and label."""

    @property
    def hears(self) -> Collection[str]:
        """The witnesses that it cannot do without."""

    held_out: Tensor | None  # after `fit`: (n,L) scores of validation texts by a combiner that never saw their labels

    def fit(self, parts: Parts, gold: Tensor, context: Context) -> Mapping[str, object]:
        """Learn from the (n,L) bool gold labels of validation texts; return facts for the bundle, fit for JSON."""

    def combine(self, parts: Parts, context: Context) -> Tensor:
        """Return the (n,L) final scores in [0,1]; labels that some witness does not know get the mean of the others."""

    def save(self, folder: Path) -> None:
        """Write what `load` needs, without pickle."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote; a damaged file is a BundleError."""


def rows_of(parts: Parts, index: Tensor | slice) -> dict[str, Tensor]:
    """Return the scores of some of the texts."""
    return {name: part[index] for name, part in parts.items()}


def mean_known(parts: Parts) -> Tensor:
    """Return the (n,L) mean of the witnesses that know each label; 0 where none does."""
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

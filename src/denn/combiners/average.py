"""The plain combiner: the mean of the witnesses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Self

from torch import Tensor

from denn.combiners import mean_known
from denn.prediction_types import Context, Parts


class Average:
    """The mean of the witnesses that know a label, without fitting."""

    hears: Collection[str] = ()
    held_out: Tensor | None = None

    def __init__(self, optimise: str = "micro_f1", seed: int = 0) -> None:
        """Accept the arguments of all combiners; this one has no options."""

    def fit(self, parts: Parts, gold: Tensor, context: Context) -> Mapping[str, object]:
        """Fit nothing."""
        self.held_out = self.combine(parts, context)
        return {}

    def combine(self, parts: Parts, context: Context) -> Tensor:
        """Return the (n,L) means."""
        return mean_known(parts)

    def save(self, folder: Path) -> None:
        """Write nothing."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read nothing."""
        return cls()

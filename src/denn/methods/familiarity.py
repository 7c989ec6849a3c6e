"""Measure how familiar a text is: how close its neighbours are, compared with those of ordinary documents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from denn.datastore import Datastore
from denn.errors import BundleError
from denn.strict_json import dumps
from denn.untrusted import REMEDY, read_object

FILE = "familiarity.json"
NEAREST = 5  # number of neighbours that count
QUANTILES = 101
SAMPLE = 1_000  # maximum number of stored documents to search for
ROUNDING = 1e-5  # tolerance for cosines: a text among copies of itself is as close as they are


@dataclass(frozen=True, eq=False)
class Familiarity:
    """The share of ordinary documents whose neighbours are farther away than those of a text."""

    quantiles: Tensor  # (101,) float64, ascending: how close the neighbours of ordinary documents are

    @classmethod
    def measure(cls, similarity: Tensor) -> Self | None:
        """Compute the quantiles from documents with these (n,k) neighbour cosines; None if there are no neighbours."""
        near = nearness(similarity)
        near = near[near.isfinite()].double()
        if not len(near):
            return None
        levels = torch.linspace(0, 1, QUANTILES, dtype=torch.float64)
        return cls(near.quantile(levels).clamp(-1, 1))

    def of(self, similarity: Tensor) -> Tensor:
        """Return the familiarity of texts, (n,) in [0,1], from the (n,k) cosines of their neighbours.

        It is the linearly interpolated position among the quantiles, so it increases with closeness.
        """
        near = nearness(similarity).double() + ROUNDING
        above = torch.searchsorted(self.quantiles, near, right=True)  # the first greater quantile
        below = (above - 1).clamp(0, QUANTILES - 2)
        low, high = self.quantiles[below], self.quantiles[below + 1]
        place = (below + ((near - low) / (high - low)).clamp(0, 1)) / (QUANTILES - 1)
        return torch.where(above == QUANTILES, 1.0, place).float()

    def save(self, folder: Path) -> None:
        """Write `familiarity.json`."""
        content = {"quantiles": [round(value, 6) for value in self.quantiles.tolist()]}
        (folder / FILE).write_text(dumps(content, "The familiarity", BundleError) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read what `save` wrote; None if there is no file, as in models from earlier versions."""
        path = folder / FILE
        if not path.exists():
            return None
        values = read_object(path, BundleError).get("quantiles")
        if not isinstance(values, list) or len(values) != QUANTILES or not all(map(_is_cosine, values)):
            raise BundleError(f"{path} is damaged: expected {QUANTILES} numbers from -1 to 1. {REMEDY}")
        if values != sorted(values):
            raise BundleError(f"{path} is damaged: expected its numbers in ascending order. {REMEDY}")
        return cls(torch.tensor(values, dtype=torch.float64))


def nearness(similarity: Tensor) -> Tensor:
    """Return the mean cosine of the nearest neighbours, (n,), from (n,k) with −inf for missing ones; −inf if none."""
    nearest = similarity.topk(min(NEAREST, similarity.shape[1])).values
    there = nearest.isfinite()
    return (nearest.where(there, 0.0).sum(1) / there.sum(1)).where(there.any(1), float("-inf"))


def among_stored(store: Datastore, k: int, seed: int) -> Tensor:
    """Return the cosines between a sample of stored documents and their neighbours among the others."""
    ids, k = store.ids(), min(NEAREST, k)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))[:SAMPLE].tolist()
    drawn = [ids[row] for row in order]
    found = store.search(store.vectors(drawn), k + 1)
    similarity = found.similarity.clone()
    for row, (own, others) in enumerate(zip(drawn, found.ids, strict=True)):
        if own in others:
            similarity[row, others.index(own)] = float("-inf")
    return similarity.topk(min(k, similarity.shape[1])).values


def _is_cosine(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1 <= value <= 1

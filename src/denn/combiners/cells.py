"""Cells of texts × labels: blocks of them, those worth fitting to, and statistics that exclude a label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from denn.core.monotone import OtherMaximum
from denn.prediction_types import Parts

BLOCK = 1_000_000  # cells processed together
CELLS = 100_000  # cells (texts × labels) to fit in addition to gold labels: half the most likely, half random


@dataclass(frozen=True)
class Linear:
    """A sum that depends on the label and on its rival, the highest score of the other labels."""

    by_label: Tensor  # (L,)
    by_rival: float

    def spread(self, rival: OtherMaximum | None) -> Tensor:
        """Return (n,L), or (1,L) without a rival."""
        if rival is None:
            return self.by_label[None].clone()
        total = self.by_label + self.by_rival * rival.largest
        return total.scatter_add_(1, rival.column, self.by_rival * (rival.second - rival.largest))


def mean_of(parts: Parts) -> Tensor:
    """Return the (n,L) mean; NaN if a witness does not know the label."""
    mean: Tensor = sum(parts.values()) / len(parts)  # type: ignore[assignment]
    return mean


def known_to_all(parts: Parts) -> tuple[Parts, Tensor | None]:
    """Return scores with 0 for labels that some witness does not know, and the mask of these: (n,L), or None.

    Such labels are not rivals, so they do not change any other score.
    """
    unknown = mean_of(parts).isnan()
    if not bool(unknown.any()):
        return parts, None
    return {name: part.masked_fill(unknown, 0.0) for name, part in parts.items()}, unknown


def rivals_of(parts: Parts, gold: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Return which labels every witness knows in the seen texts, and the means of those that are not gold, else −1."""
    first, *others = parts.values()
    mean = first[seen]
    for part in others:
        mean += part[seen]
    mean.div_(len(parts)).nan_to_num_(-1.0)
    return mean >= 0, mean.masked_fill_(gold[seen], -1.0)


def highest(values: Tensor, count: int) -> Tensor:
    """Return the flat positions of the highest values in order, using memory for `count` values and a block."""
    flat, found = values.flatten(), []
    for begin in range(0, len(flat), BLOCK):
        part = flat[begin : begin + BLOCK]
        found.append(part.topk(min(count, len(part))).indices + begin)
    places = torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)
    return places[flat[places].topk(min(count, len(places))).indices]


def chosen_cells(
    known: Tensor, rivals: Tensor, gold: Tensor, seen: Tensor, seed: int
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Choose the cells of a fit; yield blocks of texts with the rows, columns and weights of the cells in each.

    `known` and `rivals` come from `rivals_of`. All gold labels and the labels with the highest means count once each;
    a random sample represents all the others.
    """
    certain, share = known, 1.0
    if rivals.numel() > CELLS:
        likely = torch.zeros(rivals.numel(), dtype=torch.bool)
        likely[highest(rivals, CELLS // 2)] = True  # not by comparing with the lowest value, which many may share
        certain = (gold[seen] | likely.view_as(rivals)).logical_and_(known)
        share = min(CELLS / 2 / max(int(known.sum()) - int(certain.sum()), 1), 1.0)
    draw = torch.Generator().manual_seed(seed)
    for block in blocks_of(rivals, BLOCK):
        chosen = known[block]
        if share < 1:
            chosen = certain[block] | (chosen & (torch.rand(chosen.shape, generator=draw) < share))
        rows, columns = chosen.nonzero(as_tuple=True)
        yield seen[block], rows, columns, torch.where(certain[block][rows, columns], 1.0, 1 / share)


def blocks_of(matrix: Tensor, cells: int) -> Iterator[slice]:
    """Split (n,L) into blocks of rows with about `cells` cells each."""
    size = max(cells // max(matrix.shape[1], 1), 1)
    return (slice(start, start + size) for start in range(0, len(matrix), size))

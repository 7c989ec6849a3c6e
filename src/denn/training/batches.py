"""The batches of a training run: the rows of each step depend only on the seed and the step."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from denn.types import Document

DOUBT = 10.0  # expected validation documents of a label set at which its ratio counts half


def seed_of(seed: int, what: str, number: int) -> int:
    """Hash a seed and a position in the run to a 32-bit seed for the CPU's generator."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {what} {number}".encode(), digest_size=4).digest())


class Batches:
    """The rows of every step: an epoch uses every row once, or draws the same number by (n,) weights."""

    def __init__(self, size: int, batch_size: int, seed: int, weights: Tensor | None = None) -> None:
        self.size, self.batch_size, self.seed, self.weights = size, batch_size, seed, weights
        self.per_epoch = -(-size // batch_size)
        self._drawn: tuple[int, list[Tensor]] | None = None  # the latest epoch

    def rows(self, step: int) -> Tensor:
        """Return the rows of a step."""
        epoch, place = divmod(step, self.per_epoch)
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, self._epoch(epoch)
        return self._drawn[1][place]

    def rows_before(self, step: int) -> int:
        """Count the rows of all earlier steps."""
        epochs, place = divmod(step, self.per_epoch)
        return epochs * self.size + place * self.size // self.per_epoch

    def _epoch(self, epoch: int) -> list[Tensor]:
        """Draw the batches of an epoch; the last two share the remaining rows, since a single row has no negatives."""
        generator = torch.Generator().manual_seed(seed_of(self.seed, "epoch", epoch))
        if self.weights is None:
            order = torch.randperm(self.size, generator=generator)
        else:
            order = torch.multinomial(self.weights, self.size, replacement=True, generator=generator)
        batches = list(torch.split(order, self.batch_size))
        if len(batches) > 1:
            batches[-2:] = torch.cat(batches[-2:]).tensor_split(2)
        return batches


def as_in(train: Sequence[Document], valid: Sequence[Document]) -> Tensor:
    """Return (n,) weights that give each label set of `train` about the same share as in `valid`.

    A set seen v times in `valid`, where its share of `train` predicts E, gets the weight (v + a) / (E + a): the ratio,
    shrunk towards 1 if there is little data.
    """
    sets = [frozenset(document.labels) for document in train]
    here, there = Counter(sets), Counter(frozenset(document.labels) for document in valid)
    expected = {labels: count * len(valid) / len(train) for labels, count in here.items()}
    return torch.tensor([(there[labels] + DOUBT) / (expected[labels] + DOUBT) for labels in sets])

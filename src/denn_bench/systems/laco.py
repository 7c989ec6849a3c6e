"""LACO: CORE's network that also learns, from the labels' own states, which labels go together.

Zhang et al., "Enhancing label correlation feedback in multi-label text classification via multi-task learning",
Findings of ACL 2021. The second task is of training alone: pairs of labels (PLCP), or the others where some are given
(CLCP).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from denn.encoders.transformer import TransformerEncoder
from denn.training.network import Batch
from denn.training.neural import Neural
from denn_bench.systems.core_network import CoreNetwork, CoreParameters, summed_loss


@dataclass(frozen=True, kw_only=True)
class PairParameters(CoreParameters):
    """CORE, and one pair of labels of each document in each step."""

    pair_weight: NonNegativeFloat = 1.0  # of the second task's loss
    positive_share: Annotated[float, Field(ge=0, le=1)] = 0.5  # of pairs whose labels both belong to the document


@dataclass(frozen=True, kw_only=True)
class ConditionalParameters(CoreParameters):
    """CORE, and all other labels of each document where some are given."""

    conditional_weight: NonNegativeFloat = 5.0  # of the second task's loss
    given: PositiveInt = 1  # labels of a document that are given, all where it has fewer
    transform: bool = False  # whether states go through a layer of their own first, as in the released code


class PairNetwork(CoreNetwork):
    """CORE that also says of a pair of labels whether both belong to the document: sigmoid(u · [h_i; h_j])."""

    def __init__(self, encoder: TransformerEncoder, labels: int, parameters: PairParameters) -> None:
        super().__init__(encoder, labels, parameters)
        self.weight, self.positive_share = parameters.pair_weight, parameters.positive_share
        self.pair = nn.Linear(2 * encoder.width, 1, bias=False)

    def loss(self, batch: Batch) -> Tensor:
        """Return CORE's loss and the weighted one of one pair of each document, drawn anew each time."""
        states = self.read(batch.ids, batch.layout, batch.seeds, len(batch.labels))
        n, labels = batch.labels.shape
        pairs = draw_pairs(
            batch.labels,
            torch.rand(2, n, labels, device=batch.labels.device),
            torch.rand(2, n, device=batch.labels.device),
            self.positive_share,
        )
        return summed_loss(self.classify(states), batch.labels) + self.weight * self.pair_loss(states.labels, *pairs)

    def pair_loss(self, states: Tensor, first: Tensor, second: Tensor, both: Tensor, drawn: Tensor) -> Tensor:
        """Return the mean binary cross-entropy of the pairs drawn, 0 where there are none, from (n,C,d) states."""
        chosen = [states.take_along_dim(columns[:, None, None], 1)[:, 0] for columns in (first, second)]
        logits = self.pair(torch.cat(chosen, 1))[:, 0]  # (n,)
        return mean_loss(logits, both, drawn)


class ConditionalNetwork(CoreNetwork):
    """CORE that also says of each label whether it belongs to a document with given others: sigmoid(u · [h_i; h_G])."""

    def __init__(self, encoder: TransformerEncoder, labels: int, parameters: ConditionalParameters) -> None:
        super().__init__(encoder, labels, parameters)
        self.weight, self.given = parameters.conditional_weight, parameters.given
        width, transform = encoder.width, parameters.transform
        self.candidate = _transform(width) if transform else nn.Identity()
        self.condition = _transform(width) if transform else nn.Identity()
        self.pair = nn.Linear(2 * width, 1, bias=transform)

    def loss(self, batch: Batch) -> Tensor:
        """Return CORE's loss and the weighted one of the other labels, the given ones drawn anew each time."""
        states = self.read(batch.ids, batch.layout, batch.seeds, len(batch.labels))
        given = draw_given(batch.labels, torch.rand(batch.labels.shape, device=batch.labels.device), self.given)
        second = self.conditional_loss(states.labels, batch.labels, given)
        return summed_loss(self.classify(states), batch.labels) + self.weight * second

    def conditional_loss(self, states: Tensor, labels: Tensor, given: Tensor) -> Tensor:
        """Return the mean binary cross-entropy of all labels that are not given, of documents with given ones.

        h_G is the mean of the given labels' states; states (n,C,d), labels and given (n,C) bool.
        """
        share = given / given.sum(1, keepdim=True).clamp(min=1)  # (n,C)
        condition = self.condition(share[:, None] @ states)  # (n,1,d)
        candidates = self.candidate(states)
        logits = self.pair(torch.cat([candidates, condition.expand_as(candidates)], 2))[:, :, 0]  # (n,C)
        return mean_loss(logits, labels, ~given & given.any(1, keepdim=True))


def draw_pairs(labels: Tensor, draws: Tensor, coins: Tensor, share: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw a pair of labels for each document: columns of first and second, whether both belong to it, whether any.

    One label is always the document's. The other is too with probability `share`, else none of its own; where only one
    of the two can be had it is that one, and a document without labels has no pair. Either may come first. `draws` is
    (2,n,C), `coins` (2,n), both even in [0,1).
    """
    count, total = labels.sum(1), labels.shape[1]
    possible, others = count > 1, (count > 0) & (count < total)
    both = possible & ((coins[0] < share) | ~others)
    own = draws[0].masked_fill(~labels, -1).argmax(1)
    free = torch.ones_like(labels).scatter(1, own[:, None], False)
    wanted = free & (labels == both[:, None])
    other = draws[1].masked_fill(~wanted, -1).argmax(1)
    swap = coins[1] < 0.5
    return torch.where(swap, other, own), torch.where(swap, own, other), both, possible | others


def draw_given(labels: Tensor, draws: Tensor, count: int) -> Tensor:
    """Choose so many of each document's labels, all where it has fewer: (n,C) bool, from draws in [0,1)."""
    ranks = draws.masked_fill(~labels, -1).argsort(1, descending=True).argsort(1)
    return labels & (ranks < count)


def mean_loss(logits: Tensor, gold: Tensor, counted: Tensor) -> Tensor:
    """Return the mean binary cross-entropy of those that count, 0 where none does."""
    losses = F.binary_cross_entropy_with_logits(logits, gold.float(), reduction="none")
    return (losses * counted).sum() / counted.sum().clamp(min=1)


def _transform(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))


class LacoPairs(Neural):
    """LACO with pairwise label co-occurrence prediction."""

    Parameters = PairParameters

    def make(self, encoder: TransformerEncoder, labels: int) -> PairNetwork:
        """Put CORE's network and the pair's head on the encoder."""
        return PairNetwork(encoder, labels, self.parameters)


class LacoConditional(Neural):
    """LACO with conditional label co-occurrence prediction."""

    Parameters = ConditionalParameters

    def make(self, encoder: TransformerEncoder, labels: int) -> ConditionalNetwork:
        """Put CORE's network and the conditional head on the encoder."""
        return ConditionalNetwork(encoder, labels, self.parameters)

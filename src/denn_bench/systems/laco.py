"""LACO: CORE's network that also learns, from the labels' states, which labels co-occur.

Zhang et al., "Enhancing label correlation feedback in multi-label text classification via multi-task learning",
Findings of ACL 2021. The second task is used only in training: pairs of labels (PLCP), or the remaining labels given
some (CLCP).
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
    """CORE with one pair of labels per document in each step."""

    pair_weight: NonNegativeFloat = 2.0  # of the second task's loss; the code adds the losses of two logits
    positive_share: Annotated[float, Field(ge=0, le=1)] = 0.5  # of pairs whose labels both belong to the document


@dataclass(frozen=True, kw_only=True)
class ConditionalParameters(CoreParameters):
    """CORE with all other labels of each document, given some."""

    conditional_weight: NonNegativeFloat = 5.0  # of the second task's loss
    given: PositiveInt = 1  # number of given labels of a document, or all if it has fewer
    transform: bool = False  # pass states through an extra layer first, as in the released code


class PairNetwork(CoreNetwork):
    """CORE that also predicts whether both labels of a pair belong to the document: sigmoid(u · [h_i; h_j])."""

    def __init__(self, encoder: TransformerEncoder, labels: int, parameters: PairParameters) -> None:
        super().__init__(encoder, labels, parameters)
        self.weight, self.positive_share = parameters.pair_weight, parameters.positive_share
        self.pair = nn.Linear(2 * encoder.width, 1, bias=False)

    def loss(self, batch: Batch) -> Tensor:
        """Return CORE's loss plus the weighted loss of one pair per document, drawn again each time."""
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
        """Return the mean binary cross-entropy of the drawn pairs, 0 if there are none, from (n,C,d) states."""
        chosen = [states.take_along_dim(columns[:, None, None], 1)[:, 0] for columns in (first, second)]
        both_states = F.dropout(torch.cat(chosen, 1), self.dropout, self.training)
        logits = self.pair(both_states)[:, 0]  # (n,)
        return mean_loss(logits, both, drawn)


class ConditionalNetwork(CoreNetwork):
    """CORE that also predicts each label of a document from given other labels: sigmoid(u · [h_i; h_G])."""

    def __init__(self, encoder: TransformerEncoder, labels: int, parameters: ConditionalParameters) -> None:
        super().__init__(encoder, labels, parameters)
        self.weight, self.given = parameters.conditional_weight, parameters.given
        width, transform = encoder.width, parameters.transform
        self.candidate = _transform(width) if transform else nn.Identity()
        self.condition = _transform(width) if transform else nn.Identity()
        self.pair = nn.Linear(2 * width, 1, bias=transform)

    def loss(self, batch: Batch) -> Tensor:
        """Return CORE's loss plus the weighted loss of the other labels; the given ones are drawn again each time."""
        states = self.read(batch.ids, batch.layout, batch.seeds, len(batch.labels))
        given = draw_given(batch.labels, torch.rand(batch.labels.shape, device=batch.labels.device), self.given)
        second = self.conditional_loss(states.labels, batch.labels, given)
        return summed_loss(self.classify(states), batch.labels) + self.weight * second

    def conditional_loss(self, states: Tensor, labels: Tensor, given: Tensor) -> Tensor:
        """Return the mean binary cross-entropy of the labels that are not given, over documents with given ones.

        h_G is the mean of the given labels' states; states (n,C,d), labels and given (n,C) bool.
        """
        share = given / given.sum(1, keepdim=True).clamp(min=1)  # (n,C)
        condition = self.condition(share[:, None] @ states)  # (n,1,d)
        candidates = self.candidate(states)
        logits = self.pair(torch.cat([candidates, condition.expand_as(candidates)], 2))[:, :, 0]  # (n,C)
        return mean_loss(logits, labels, ~given & given.any(1, keepdim=True))


def draw_pairs(labels: Tensor, draws: Tensor, coins: Tensor, share: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw a pair of labels per document: both columns, whether both belong to the document, whether there is a pair.

    One label always belongs to the document. The other also does with probability `share`; otherwise it does not. If
    only one of these is possible, it is used, and a document without labels has no pair. The order is random. `draws`
    is (2,n,C), `coins` (2,n), both uniform in [0,1).
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
    """Choose this many of each document's labels, or all if it has fewer: (n,C) bool, from draws in [0,1)."""
    ranks = draws.masked_fill(~labels, -1).argsort(1, descending=True).argsort(1)
    return labels & (ranks < count)


def mean_loss(logits: Tensor, gold: Tensor, counted: Tensor) -> Tensor:
    """Return the mean binary cross-entropy of those that count, 0 if there are none."""
    losses = F.binary_cross_entropy_with_logits(logits, gold.float(), reduction="none")
    return (losses * counted).sum() / counted.sum().clamp(min=1)


def _transform(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))


class LacoPairs(Neural):
    """LACO with pairwise label co-occurrence prediction."""

    Parameters = PairParameters

    def make(self, encoder: TransformerEncoder, labels: int) -> PairNetwork:
        """Add CORE's network and the pair's head to the encoder."""
        return PairNetwork(encoder, labels, self.parameters)


class LacoConditional(Neural):
    """LACO with conditional label co-occurrence prediction."""

    Parameters = ConditionalParameters

    def make(self, encoder: TransformerEncoder, labels: int) -> ConditionalNetwork:
        """Add CORE's network and the conditional head to the encoder."""
        return ConditionalNetwork(encoder, labels, self.parameters)

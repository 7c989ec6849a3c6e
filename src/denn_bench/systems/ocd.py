"""OCD (Tsai & Lee, 2020): a decoder that learns from its own label sequences, in any order.

Optimal completion distillation: every step of the decoder's own sequence learns the labels that are still missing. A
second, logistic decoder (binary relevance) can be trained with it and take part in decoding. The authors' macro-F1 is
the harmonic mean of macro precision and macro recall, 2PR / (P + R), so their 58.5 on AAPD is not the mean of the
labels' F1, which we report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.encoders.tokens import Tokens
from denn.errors import ConfigError
from denn.protocols import Progress
from denn.training.bounds import Layers
from denn.training.network import Batch
from denn.training.neural import Neural
from denn_bench.core.beam import Beams, beam_search, best_labels, label_marginals
from denn_bench.core.prior import log_odds
from denn_bench.core.sets import optimal_completion_loss
from denn_bench.encoders.words import WordEncoder
from denn_bench.systems.rollout import write
from denn_bench.systems.sequences import (
    MARGIN,
    Beam,
    DotAttention,
    Memory,
    SequenceNetwork,
    SequenceParameters,
    Share,
)

Decoding = Literal["beam", "rescoring", "joint"]


@dataclass(frozen=True, kw_only=True)
class OcdParameters(SequenceParameters):
    """The authors' settings on AAPD; the order of labels has no effect."""

    label_width: PositiveInt | None = 512
    label_dropout: Share = 0.5
    head_dropout: Share | None = 0.0
    roll_in: Literal["sampled", "correct_first"] = "sampled"  # correct_first: the decoder emits its own labels first
    logistic_weight: NonNegativeFloat = 1.0  # weight of the logistic decoder's loss; 0: no such decoder, as released
    logistic_layers: Annotated[int, Field(ge=0, le=100)] = 3
    logistic_width: PositiveInt = 512
    decoding: Decoding = "beam"  # rescoring, joint: use the logistic decoder's odds after or during the search
    decoder_layers: Layers = 2
    max_labels: PositiveInt | None = 23  # with the end, the 24 steps of the authors
    beam: Beam = 6
    batch_size: PositiveInt = 128
    epochs: NonNegativeInt = 50
    learning_rate: PositiveFloat = 5e-4


class BatchNorm(nn.BatchNorm1d):
    """Batch norm that uses running statistics for a batch of one text, which has no variance."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (n,d) values."""
        if self.training and len(x) == 1:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


class LogisticDecoder(nn.Module):
    """Score every label independently from the last word's state and the context that it attends to.

    q = U layers(h_T),   c = attention(q),   z = head(tanh(W [q; c]))
    with layers of a linear map, batch norm, leaky ReLU and dropout each.
    """

    def __init__(self, labels: int, p: OcdParameters) -> None:
        super().__init__()
        wide, layers = 2 * p.hidden, nn.ModuleList()
        for number in range(p.logistic_layers):
            layers.append(nn.Linear(p.logistic_width if number else wide, p.logistic_width))
            layers.append(BatchNorm(p.logistic_width, momentum=0.5))
        self.layers, self.dropout = layers, p.dropout
        self.back = nn.Linear(p.logistic_width if p.logistic_layers else wide, wide)
        self.attention = DotAttention(wide, wide)
        self.joined = nn.Linear(2 * wide, wide)
        self.head = nn.Linear(wide, labels)

    def forward(self, memory: Memory) -> Tensor:
        """Return the (n,L) float32 logits, log p/(1 − p), of texts."""
        texts = torch.arange(len(memory.states), device=memory.states.device)
        x = memory.states[texts, memory.real.sum(1) - 1]  # (n,2h) of the last real word
        for layer in self.layers:
            if isinstance(layer, BatchNorm):
                x = F.dropout(F.leaky_relu(layer(x.float())), self.dropout, self.training)
            else:
                x = layer(x)
        query = self.back(x)
        context = self.attention(query, memory).to(query.dtype)
        logits: Tensor = self.head(torch.tanh(self.joined(torch.cat([query, context], 1)))).float()
        return logits


class OcdNetwork(SequenceNetwork):
    """Sample labels in training, and learn at each step which labels are missing.

    L = KL(π* ‖ p) as the mean over live steps, plus `logistic_weight` times the logistic decoder's cross-entropy.
    """

    p: OcdParameters

    def __init__(self, encoder: WordEncoder, labels: int, p: OcdParameters) -> None:
        super().__init__(encoder, labels, p, "lstm", DotAttention(2 * p.hidden, 2 * p.hidden), feeds_context=False)
        self.logistic = LogisticDecoder(labels, p) if p.logistic_weight else None

    @property
    def limit(self) -> int:
        """Return the maximum number of tokens of a text, including the end."""
        return min(self.p.max_labels or int(self.longest) + MARGIN, self.labels) + 1

    def start(self, tokens: Tokens, labels: Tensor, parameters: Any, progress: Progress, sampled: int) -> None:
        """Initialise the bias of the logistic decoder with the log-odds of the labels."""
        if self.logistic is not None:
            with torch.no_grad():
                self.logistic.head.bias.copy_(log_odds(labels))

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of the decoder's own sequences, plus that of the logistic decoder."""
        memory, state = self.read(batch.ids, batch.layout)
        tokens, logits = write(
            lambda last, now: self.step(last, now, memory), state,
            limit=self.limit, start=self.start_token, end=self.end,
            first=batch.labels if self.p.roll_in == "correct_first" else None,
        )  # fmt: skip
        loss = optimal_completion_loss(logits, tokens, batch.labels)
        if self.logistic is None:
            return loss
        logistic_loss = F.binary_cross_entropy_with_logits(self.logistic(memory), batch.labels.float())
        return loss + self.p.logistic_weight * logistic_loss

    def infer(self, ids: Tensor, layout: Layout) -> dict[str, Tensor]:
        """Return the labels' shares of the beams' probability, the best beam's labels, and the logistic scores."""
        memory, state = self.read(ids, layout)
        odds = self.logistic(memory) if self.logistic is not None else None  # (n,L), their logarithms
        fusion = F.pad(odds, (0, 1)) if odds is not None and self.p.decoding == "joint" else None  # the end's odds: 1
        beams = beam_search(
            lambda last, now: self.step(last, now, memory), state, len(memory.states), width=self.p.beam,
            limit=self.limit, start=self.start_token, end=self.end, fusion=fusion, normalise=self.p.length_normalised,
        )  # fmt: skip
        if odds is not None and self.p.decoding == "rescoring":
            beams = rescored(beams, odds)
        parts = {"final": label_marginals(beams, self.labels), "sequence": best_labels(beams, self.labels)}
        return parts if odds is None else {**parts, "logistic": torch.sigmoid(odds)}


class Ocd(Neural):
    """The row OCD of the paper's tables; the paper does not say which decoding it used."""

    Parameters = OcdParameters

    def make(self, encoder: WordEncoder, labels: int) -> OcdNetwork:
        """Add LSTM layers, an LSTM decoder and, if requested, a logistic one to the words."""
        p = self.parameters
        if p.decoding != "beam" and not p.logistic_weight:
            raise ConfigError(
                f"Got the decoding {p.decoding!r} with logistic_weight 0, expected a weight above 0: this "
                "decoding needs the logistic decoder. Set logistic_weight=1, or decoding=beam."
            )
        return OcdNetwork(encoder, labels, p)


def rescored(beams: Beams, odds: Tensor) -> Beams:
    """Return beams with the score Σ_{l in y} o_l of (n,L) log-odds o, in their new order.

    Π_{l in y} p_l/(1 − p_l) is the logistic decoder's probability of the set y, up to a constant. As in the authors'
    code, it alone chooses among the beams that the sequence decoder found.
    """
    gains = F.pad(odds, (0, 1)).gather(1, beams.tokens.flatten(1)).view(beams.tokens.shape)  # 0 at ends
    logs = gains.sum(2).masked_fill(beams.logs.isinf(), -torch.inf)
    scores, order = logs.sort(dim=1, descending=True, stable=True)
    tokens = beams.tokens.gather(1, order[:, :, None].expand_as(beams.tokens))
    return Beams(tokens, scores, scores)

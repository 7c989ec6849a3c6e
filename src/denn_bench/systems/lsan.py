"""LSAN (Xiao et al. 2019): label-specific features of a text, by self-attention and by the words of label names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.training.bounds import Length
from denn.training.neural import Neural
from denn.types import Corpus
from denn_bench.arxiv import readable_names
from denn_bench.core.label_attention import attend, attend_plainly
from denn_bench.encoders.recurrent import Recurrent
from denn_bench.encoders.words import WordEncoder, name_vectors
from denn_bench.systems.word_network import PerLabelNetwork, PerLabelParameters

AT_ONCE = 2**30  # maximum size of a tensor with a row per text and label; more texts are processed in parts
BETAS = (0.9, 0.99)  # of Adam, in the authors' code


@dataclass(frozen=True, kw_only=True)
class LsanParameters(PerLabelParameters):
    """The authors' settings; each direction of the LSTM is as wide as word and label vectors."""

    max_length: Length = 500
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.3  # of the words' vectors
    attention_width: PositiveInt = 200
    scorer: Literal["per_label", "mean"] = (
        "per_label"  # the paper's, applied to every label; or the code's, applied to their mean
    )
    scorer_width: PositiveInt = 256  # of the paper's


class LsanNetwork(PerLabelNetwork):
    """Score labels by two (n,L,2h) views of the states H of a BiLSTM, mixed with one weight per label.

    By self-attention: softmax over words of W₂ tanh(W₁ H). By the frozen vectors E of the labels' words: (E Hᵀ) H, for
    each direction separately and without softmax. Padding is masked in both.
    """

    encoder: WordEncoder
    label_vectors: Tensor

    def __init__(self, encoder: WordEncoder, labels: int, parameters: LsanParameters) -> None:
        super().__init__()
        p, width = parameters, 2 * encoder.width
        self.encoder, self.settings = encoder, p
        self.layers = Recurrent("lstm", encoder.width, encoder.width)
        self.inner = nn.Linear(width, p.attention_width)  # W₁
        self.outer = nn.Linear(p.attention_width, labels)  # W₂
        self.weigh_label = nn.Linear(width, 1)
        self.weigh_self = nn.Linear(width, 1)
        self.head: nn.Module = nn.Linear(width, labels)
        if p.scorer == "per_label":
            self.head = nn.Sequential(nn.Linear(width, p.scorer_width), nn.ReLU(), nn.Linear(p.scorer_width, 1))
        self.register_buffer("label_vectors", torch.zeros(labels, encoder.width))
        self.at_once = max(1, AT_ONCE // (labels * max(encoder.max_length, width)))

    def prepare(self, corpus: Corpus) -> None:
        """Assign to every label the mean vector of the words in its name."""
        self.label_vectors.copy_(name_vectors(self.encoder, readable_names(corpus), self.settings.word_vectors))

    def groups(self, parameters: Any) -> list[dict[str, Any]]:
        """Use Adam's betas from the authors' code."""
        return [group | {"betas": BETAS} for group in super().groups(parameters)]

    @property
    def bias(self) -> Tensor:
        """The bias of each label, or the one that all labels share."""
        last = self.head[-1] if isinstance(self.head, nn.Sequential) else self.head
        return cast(nn.Linear, last).bias

    def forward(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None) -> Tensor:
        """Return the (n,L) logits of packed texts."""
        vectors, real = self.encoder(ids, layout)
        states, _ = self.layers(F.dropout(vectors, self.settings.dropout, self.training), layout)  # (n,T,2h)
        pieces = zip(torch.split(states, self.at_once), torch.split(real, self.at_once), strict=True)
        return torch.cat([self.classify(self.mix(*piece)) for piece in pieces])

    def mix(self, states: Tensor, real: Tensor) -> Tensor:
        """Return the (n,L,2h) mixture of both kinds of attention."""
        by_self = attend(self.outer(torch.tanh(self.inner(states))), real, states)
        halves = states.chunk(2, dim=2)  # forward, backward
        by_label = torch.cat([attend_plainly(self.label_vectors, half) for half in halves], dim=2)
        label, own = torch.sigmoid(self.weigh_label(by_label)), torch.sigmoid(self.weigh_self(by_self))  # (n,L,1)
        share = label / (label + own)
        return share * by_label + (1 - share) * by_self

    def classify(self, mixed: Tensor) -> Tensor:
        """Return the (n,L) logits of (n,L,2h) views: one scorer applied to each label, or to the mean of all."""
        if self.settings.scorer == "mean":
            mixed = mixed.mean(1)  # (n,2h)
        logits: Tensor = self.head(mixed)
        return logits.flatten(1)  # (n,L,1) of one scorer


class Lsan(Neural):
    """Label-Specific Attention Network."""

    Parameters = LsanParameters
    parameters: LsanParameters

    def make(self, encoder: WordEncoder, labels: int) -> LsanNetwork:
        """Add both attentions to a BiLSTM."""
        return LsanNetwork(encoder, labels, self.parameters)

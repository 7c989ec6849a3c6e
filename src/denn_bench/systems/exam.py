"""EXAM (Du et al. 2019): each label interacts with every word, and one network judges the row of interactions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.training.bounds import Layers
from denn.training.neural import Neural
from denn_bench.core.label_attention import at_the_end, interact
from denn_bench.encoders.recurrent import Recurrent
from denn_bench.encoders.words import WordEncoder
from denn_bench.systems.word_network import PerLabelNetwork, PerLabelParameters

AT_ONCE = 2**30  # maximum size of a tensor with a row per text and label; more texts are processed in parts


@dataclass(frozen=True, kw_only=True)
class ExamParameters(PerLabelParameters):
    """The settings of the authors' script for multi-label corpora, with 320 positions instead of 30."""

    word_width: PositiveInt = 256
    state_width: PositiveInt = 1024  # of the GRU, and of the labels' vectors
    layers: Layers = 2
    hidden: PositiveInt = 60  # hidden width of the network that judges a label's row
    batch_size: PositiveInt = 128


class ExamNetwork(PerLabelNetwork):
    """Judge the products I_l = (e_l · h_1, …, e_l · h_W) of a label with W positions by one network for all labels.

    logit_l = v · relu(W I_l + b) + c; a text takes the last positions, and those before it are 0.
    """

    encoder: WordEncoder

    def __init__(self, encoder: WordEncoder, labels: int, parameters: ExamParameters) -> None:
        super().__init__()
        p = parameters
        self.encoder, self.settings = encoder, p
        self.layers = Recurrent("gru", encoder.width, p.state_width, layers=p.layers, both_ways=False)
        self.label_vectors = nn.Parameter(torch.randn(labels, p.state_width) / p.state_width**0.5)
        self.aggregate = nn.Linear(encoder.max_length, p.hidden)
        self.head = nn.Linear(p.hidden, 1)
        self.at_once = max(1, AT_ONCE // (labels * p.hidden))

    @property
    def bias(self) -> Tensor:
        """The bias that all labels share."""
        return self.head.bias

    def forward(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None) -> Tensor:
        """Return the (n,L) logits of packed texts."""
        vectors, real = self.encoder(ids, layout)
        states, _ = self.layers(vectors, layout)
        states = at_the_end(states, real)  # (n,T,h)
        return torch.cat([self.judge(some) for some in torch.split(states, self.at_once)])

    def judge(self, states: Tensor) -> Tensor:
        """Return the (n,L) logits of (n,T,h) states."""
        rows = interact(self.label_vectors, states, self.aggregate.weight) + self.aggregate.bias  # (n,L,k)
        logits: Tensor = self.head(torch.relu(rows))
        return logits.squeeze(2)


class Exam(Neural):
    """EXplicit interAction Model."""

    Parameters = ExamParameters
    parameters: ExamParameters

    def make(self, encoder: WordEncoder, labels: int) -> ExamNetwork:
        """Add label vectors and the shared network to a GRU."""
        return ExamNetwork(encoder, labels, self.parameters)

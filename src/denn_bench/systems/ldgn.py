"""LDGN (Ma et al. 2021): label-specific features of a text, propagated along two graphs between the labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.encoders.tokens import Tokens
from denn.errors import ConfigError
from denn.protocols import Progress
from denn.training.bounds import Length
from denn.training.neural import Neural
from denn.types import Corpus
from denn_bench.arxiv import readable_names
from denn_bench.core.label_attention import attend
from denn_bench.core.label_graph import co_occurrence, propagate
from denn_bench.encoders.recurrent import Recurrent
from denn_bench.encoders.words import WordEncoder, name_vectors
from denn_bench.systems.word_network import PerLabelNetwork, PerLabelParameters

STARTED = 8  # texts whose scores set the initial scale
SMALLEST = 1e-6  # standard deviation of scores that are taken as different
MOST_BYTES = 8_000_000_000  # maximum size of a batch's graphs; training holds a few such tensors


@dataclass(frozen=True, kw_only=True)
class LdgnParameters(PerLabelParameters):
    """Parameters; the authors' code is not known, so the BiLSTM has LSAN's sizes, and those of the graphs are ours."""

    max_length: Length = 500
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.3  # of the words' vectors
    graph_width: PositiveInt = (
        512  # width of a label's features after each convolution, and of the products for the edges
    )


class LdgnNetwork(PerLabelNetwork):
    """Attend with each label to the states of a BiLSTM, and propagate the result along two graphs.

    u_l = Σ_t softmax_t(c_l · h_t) h_t,  V = f(Â U W₁),  V' = f(B̂ V W₂),  logit_l = w_l · [v_l; v'_l] + b_l, where
    A_ij = P(i | j) in the training split, B = sigmoid((U W_a)(U W_b)ᵀ), and a hat adds each label's edge to itself, as
    strong as all its others, and scales by the degrees (`propagate`).
    """

    encoder: WordEncoder
    adjacency: Tensor

    def __init__(self, encoder: WordEncoder, labels: int, parameters: LdgnParameters) -> None:
        super().__init__()
        p, states = parameters, 2 * encoder.width
        _check_size(labels, p.batch_size)
        self.encoder, self.settings = encoder, p
        self.layers = Recurrent("lstm", encoder.width, encoder.width)
        self.label_vectors = nn.Parameter(torch.zeros(labels, states))
        self.static = nn.Linear(states, p.graph_width, bias=False)  # W₁
        self.source = nn.Linear(states, p.graph_width, bias=False)  # W_a
        self.target = nn.Linear(states, p.graph_width, bias=False)  # W_b
        self.dynamic = nn.Linear(p.graph_width, p.graph_width, bias=False)  # W₂
        self.head = nn.Linear(2 * p.graph_width, labels)  # row l is for label l's features alone
        self.register_buffer("adjacency", torch.zeros(labels, labels))
        self.at_once = max(1, MOST_BYTES // (4 * labels * max(encoder.max_length, states, labels)))

    def prepare(self, corpus: Corpus) -> None:
        """Initialise every label with the words in its name, for both directions, and count co-occurring labels."""
        vectors = name_vectors(self.encoder, readable_names(corpus), self.settings.word_vectors)
        with torch.no_grad():
            self.label_vectors.copy_(vectors.repeat(1, 2))
        self.adjacency.copy_(co_occurrence(corpus.labels.matrix(corpus.train)))

    @property
    def bias(self) -> Tensor:
        """The bias of each label."""
        return self.head.bias

    def start(self, tokens: Tokens, labels: Tensor, parameters: Any, progress: Progress, sampled: int) -> None:
        """Scale label vectors, W_a and W_b so that attention and edges of some texts differ from the start.

        As drawn, their products are so small that every word and every edge has the same weight.
        """
        super().start(tokens, labels, parameters, progress, sampled)
        some = tokens.first(STARTED)
        self.eval()
        with torch.no_grad():
            states, real = self.read(*some.to(self.device).pack(torch.arange(len(some))))
            scores = (states @ self.label_vectors.T)[real]  # (words,L)
            if scores.numel() > 1:  # one score has no standard deviation
                self.label_vectors.div_(scores.std().clamp(min=SMALLEST))
            found = attend(states @ self.label_vectors.T, real, states)
            products = self.source(found) @ self.target(found).transpose(1, 2)  # (n,L,L)
            size = products.square().mean().sqrt().clamp(min=SMALLEST)
            for weight in (self.source.weight, self.target.weight):
                weight.div_(size.sqrt())

    def read(self, ids: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Return the (n,T,2h) states of packed texts and the (n,T) mask of real words."""
        vectors, real = self.encoder(ids, layout)
        states, _ = self.layers(F.dropout(vectors, self.settings.dropout, self.training), layout)
        return states, real

    def forward(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None) -> Tensor:
        """Return the (n,L) logits of packed texts."""
        states, real = self.read(ids, layout)
        pieces = zip(torch.split(states, self.at_once), torch.split(real, self.at_once), strict=True)
        return torch.cat([self.classify(attend(some @ self.label_vectors.T, r, some)) for some, r in pieces])

    def classify(self, found: Tensor) -> Tensor:
        """Return the (n,L) logits of (n,L,2h) components."""
        first = F.leaky_relu(propagate(self.adjacency, self.static(found)))  # (n,L,g)
        edges = torch.sigmoid(self.source(found) @ self.target(found).transpose(1, 2))  # (n,L,L)
        second = F.leaky_relu(propagate(edges, self.dynamic(first)))
        both = torch.cat([first, second], dim=2)
        return torch.einsum("nlg,lg->nl", both, self.head.weight) + self.head.bias


class Ldgn(Neural):
    """Label-specific Dual Graph neural Network."""

    Parameters = LdgnParameters
    parameters: LdgnParameters

    def make(self, encoder: WordEncoder, labels: int) -> LdgnNetwork:
        """Add label attention and both graphs to a BiLSTM."""
        return LdgnNetwork(encoder, labels, self.parameters)


def _check_size(labels: int, batch: int) -> None:
    """Reject batches whose graphs do not fit."""
    needed, fitting = 4 * batch * labels**2, MOST_BYTES // (4 * labels**2)
    if needed > MOST_BYTES:
        remedy = f"Set batch_size to at most {fitting}" if fitting else "Use a method without them, such as lsan"
        raise ConfigError(
            f"Got {labels} labels and batches of {batch} texts: LDGN's graphs between labels, one for each text, take "
            f"{needed:,} bytes, expected at most {MOST_BYTES:,}. {remedy}."
        )

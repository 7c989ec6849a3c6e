"""LEAM (Wang et al. 2018): words and labels share a space; words near labels determine the text's vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.errors import ConfigError
from denn.training.network import Batch
from denn.training.neural import Neural
from denn.types import Corpus
from denn_bench.arxiv import readable_names
from denn_bench.core.label_attention import attend
from denn_bench.encoders.words import WordEncoder, name_vectors
from denn_bench.systems.core_network import summed_loss
from denn_bench.systems.word_network import PerLabelNetwork, PerLabelParameters

AT_ONCE = 2**30  # maximum size of a tensor with a row per text and label; more texts are processed in parts
MOST_WEIGHTS = 200_000_000  # of the convolution from labels to labels


@dataclass(frozen=True, kw_only=True)
class LeamParameters(PerLabelParameters):
    """Two networks have this name: the paper's, joint, and that of the authors' script for multi-label corpora.

    The default is the latter, per_label: it was written for this task and takes any number of labels.
    """

    variant: Literal["per_label", "joint"] = "per_label"
    window: PositiveInt = 10  # words of the convolution; per_label
    label_window: PositiveInt = 55  # words of the convolution of cosines; joint
    hidden: PositiveInt = 300  # joint
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5  # before each linear map
    label_weight: NonNegativeFloat = 1.0  # weight of the loss that classifies each label as itself; joint


class ByLabelNetwork(PerLabelNetwork):
    """Attend with each label to words in their windows, h = relu(conv x), and score it with its own linear map.

    a_l = softmax over words of e_l · h_t,  m_l = Σ_t a_lt h_t,  logit_l = w_l · m_l + b_l
    """

    encoder: WordEncoder

    def __init__(self, encoder: WordEncoder, labels: int, parameters: LeamParameters) -> None:
        super().__init__()
        self.encoder, self.settings = encoder, parameters
        self.label_vectors = nn.Parameter(torch.zeros(labels, encoder.width))
        self.convolution = nn.Conv1d(encoder.width, encoder.width, parameters.window)
        self.head = nn.Linear(encoder.width, labels)  # row l is for label l's vector alone
        self.at_once = max(1, AT_ONCE // (labels * max(encoder.max_length, encoder.width)))

    def prepare(self, corpus: Corpus) -> None:
        """Initialise every label with the mean vector of the words in its name."""
        _start_labels(self.label_vectors, self.encoder, corpus, self.settings)

    @property
    def bias(self) -> Tensor:
        """The bias of each label."""
        return self.head.bias

    def forward(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None) -> Tensor:
        """Return the (n,L) logits of packed texts."""
        vectors, real = self.encoder(ids, layout)
        states = torch.relu(_same(self.convolution, vectors.transpose(1, 2))).transpose(1, 2)  # (n,T,d)
        pieces = zip(torch.split(states, self.at_once), torch.split(real, self.at_once), strict=True)
        return torch.cat([self.classify(*piece) for piece in pieces])

    def classify(self, states: Tensor, real: Tensor) -> Tensor:
        """Return the (n,L) logits of (n,T,d) states."""
        seen = attend(states @ self.label_vectors.T, real, states)  # (n,L,d)
        seen = F.dropout(seen, self.settings.dropout, self.training)
        return torch.einsum("nld,ld->nl", seen, self.head.weight) + self.head.bias


class JointNetwork(PerLabelNetwork):
    """Weight each word by its nearest label, and classify the weighted sum of the word vectors.

    G = cosine of labels and words,  u = relu(conv G),  β = softmax over words of max_l u_l,  z = Σ_t β_t x_t
    """

    encoder: WordEncoder

    def __init__(self, encoder: WordEncoder, labels: int, parameters: LeamParameters) -> None:
        super().__init__()
        p, weights = parameters, labels * labels * parameters.label_window
        if weights > MOST_WEIGHTS:
            raise ConfigError(
                f"Got {labels} labels, for which LEAM's joint variant has a convolution of {weights:,} weights; "
                f"expected at most {MOST_WEIGHTS:,}. Use variant=per_label, or fewer than the {p.label_window} words "
                "of label_window."
            )
        self.encoder, self.settings = encoder, p
        self.label_vectors = nn.Parameter(torch.zeros(labels, encoder.width))
        self.convolution = nn.Conv1d(labels, labels, p.label_window)
        self.hidden = nn.Linear(encoder.width, p.hidden)
        self.head = nn.Linear(p.hidden, labels)

    def prepare(self, corpus: Corpus) -> None:
        """Initialise every label with the mean vector of the words in its name."""
        _start_labels(self.label_vectors, self.encoder, corpus, self.settings)

    @property
    def bias(self) -> Tensor:
        """The bias of each label."""
        return self.head.bias

    def forward(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None) -> Tensor:
        """Return the (n,L) logits of packed texts."""
        vectors, real = self.encoder(ids, layout)
        cosine = F.normalize(self.label_vectors, dim=1) @ F.normalize(vectors, dim=2).transpose(1, 2)  # (n,L,T)
        nearest = torch.relu(_same(self.convolution, cosine)).amax(1)  # (n,T)
        return self.classify(attend(nearest[:, :, None], real, vectors).squeeze(1))

    def classify(self, vectors: Tensor) -> Tensor:
        """Return the (n,L) logits of (n,d) vectors, of texts or of labels."""
        hidden = torch.relu(self.hidden(F.dropout(vectors, self.settings.dropout, self.training)))
        logits: Tensor = self.head(F.dropout(hidden, self.settings.dropout, self.training))
        return logits

    def loss(self, batch: Batch) -> Tensor:
        """Return the texts' binary cross-entropy plus that of the label vectors, each of its own label."""
        logits = self.classify(self.label_vectors).float()  # (L,L)
        own = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
        return super().loss(batch) + self.settings.label_weight * summed_loss(logits, own)


class Leam(Neural):
    """Label-Embedding Attentive Model."""

    Parameters = LeamParameters
    parameters: LeamParameters

    def make(self, encoder: WordEncoder, labels: int) -> ByLabelNetwork | JointNetwork:
        """Create the variant's network."""
        kind = JointNetwork if self.parameters.variant == "joint" else ByLabelNetwork
        return kind(encoder, labels, self.parameters)


def _same(convolution: nn.Conv1d, values: Tensor) -> Tensor:
    """Convolve (n,c,T) values with zero padding that keeps T; an even width has one more position after than before."""
    width = convolution.kernel_size[0]
    found: Tensor = convolution(F.pad(values, ((width - 1) // 2, width // 2)))
    return found


def _start_labels(label_vectors: nn.Parameter, encoder: WordEncoder, corpus: Corpus, settings: LeamParameters) -> None:
    with torch.no_grad():
        label_vectors.copy_(name_vectors(encoder, readable_names(corpus), settings.word_vectors))

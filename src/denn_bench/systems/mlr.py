"""ML-Reasoner: every round scores all labels again, given the scores of the previous round.

Wang, Ridley, Su, Qu and Dai, Information Processing and Management 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder
from denn.methods.classifier import Classifier, ClassifierParameters
from denn.protocols import Progress
from denn.training.head import start_head
from denn.training.network import Batch, Network
from denn.training.neural import Neural
from denn_bench.encoders.words import WordEncoder
from denn_bench.systems.word_parameters import WordParameters

WIDTHS = (3, 4, 5)  # words under a filter of the TextCNN

Rounds = Annotated[int, Field(ge=1, le=100)]


@dataclass(frozen=True, kw_only=True)
class MlrParameters(ClassifierParameters):
    """A pre-trained encoder and the rounds on it."""

    rounds: Rounds = 2  # T
    label_width: PositiveInt = 300  # of a label's vector


@dataclass(frozen=True, kw_only=True)
class MlrTextCnnParameters(WordParameters):
    """Convolutions over words and the rounds on them."""

    rounds: Rounds = 2  # T
    label_width: PositiveInt = 300  # of a label's vector
    filters: PositiveInt = 100  # of each of the widths
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5  # before the head
    learning_rate: PositiveFloat = 1e-3  # Adam's own; the original's 2e-3 is that of Adamax


class Reasoner(nn.Module):
    """Pass the label scores of a round to the next: a vector per label, attention, and a map to the labels."""

    def __init__(self, width: int, labels: int, label_width: int) -> None:
        super().__init__()
        self.text = nn.Linear(width, width)  # x_e starts as the text vector itself
        nn.init.eye_(self.text.weight)
        nn.init.zeros_(self.text.bias)
        self.label_vectors = nn.Parameter(torch.randn(labels, label_width) / label_width**0.5)
        self.attention = nn.Linear(width + label_width, 1)
        self.context = nn.Linear(label_width, labels, bias=False)  # the label columns of the map from [x_e; l_att]

    def forward(self, text: Tensor, plain: Tensor, rounds: int) -> Tensor:
        """Return the (T,n,L) logits of all rounds for (n,d) text vectors x_e and their (n,L) plain logits W x_e + b.

        With z_0 = 0 and l'_j = z_{t−1,j} l_j: a = softmax_j(w·[x_e; l'_j] + b), l_att = Σ_j a_j l'_j,
        z_t = sigmoid(W x_e + b + V l_att). So the first round is the plain classifier. Neither w·l'_j = z_j (w·l_j)
        nor the sum needs the (n,L,width) vectors l'. The text's part of w is the same for all j and does not change a.
        """
        width = text.shape[1]
        from_text, from_labels = self.attention.weight[0, :width], self.attention.weight[0, width:]
        bias = text @ from_text + self.attention.bias  # (n,)
        worth = self.label_vectors @ from_labels  # (L,)
        believed, found = torch.zeros_like(plain), []
        for _ in range(rounds):
            shares = torch.softmax((believed * worth + bias[:, None]).float(), dim=1)  # (n,L)
            context = (shares * believed) @ self.label_vectors  # (n,label_width)
            found.append((plain + self.context(context)).float())
            believed = torch.sigmoid(found[-1])
        return torch.stack(found)


class MlrNetwork(Classifier):
    """The rounds on a transformer's embedding; round 1 starts as the plain classifier."""

    def __init__(self, encoder: TransformerEncoder, labels: int, parameters: MlrParameters) -> None:
        super().__init__(encoder, labels, parameters.dropout)
        self.rounds = parameters.rounds
        self.reasoner = Reasoner(encoder.width, labels, parameters.label_width)

    def reason(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None) -> Tensor:
        """Return the (T,n,L) logits of all rounds."""
        text = self.reasoner.text(self.scaled_embeddings(ids, layout, seeds))
        text = F.dropout(text, self.dropout, self.training)
        found: Tensor = self.reasoner(text, self.head(text), self.rounds)
        return found

    def forward(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None) -> Tensor:
        """Return the (n,L) logits of the last round."""
        return self.reason(ids, layout, seeds)[-1]

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean over all rounds of their cross-entropy."""
        return over_rounds(self.reason(batch.ids, batch.layout, batch.seeds), batch.labels)


class MlrTextCnnNetwork(Network):
    """The rounds on the maximum response of each filter in a text."""

    encoder: WordEncoder

    def __init__(self, encoder: WordEncoder, labels: int, parameters: MlrTextCnnParameters) -> None:
        super().__init__()
        p, width = parameters, len(WIDTHS) * parameters.filters
        self.encoder, self.rounds, self.dropout = encoder, p.rounds, p.dropout
        convolutions = [nn.Conv1d(encoder.width, p.filters, size) for size in WIDTHS]
        for (
            convolution
        ) in convolutions:  # torch's default initialisation is so small that words initially make no difference
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        self.convolutions = nn.ModuleList(convolutions)
        self.reasoner = Reasoner(width, labels, p.label_width)
        self.head = nn.Linear(width, labels)

    def start(self, tokens: Tokens, labels: Tensor, parameters: Any, progress: Progress, sampled: int) -> None:
        """Initialise the head's bias with the log-odds of each label."""
        start_head(self.head, torch.empty(0), labels, 0, parameters.seed)

    def features(self, ids: Tensor, layout: Layout) -> Tensor:
        """Return (n, widths · filters) responses; texts shorter than a filter are padded with zeros."""
        vectors, real = self.encoder(ids, layout)
        vectors, places = vectors.transpose(1, 2), torch.arange(real.shape[1], device=ids.device)  # (n,d,T)
        found = []
        for size, convolution in zip(WIDTHS, self.convolutions, strict=True):
            answers = F.relu(convolution(F.pad(vectors, (0, size - 1))))  # (n,filters,T)
            within = places < (real.sum(1, keepdim=True) - size + 1).clamp(min=1)  # (n,T)
            found.append((answers * within[:, None]).amax(2))
        return torch.cat(found, 1)

    def reason(self, ids: Tensor, layout: Layout) -> Tensor:
        """Return the (T,n,L) logits of all rounds."""
        text = F.dropout(self.reasoner.text(self.features(ids, layout)), self.dropout, self.training)
        found: Tensor = self.reasoner(text, self.head(text), self.rounds)
        return found

    def forward(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None) -> Tensor:
        """Return the (n,L) logits of the last round."""
        return self.reason(ids, layout)[-1]

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean over all rounds of their cross-entropy."""
        return over_rounds(self.reason(batch.ids, batch.layout), batch.labels)


def over_rounds(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean binary cross-entropy of (T,n,L) logits; documents beyond the (n,L) labels are ignored."""
    logits = logits[:, : len(labels)]
    return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype).expand_as(logits))


class MLR(Neural):
    """ML-Reasoner on a pre-trained transformer."""

    Parameters = MlrParameters

    def make(self, encoder: TransformerEncoder, labels: int) -> MlrNetwork:
        """Add head and reasoner to the encoder."""
        return MlrNetwork(encoder, labels, self.parameters)


class MLRTextCnn(Neural):
    """ML-Reasoner on convolutions over words."""

    Parameters = MlrTextCnnParameters

    def make(self, encoder: WordEncoder, labels: int) -> MlrTextCnnNetwork:
        """Add convolutions, head and reasoner to the words."""
        return MlrTextCnnNetwork(encoder, labels, self.parameters)

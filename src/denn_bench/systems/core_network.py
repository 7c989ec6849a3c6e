"""CORE: labels are read as tokens after the text, and text tokens are weighted by their similarity to the labels.

Zhang et al., "Correlation-guided representation for multi-label text classification", IJCAI 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder
from denn.protocols import Progress
from denn.training.network import LAYER, Batch, TransformerParameters
from denn.training.neural import Neural
from denn_bench.core.prior import log_odds
from denn_bench.systems.label_tokens import LabelTokens, States

WIDTH = 9  # tokens that the convolution sees at once
PLANE = 10  # tokens, and labels, that the convolution over the plane sees at once
ABOVE = 2  # layers that the released code counts between the encoder's last layer and the head


@dataclass(frozen=True, kw_only=True)
class LabelTokenParameters(TransformerParameters):
    """Training settings of the released code of CORE and LACO."""

    learning_rate: PositiveFloat = 5e-5
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 0.8  # learning rate of each layer relative to the one above
    optimiser: Literal["adam", "adamw"] = "adamw"
    weight_decay: NonNegativeFloat = 0.01  # not of biases and normalisation
    epsilon: PositiveFloat = 1e-6
    clip: NonNegativeFloat = 1.0
    warmup: Annotated[float, Field(ge=0, lt=1)] | None = 0.1


@dataclass(frozen=True, kw_only=True)
class CoreParameters(LabelTokenParameters):
    """Parameters of CORE."""

    convolution: Literal["tokens", "plane"] = "tokens"  # over tokens, labels as channels; or over tokens × labels
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1  # before the head


class TrainedAsReleased(LabelTokens):
    """A network with the learning rates and the weight decay of the released code of CORE and LACO."""

    def groups(self, parameters: Any) -> list[dict[str, Any]]:
        """Return the parameter groups.

        Layer d of D has the rate lr · decay^(D + 2 − d), and embeddings count as layer 0. The labels' vectors have lr,
        because nothing has trained them before, and the rest has the rate of the head.
        """
        p = parameters
        rate, depths = p.encoder_rate(self.encoder), self.encoder.layers + ABOVE
        found: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for name, weight in self.named_parameters():
            own = p.head_learning_rate or p.learning_rate
            if name.startswith("encoder."):
                layer = LAYER.search(name)
                own = rate * p.layer_decay ** (depths - (int(layer[1]) + 1 if layer else 0))
            elif weight is self.token_vectors:
                own = rate
            if weight.requires_grad:
                found.setdefault((own, weight.ndim > 1), []).append(weight)
        return [
            {"params": weights, "lr": own, "weight_decay": p.weight_decay if decays else 0.0}
            for (own, decays), weights in found.items()
        ]


class CoreNetwork(TrainedAsReleased):
    """Weight the tokens h_i of a text by their similarity to the labels: c = Σ a_i h_i/‖h_i‖, ŷ = sigmoid(W c + b).

    a = tanh(max over channels of ReLU(conv(G))) with G the cosine similarities of tokens and labels. Padding has no
    effect: its rows of G are 0, as beyond the ends of a text, and so is its a.
    """

    def __init__(self, encoder: TransformerEncoder, labels: int, parameters: CoreParameters) -> None:
        super().__init__(encoder, labels)
        self.dropout = parameters.dropout
        if parameters.convolution == "tokens":
            self.convolution: nn.Module = nn.Conv1d(labels, labels, WIDTH, padding=WIDTH // 2)
        else:
            self.convolution = nn.Conv2d(1, labels, PLANE)
        self.head = nn.Linear(encoder.width, labels)

    def forward(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None) -> Tensor:
        """Return the (n,L) logits of packed texts."""
        return self.classify(self.read(ids, layout, seeds))

    def attention(self, states: States) -> Tensor:
        """Return a, the (n,T) weights of tokens in [0,1), 0 after each text."""
        likeness = unit(states.text) @ unit(states.labels).transpose(1, 2)  # (n,T,C), 0 after each text
        if isinstance(self.convolution, nn.Conv2d):
            before, after = (PLANE - 1) // 2, PLANE // 2
            plane = F.pad(likeness, (before, after, before, after))[:, None]  # (n,1,T+9,C+9)
            strength = self.convolution(plane).amax((1, 3))  # (n,T): over channels and labels
        else:
            strength = self.convolution(likeness.transpose(1, 2)).amax(1)  # (n,T)
        return torch.tanh(F.relu(strength)) * states.real

    def classify(self, states: States) -> Tensor:
        """Return the (n,L) logits of encoded texts."""
        weights = self.attention(states)
        document = (weights[:, None] @ unit(states.text))[:, 0]  # (n,d)
        logits: Tensor = self.head(F.dropout(document, self.dropout, self.training))
        return logits

    def start(self, tokens: Tokens, labels: Tensor, parameters: Any, progress: Progress, sampled: int) -> None:
        """Initialise the bias with the log-odds of the labels, as the plain classifier does."""
        with torch.no_grad():
            self.head.bias.copy_(log_odds(labels))

    def loss(self, batch: Batch) -> Tensor:
        """Return binary cross-entropy, summed over labels, as the mean over texts."""
        states = self.read(batch.ids, batch.layout, batch.seeds, len(batch.labels))
        return summed_loss(self.classify(states), batch.labels)


def unit(states: Tensor) -> Tensor:
    """Normalise (…,d) states to length 1; zeros stay."""
    return F.normalize(states, dim=-1, eps=1e-6)


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the binary cross-entropy of (n,L) logits, summed over labels, as the mean over texts."""
    return F.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none").sum(1).mean()


class CORE(Neural):
    """The row CORE of the paper's tables."""

    Parameters = CoreParameters

    def make(self, encoder: TransformerEncoder, labels: int) -> CoreNetwork:
        """Put attention by labels and a linear map on the encoder."""
        return CoreNetwork(encoder, labels, self.parameters)

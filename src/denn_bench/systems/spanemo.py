"""SpanEmo: the names of all labels are read before the text, and each label is judged by the state of its name.

Alhuzali and Ananiadou, "SpanEmo: casting multi-label emotion classification as span-prediction", EACL 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder
from denn.protocols import Progress
from denn.training.network import Batch, Network, TransformerParameters
from denn.training.neural import Neural
from denn.types import Corpus
from denn_bench.arxiv import readable_names
from denn_bench.core.prior import log_odds
from denn_bench.systems.label_tokens import check_room, insert, pick, room


@dataclass(frozen=True, kw_only=True)
class SpanEmoParameters(TransformerParameters):
    """The settings of the released code."""

    correlation: Annotated[float, Field(ge=0, le=1)] = 0.2  # a: weight of the correlation loss
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1  # between the two maps to a label's logit
    learning_rate: PositiveFloat = 2e-5
    head_learning_rate: PositiveFloat | None = 1e-3
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    epochs: NonNegativeInt = 20
    optimiser: Literal["adam", "adamw"] = "adamw"
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.1
    clip: NonNegativeFloat = 1.0


class SpanEmoNetwork(Network):
    """Read [CLS] names [SEP] text [SEP]; a label's logit comes from the state of the first subword of its name."""

    encoder: TransformerEncoder
    names: Tensor
    places: Tensor

    def __init__(self, encoder: TransformerEncoder, labels: int, dropout: float, correlation: float) -> None:
        super().__init__()
        check_room(encoder, labels, labels)
        self.encoder, self.dropout, self.correlation = encoder, dropout, correlation
        self.hidden = nn.Linear(encoder.width, encoder.width)
        self.head = nn.Linear(encoder.width, 1)
        # The maximum length, whatever the names, so that loading knows its size; −1 after the last subword.
        self.register_buffer("names", torch.full((encoder.max_length,), -1))
        self.register_buffer(
            "places", torch.zeros(labels, dtype=torch.int64)
        )  # positions of first subwords, [CLS] at 0

    def prepare(self, corpus: Corpus) -> None:
        """Tokenise the label names."""
        tokenizer = self.encoder.tokenizer
        tokenizer.no_padding()
        tokenizer.no_truncation()
        end = tokenizer.encode("").ids[-1]
        pieces = [tokenizer.encode(name, add_special_tokens=False).ids or [end] for name in readable_names(corpus)]
        run = torch.tensor([piece for name in pieces for piece in name])
        check_room(self.encoder, len(pieces), len(run))
        self.names[: len(run)] = run
        self.places[1:] = torch.tensor([len(name) for name in pieces[:-1]], dtype=torch.int64).cumsum(0)
        self.places += 1

    def is_sound(self) -> bool:
        """Check that the names leave room for a text, and that every label has a position among them."""
        pieces = int((self.names >= 0).sum())
        tokens = (self.names >= -1) & (self.names < self.encoder.vocabulary)
        places = (self.places >= 1) & (self.places <= pieces)
        return pieces <= room(self.encoder) and bool(tokens.all()) and bool(places.all())

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenise texts after the names, truncated so that both fit."""
        names = self.names[self.names >= 0].cpu()
        tokens = self.encoder.tokenize(texts, reserved=len(names) + 1)
        if not texts:
            return tokens
        end = tokens.flat[-1:]  # [SEP]
        return insert(tokens, torch.cat([names.to(end.dtype), end]), torch.ones(len(texts), dtype=torch.int64))

    def start(self, tokens: Tokens, labels: Tensor, parameters: Any, progress: Progress, sampled: int) -> None:
        """Initialise the bias, which all labels share, with the log-odds of their mean share."""
        with torch.no_grad():
            self.head.bias.copy_(log_odds(labels, shared=True))

    def forward(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None) -> Tensor:
        """Return the (n,L) logits of packed texts."""
        return self.judge(ids, layout, seeds, len(layout.starts) - 1)

    def judge(self, ids: Tensor, layout: Layout, seeds: Tensor | None, count: int) -> Tensor:
        """Return the (count,L) logits of the first packed texts."""
        states = self.encoder.states(ids, layout, seeds)
        of_labels = pick(states, layout.starts[:count, None].long() + self.places).float()  # (n,L,d)
        hidden = F.dropout(torch.tanh(self.hidden(of_labels)), self.dropout, self.training)
        logits: Tensor = self.head(hidden)[:, :, 0]
        return logits

    def loss(self, batch: Batch) -> Tensor:
        """Return (1 − a) · binary cross-entropy + a · the correlation loss, both as means."""
        logits, a = self.judge(batch.ids, batch.layout, batch.seeds, len(batch.labels)), self.correlation
        cross_entropy = F.binary_cross_entropy_with_logits(logits, batch.labels.float())
        return (1 - a) * cross_entropy + a * correlation_loss(torch.sigmoid(logits), batch.labels)


def correlation_loss(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the label-correlation loss: (n,L) in [0,1], (n,L) bool → the mean over texts of

        1 / (|Y⁻| |Y⁺|) · Σ over i in Y⁻, j in Y⁺ of exp(p_i − p_j), 0 if the text has no labels or all labels.

    The double sum is the product of two sums, of exp(p_i) and of exp(−p_j).
    """
    others = ~labels
    absent = (probabilities.exp() * others).sum(1)
    present = ((-probabilities).exp() * labels).sum(1)
    return (absent * present / (others.sum(1) * labels.sum(1)).clamp(min=1)).mean()


class SpanEmo(Neural):
    """SpanEmo with its joint loss."""

    Parameters = SpanEmoParameters

    def make(self, encoder: TransformerEncoder, labels: int) -> SpanEmoNetwork:
        """Add the map from states of names to logits to the encoder."""
        p = self.parameters
        return SpanEmoNetwork(encoder, labels, p.dropout, p.correlation)

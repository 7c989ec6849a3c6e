"""A text encoder with a linear map to the labels: the network of DENN and of every plain classifier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveFloat
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder
from denn.errors import BundleError
from denn.protocols import Progress
from denn.training.head import start_head
from denn.training.network import REST, Network, TransformerParameters
from denn.types import Stage
from denn.untrusted import Expected, read_tensors


@dataclass(frozen=True, kw_only=True)
class ClassifierParameters(TransformerParameters):
    """An encoder with a linear map to the labels."""

    embedding_norm: PositiveFloat | None = 15.0  # mean length of h at the start; None: unchanged encoder output
    head_start: NonNegativeInt = 0  # epochs of the head alone, on frozen embeddings, before the encoder trains too
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1  # before the head


class Classifier(Network):
    """Embeds texts, h = scale · pooled, and scores labels, ŷ = sigmoid(W h + b), Eq. 2.

    The scale is a constant fixed before training. The embedding is taken before the head's dropout.
    """

    can_freeze = reads_states = True
    reads_unit_vectors = False  # True if a refit trained the head on the vectors of the datastore
    encoder: TransformerEncoder
    scale: Tensor
    carried = 0  # number of leading labels whose rows of the head, like the scale, come from another model

    def __init__(self, encoder: TransformerEncoder, labels: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.width, labels)
        self.dropout = dropout
        self.register_buffer("scale", torch.ones(()))

    def forward(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None) -> Tensor:
        """Return the (n,L) logits of packed texts."""
        return self.classify(self.scaled_embeddings(ids, layout, seeds))

    def scaled_embeddings(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None) -> Tensor:
        """Return the (n,d) embeddings h of packed texts."""
        pooled: Tensor = self.encoder(ids, layout, seeds)
        return self.scale * pooled

    def classify(self, embeddings: Tensor) -> Tensor:
        """Return the (n,L) logits of (n,d) embeddings h."""
        logits: Tensor = self.head(F.dropout(embeddings, self.dropout, self.training))
        return logits

    @torch.inference_mode()
    def probabilities(self, embeddings: Tensor) -> Tensor:
        """Score unscaled (n,d) embeddings from `encode`: (n,L) on the network's device."""
        if self.reads_unit_vectors:
            embeddings = F.normalize(embeddings, dim=1)
        logits = self.head(self.scale * embeddings.to(self.device))
        return torch.sigmoid(logits)

    def encode(self, tokens: Tokens, *, in_int8: bool = False) -> Tensor:
        """Embed texts without dropout, unscaled: (n,d) on the CPU. Cosine, and so the datastore, ignores the scale."""
        return self.encoder.encode(tokens, in_int8=in_int8)

    def continue_from(self, folder: Path) -> None:
        """Take the scale and the rows of the first labels from another model; later labels keep their new rows."""
        shapes: Expected = {
            "head.weight": ("F32", (None, self.head.in_features)), "head.bias": ("F32", (None,)), "scale": ("F32", ()),
        }  # fmt: skip
        if not (folder / REST).exists():
            return  # a refitted head reads unit vectors, so this network learns a new one
        kept = read_tensors(folder / REST, shapes, BundleError)
        self.carried = len(kept["head.bias"])
        with torch.no_grad():
            self.head.weight[: self.carried] = kept["head.weight"]
            self.head.bias[: self.carried] = kept["head.bias"]
            self.scale.copy_(kept["scale"])

    def start(self, tokens: Tokens, labels: Tensor, parameters: Any, progress: Progress, sampled: int) -> None:
        """Set the scale from some documents, or from all of them if the head starts on their embeddings."""
        if self.carried == len(self.head.bias):
            return  # everything comes from the other model
        some = tokens if parameters.head_start else tokens.first(sampled)
        progress.start(Stage("embedding training documents", len(some)))
        self.learn_head(self.encoder.encode(some, progress.advance), labels, parameters, parameters.head_start)

    def learn_head(
        self,
        embeddings: Tensor,
        labels: Tensor,
        parameters: Any,
        epochs: int,
        rejected: Tensor | None = None,
        report: Callable[[int], None] | None = None,
    ) -> None:
        """Set the scale and fit the head to unscaled (n,d) embeddings; without epochs, set only its bias."""
        p = parameters
        if p.embedding_norm is not None and not self.carried:
            self.scale.fill_(p.embedding_norm / float(embeddings.norm(dim=1).mean().clamp_min(1e-6)))
        start_head(self.head, float(self.scale) * embeddings, labels, epochs, p.seed, self.carried, rejected, report)

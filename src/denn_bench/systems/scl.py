"""SCL and JSCL: the plain classifier with an additional supervised contrastive loss (Lin et al., 2023).

The loss is (1 − α) · BCE + α · contrast; α includes the factor τ/0.07 that the released code takes from SupCon.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder
from denn.errors import ConfigError
from denn.methods.classifier import Classifier, ClassifierParameters
from denn.protocols import Progress
from denn.training.head import start_head
from denn.training.network import Batch
from denn.training.neural import Neural
from denn_bench.core.label_contrast import (
    identical_sets,
    jaccard_denominator,
    jaccard_weights,
    label_by_label,
    same_targets,
    weighted_contrast,
)
from denn_bench.systems.label_tokens import LabelTokens, States

Contrast = Callable[[Tensor, Tensor], Tensor]  # (N,N) similarity over τ, (N,L) labels → (N,) losses


@dataclass(frozen=True, kw_only=True)
class SclParameters(ClassifierParameters):
    """The plain classifier with a contrast between the texts of a batch."""

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.1  # α: share of the contrastive loss
    temperature: PositiveFloat = 0.5  # τ
    similarity: Literal["cosine", "dot"] = "cosine"  # dot: dot products of unscaled vectors, as in the original


@dataclass(frozen=True, kw_only=True)
class JsclParameters(SclParameters):
    """Parameters of JSCL: what is contrasted, and how label similarity counts."""

    contrast: Literal["jscl", "jspcl", "slcl", "icl"] = "jscl"  # embeddings, scores, label by label, label tokens
    form: Literal["paper", "code"] = "paper"  # of jscl and jspcl: as in DENN's paper, or as released


class ContrastNetwork(Classifier):
    """The plain classifier, trained on (1 − α) · BCE + α · the mean contrast between the texts of a batch."""

    def __init__(
        self, encoder: TransformerEncoder, labels: int, parameters: SclParameters, contrast: Contrast,
        *, of_scores: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(encoder, labels, parameters.dropout)
        self.settings, self.contrast, self.of_scores = parameters, contrast, of_scores

    def loss(self, batch: Batch) -> Tensor:
        """Return (1 − α) · BCE + α · the contrast of embeddings, or of logits, both as means."""
        p, labels = self.settings, batch.labels
        embeddings = self.scaled_embeddings(batch.ids, batch.layout, batch.seeds)[: len(labels)]
        logits = self.classify(embeddings)
        bce = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        near = similarities(logits if self.of_scores else embeddings, p)
        return (1 - p.alpha) * bce + p.alpha * self.contrast(near, labels).mean()


class InstanceNetwork(LabelTokens):
    """A classifier over the pooled tokens of the text, whose label tokens of equal target attract each other (ICL)."""

    scale: Tensor

    def __init__(self, encoder: TransformerEncoder, labels: int, parameters: JsclParameters) -> None:
        super().__init__(encoder, labels)
        self.head = nn.Linear(encoder.width, labels)
        self.settings = parameters
        self.register_buffer("scale", torch.ones(()))

    def forward(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None) -> Tensor:
        """Return the (n,L) logits of packed texts."""
        return self.classify(self.read(ids, layout, seeds))

    def classify(self, states: States) -> Tensor:
        """Return the (n,L) logits of encoded texts, as the plain classifier scores its embedding."""
        embeddings = self.scale * self.pool(states)
        logits: Tensor = self.head(F.dropout(embeddings, self.settings.dropout, self.training))
        return logits

    def pool(self, states: States) -> Tensor:
        """Pool the states of the texts as the encoder was trained to: (n,d)."""
        if self.encoder.pooling == "cls":
            return states.text[:, 0]
        return states.text.sum(1) / states.real.sum(1, keepdim=True)

    def loss(self, batch: Batch) -> Tensor:
        """Return (1 − α) · BCE + α · the contrast between the labels of each text, both as means."""
        p, labels = self.settings, batch.labels
        states = self.read(batch.ids, batch.layout, batch.seeds, len(labels))
        logits = self.classify(states)
        bce = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        contrast = weighted_contrast(similarities(states.labels, p), same_targets(labels))  # (n,L)
        return (1 - p.alpha) * bce + p.alpha * contrast.mean()

    @torch.inference_mode()
    def start(self, tokens: Tokens, labels: Tensor, parameters: Any, progress: Progress, sampled: int) -> None:
        """Fix the scale on some texts, and initialise the head's bias with the log-odds of each label."""
        self.eval()
        some = tokens.first(sampled).to(self.device)
        passes = some.by_length(self.encoder.pass_tokens)
        embeddings = torch.cat([self.pool(self.read(*some.pack(rows))) for rows in passes])
        if parameters.embedding_norm is not None:
            self.scale.fill_(parameters.embedding_norm / float(embeddings.norm(dim=1).mean().clamp_min(1e-6)))
        start_head(self.head, self.scale * embeddings, labels, 0, parameters.seed)


def similarities(vectors: Tensor, parameters: SclParameters) -> Tensor:
    """Return the (…,N,N) cosine similarities, or dot products, of (…,N,d) vectors divided by the temperature."""
    vectors = vectors.float()
    if parameters.similarity == "cosine":
        vectors = F.normalize(vectors, dim=-1)
    return vectors @ vectors.transpose(-1, -2) / parameters.temperature


def scl(near: Tensor, labels: Tensor) -> Tensor:
    """Attract texts with identical label sets: (N,)."""
    return weighted_contrast(near, identical_sets(labels))


def jscl(near: Tensor, labels: Tensor) -> Tensor:
    """Attract texts by the Jaccard index of their label sets: (N,)."""
    return weighted_contrast(near, jaccard_weights(labels))


def slcl(near: Tensor, labels: Tensor) -> Tensor:
    """Attract texts, label by label, that both have it or both lack it: (N,)."""
    return weighted_contrast(near, label_by_label(labels))


class SCL(Neural):
    """The row SCL of the paper's tables: positives have identical label sets."""

    Parameters = SclParameters

    def make(self, encoder: TransformerEncoder, labels: int) -> ContrastNetwork:
        """Add a linear map to the encoder."""
        return ContrastNetwork(encoder, labels, self.parameters, scl)


class JSCL(Neural):
    """The row JSCL: the more labels two texts share, the more they attract each other; and Lin's other losses."""

    Parameters = JsclParameters

    def make(self, encoder: TransformerEncoder, labels: int) -> ContrastNetwork | InstanceNetwork:
        """Add a linear map to the encoder, which also reads the labels if their tokens are contrasted."""
        p: JsclParameters = self.parameters
        if p.form == "code" and p.contrast not in ("jscl", "jspcl"):
            raise ConfigError(
                f"Got form 'code' with contrast {p.contrast!r}, expected 'jscl' or 'jspcl', the only ones that have "
                "two forms. Leave form at 'paper'."
            )
        if p.contrast == "icl":
            if p.head_start:
                raise ConfigError(
                    f"Got head_start {p.head_start} with contrast 'icl', expected 0: the head of a text that is read "
                    "with label tokens cannot be trained alone. Omit head_start."
                )
            return InstanceNetwork(encoder, labels, p)
        if p.contrast == "slcl":
            return ContrastNetwork(encoder, labels, p, slcl)
        form = jaccard_denominator if p.form == "code" else jscl
        return ContrastNetwork(encoder, labels, p, form, of_scores=p.contrast == "jspcl")

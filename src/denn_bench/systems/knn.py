"""kNN: a classifier and the nearest documents with equal weight, trained with a contrast of dynamic coefficients.

Su, Wang and Dai, ACL 2022. One difference: the votes compare embeddings scaled to one length r, d = r √(2 − 2 cos), so
that the datastore, which searches by cosine similarity, finds the nearest by Euclidean distance. The contrast compares
embeddings as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from denn.core.combine import combine_known, vote_sparse
from denn.encoders.transformer import TransformerEncoder
from denn.methods.classifier import Classifier, ClassifierParameters
from denn.methods.neighbours import WithNeighbours
from denn.prediction_types import Neighbours, Scores
from denn.training.bounds import Neighbourhood
from denn.training.network import Batch
from denn_bench.core.label_contrast import distances, euclidean, shared_labels, weighted_contrast


@dataclass(frozen=True, kw_only=True)
class KnnParameters(ClassifierParameters):
    """Parameters, named as in DENN, with the symbols of Su et al. in comments."""

    embedding_norm: PositiveFloat = 15.0  # mean length of h at the start, and r, the length for the votes
    alpha: NonNegativeFloat = 0.1  # γ: weight of the contrastive loss
    temperature: PositiveFloat = 10.0  # τ', of the contrastive loss
    vote_temperature: PositiveFloat = 10.0  # τ, of the neighbours' votes
    k: Neighbourhood = 30
    vote_share: Annotated[float, Field(ge=0, le=1)] = 0.5  # λ: the neighbours' share of a score


class KnnNetwork(Classifier):
    """The classifier, trained on BCE + γ · contrast over one view of each text."""

    def __init__(self, encoder: TransformerEncoder, labels: int, parameters: KnnParameters) -> None:
        super().__init__(encoder, labels, parameters.dropout)
        self.settings = parameters

    def loss(self, batch: Batch) -> Tensor:
        """Return BCE + γ · contrast, both as means; a text that shares no label with another adds 0 to the second."""
        p, labels = self.settings, batch.labels
        embeddings = self.scaled_embeddings(batch.ids, batch.layout, batch.seeds)[: len(labels)]
        logits = self.classify(embeddings)
        bce = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        near = -distances(embeddings) / p.temperature  # (N,N)
        return bce + p.alpha * weighted_contrast(near, shared_labels(labels)).mean()


class KNN(WithNeighbours):
    """The row kNN of the paper's tables."""

    Parameters = KnnParameters
    parameters: KnnParameters
    network: KnnNetwork

    def make(self, encoder: TransformerEncoder, labels: int) -> KnnNetwork:
        """Add a linear map to the encoder."""
        return KnnNetwork(encoder, labels, self.parameters)

    def combine(self, parts: Mapping[str, Tensor], found: Neighbours, gamma: float | None = None) -> Scores:
        """Combine with fixed weights, ŷ = λ ŷ_knn + (1 − λ) ŷ_clf; without neighbours, use the classifier alone."""
        known = parts["classifier"][:, : len(self.names)]
        share = found.similarity.isfinite().any(1).to(known.device) * self.parameters.vote_share  # (n,)
        final, familiarity = combine_known(known, parts["neighbours"], share), self.familiarity_of(found)
        return Scores(final, found.names, parts, None, found, familiarity=familiarity)

    def votes(self, found: Neighbours, labels: int) -> Tensor:
        """Return the votes of the neighbours, β = softmax(−d/τ): (n,L)."""
        there = found.similarity.isfinite()
        nearness = -euclidean(found.similarity, self.parameters.embedding_norm).masked_fill(~there, torch.inf)
        return vote_sparse(nearness, found.offsets, found.label_columns, labels, self.parameters.vote_temperature)

"""DENN: a classifier and the labels of the nearest documents, combined by a debiased confidence per text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from denn.core import contrast
from denn.core.combine import combine, combine_known, debiased_confidence, vote_sparse
from denn.encoders.packed import Layout
from denn.encoders.transformer import TransformerEncoder
from denn.methods import views
from denn.methods.classifier import Classifier, ClassifierParameters
from denn.methods.neighbours import WithNeighbours
from denn.training.bounds import Neighbourhood
from denn.training.network import Batch
from denn.training.session import Training, micro_f1
from denn.types import Corpus, Neighbours, Scores

Contrast = Callable[[Tensor, Tensor, float], Tensor]  # (2N,2N) similarity, (N,L) labels, temperature → (2N,) losses
View = Callable[[Tensor, Layout, Tensor, int], Tensor]  # ids, layout, (T,) tokens of second views, mask token → ids

CONTRASTS: dict[str, Contrast] = {
    "debiased": contrast.debiased_contrastive_loss,
    "ucl": contrast.unsupervised_contrastive_loss,
    "scl": contrast.supervised_contrastive_loss,
    "wscl": contrast.weighted_supervised_contrastive_loss,
}
VIEWS: dict[str, View] = {
    "dropout": views.dropout,
    "masking": views.masking,
    "span": views.span,
    "shuffle": views.shuffle,
}

SEARCHED = 50_000  # training documents that the combined validation score looks for neighbours in


@dataclass(frozen=True, kw_only=True)
class DennParameters(ClassifierParameters):
    """All that can be set; Greek letters are the paper's."""

    alpha: NonNegativeFloat = 0.1  # α: weight of the contrastive loss; 0: a plain classifier with neighbours
    loss: Literal["debiased", "ucl", "scl", "wscl"] = "debiased"
    view: Literal["dropout", "masking", "span", "shuffle"] = "dropout"  # how the second view of a text is made
    temperature: PositiveFloat = 0.05  # τ₁, of the contrastive loss
    consistency: NonNegativeFloat = 0.0  # weight of what the two views' scores differ by; beyond the paper
    vote_temperature: PositiveFloat = 0.05  # τ₂, of the neighbours' votes
    k: Neighbourhood = 30
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.7  # γ: what the classifier must give a label for it to count in λ
    combination: Literal["confidence", "average"] = "confidence"  # by λ, or half and half; beyond the paper
    select: Literal["classifier", "combined", "last"] = "classifier"  # which validation score picks the weights


class DennNetwork(Classifier):
    """The classifier, trained on two views of every text where there is a contrastive loss."""

    def __init__(self, encoder: TransformerEncoder, labels: int, parameters: DennParameters) -> None:
        super().__init__(encoder, labels, parameters.dropout)
        self.settings = parameters
        self.views = 2 if parameters.alpha else 1
        self.mask_id = views.mask_token(encoder.tokenizer, parameters.view)

    def alter(self, ids: Tensor, layout: Layout) -> Tensor:
        """Make the second view of every text from its first."""
        if self.views == 1:
            return ids
        return VIEWS[self.settings.view](ids, layout, layout.document % 2 == 1, self.mask_id)

    def loss(self, batch: Batch) -> Tensor:
        """Return BCE + α · contrast of a batch, Eq. 7, both as means; both views of a text go through in one pass."""
        p = self.settings
        if self.views == 1:
            return super().loss(batch)
        labels, count = batch.labels, 2 * len(batch.labels)  # what follows fills the pass up
        embeddings = self.scaled_embeddings(batch.ids, batch.layout, batch.seeds)[:count]
        logits = self.classify(embeddings)
        bce = F.binary_cross_entropy_with_logits(logits, labels.repeat_interleave(2, dim=0).to(logits.dtype))
        both = F.normalize(torch.cat([embeddings[0::2], embeddings[1::2]]), dim=1)  # (2N,d)
        loss = bce + p.alpha * CONTRASTS[p.loss](both @ both.T, labels, p.temperature).mean()
        if p.consistency:
            loss = loss + p.consistency * disagreement(logits[0::2], logits[1::2])
        return loss


class DennTraining(Training):
    """The training of DENN: which validation score picks the weights can be chosen."""

    network: DennNetwork
    parameters: DennParameters

    def validate(self) -> dict[str, float]:
        """Score the validation part by the classifier at 0.5, and by both at the tuned threshold where that selects."""
        if not len(self.valid_tokens):
            return {}
        p = self.parameters
        embeddings = self.network.encode(self.valid_tokens)
        known = self.network.probabilities(embeddings)
        scores = self.judge(known)
        score = scores["micro_f1"]
        if p.select == "combined":
            score = micro_f1(self._combined(embeddings, known), self.valid_labels)
            scores["combined_micro_f1"] = score
        return scores | {"score": score}

    def validation_tokens(self) -> int:
        """Count the tokens that a validation reads: those of training documents too where neighbours have a say."""
        searched = self.train_tokens.first(SEARCHED) if self.parameters.select == "combined" else ()
        return super().validation_tokens() + (len(searched.flat) if searched else 0)

    def _combined(self, embeddings: Tensor, known: Tensor) -> Tensor:
        """Combine with neighbours among the first training documents, all in memory."""
        p, device = self.parameters, self.network.device
        some = self.train_tokens.first(SEARCHED)
        keys = F.normalize(self.network.encode(some).to(device), dim=1)
        similarity, rows = (F.normalize(embeddings.to(device), dim=1) @ keys.T).topk(min(p.k, len(some)))
        shares = torch.softmax(similarity / p.vote_temperature, dim=1)
        votes = torch.zeros(len(embeddings), self.labels.shape[1], device=device)
        for place in range(shares.shape[1]):
            votes += shares[:, place, None] * self.labels[rows[:, place]]
        votes = votes.cpu()
        half = p.combination == "average"
        return combine(
            known, votes, torch.full((len(known),), 0.5) if half else debiased_confidence(known, votes, p.gamma)
        )


class DENN(WithNeighbours):
    """The method of Cheng et al., TOIS 2024."""

    Parameters = DennParameters
    parameters: DennParameters
    network: DennNetwork

    def make(self, encoder: TransformerEncoder, labels: int) -> DennNetwork:
        """Put a linear map on the encoder."""
        return DennNetwork(encoder, labels, self.parameters)

    def training(self, corpus: Corpus) -> DennTraining:
        """Prepare the training on Eq. 7."""
        self.trained = DennTraining(self.network, corpus, self.parameters)
        self.trained.stores = True
        return self.trained

    def scores(self, texts: Sequence[str], own_ids: Sequence[str | None] | None = None) -> Scores:
        """Score texts by the classifier, by their neighbours, and by both, Eq. 9-13.

        `own_ids` names the stored document that each text itself is; it is no neighbour of its own. Labels that only
        the datastore knows follow the classifier's; their neighbours alone speak for them. Where there is no
        neighbour at all λ is 0.
        """
        p = self.parameters
        embeddings = self.embed(texts)
        found = self.search(embeddings, p.k, own_ids)
        return combined_scores(self.network.probabilities(embeddings), found, p)

    def votes(self, found: Neighbours, labels: int) -> Tensor:
        """Let neighbours vote, Eq. 9-10."""
        return neighbour_votes(found, labels, self.parameters)


def combined_scores(known: Tensor, found: Neighbours, parameters: DennParameters) -> Scores:
    """Combine the classifier's (n,L₀) scores with the votes of neighbours, Eq. 9-13, by these parameters' τ₂ and γ."""
    names = found.names
    votes = neighbour_votes(found, len(names), parameters)
    confidence = debiased_confidence(known, votes[:, : known.shape[1]], parameters.gamma)
    confidence = confidence.where(found.similarity.isfinite().any(1), 0.0)
    by_confidence = combine_known(known, votes, confidence)
    average = combine_known(known, votes, torch.full_like(confidence, 0.5))
    classifier = F.pad(known, (0, len(names) - known.shape[1]))
    parts = {"classifier": classifier, "neighbours": votes, "average": average}
    if parameters.combination == "average":
        return Scores(average, names, parts | {"confidence": by_confidence}, confidence, found)
    return Scores(by_confidence, names, parts, confidence, found)


def neighbour_votes(found: Neighbours, labels: int, parameters: DennParameters) -> Tensor:
    """Return the (n,L) votes of neighbours, Eq. 9-10, with these parameters' τ₂."""
    return vote_sparse(found.similarity, found.offsets, found.label_columns, labels, parameters.vote_temperature)


def disagreement(first: Tensor, second: Tensor) -> Tensor:
    """Return the mean symmetric Kullback-Leibler divergence of two views' label probabilities, from (n,L) logits."""
    return ((torch.sigmoid(first) - torch.sigmoid(second)) * (first - second)).mean() / 2

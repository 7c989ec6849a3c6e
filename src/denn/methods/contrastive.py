"""DENN's network: a classifier trained on two views of every text, with the contrastive loss of the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from denn.core import contrast
from denn.core.combine import combine, debiased_confidence
from denn.encoders.layout import Layout
from denn.encoders.transformer import TransformerEncoder
from denn.errors import ConfigError
from denn.methods import views
from denn.methods.classifier import Classifier, ClassifierParameters
from denn.registry import COMBINERS, WITNESSES, lookup
from denn.training.bounds import Neighbourhood
from denn.training.network import Batch
from denn.training.session import Training, micro_f1

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


def _is_witness(name: str) -> str:
    lookup(WITNESSES, name, "witness")  # an unknown one is an error before anything is learnt
    return name


def _is_combiner(name: str) -> str:
    lookup(COMBINERS, name, "combination")
    return name


@dataclass(frozen=True, kw_only=True)
class DennParameters(ClassifierParameters):
    """All that can be set; Greek letters are the paper's."""

    unsaid: ClassVar[dict[int, dict[str, Any]]] = {
        2: {"witnesses": ("classifier", "neighbours"), "remember": False}
    }  # format → values

    effort: Literal["auto", "quick", "balanced", "best"] | None = None  # None: one fine-tuning, as the others say
    alpha: NonNegativeFloat = 0.1  # α: weight of the contrastive loss; 0: a plain classifier with neighbours
    loss: Literal["debiased", "ucl", "scl", "wscl"] = "debiased"
    view: Literal["dropout", "masking", "span", "shuffle"] = "dropout"  # how the second view of a text is made
    temperature: PositiveFloat = 0.05  # τ₁, of the contrastive loss
    consistency: NonNegativeFloat = 0.0  # weight of what the two views' scores differ by; beyond the paper
    vote_temperature: PositiveFloat = 0.05  # τ₂, of the neighbours' votes
    k: Neighbourhood = 30
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.7  # γ: what the classifier must give a label for it to count in λ
    witnesses: Annotated[tuple[Annotated[str, AfterValidator(_is_witness)], ...], Field(min_length=1)] = (
        "classifier", "neighbours", "words",
    )  # fmt: skip  # who scores labels; the first two in the paper
    combination: Annotated[str, AfterValidator(_is_combiner)] = "learnt"  # on validation; average; confidence: by λ
    remember: bool = True  # a stored document with the same text decides, unless the combination is the paper's
    optimise: Literal["micro_f1", "macro_f1", "precision_at_k"] = "micro_f1"  # what the combination is chosen for
    select: Literal["classifier", "combined", "last"] = "classifier"  # which validation score picks the weights

    @property
    def alters_texts(self) -> bool:
        """Whether the second view of a text has other tokens."""
        return self.alpha > 0 and self.view != "dropout"

    def __post_init__(self) -> None:
        if self.combination == "confidence" and not {"classifier", "neighbours"} <= set(self.witnesses):
            raise ConfigError(
                f"Got the combination 'confidence' with the witnesses {', '.join(self.witnesses)}, expected classifier "
                "and neighbours among them: λ weighs these two. Use --set combination=average, or add them."
            )


class DennNetwork(Classifier):
    """The classifier, trained on two views of every text where there is a contrastive loss."""

    def __init__(self, encoder: TransformerEncoder, labels: int, parameters: DennParameters) -> None:
        super().__init__(encoder, labels, parameters.dropout)
        self.settings = parameters
        self.views = 2 if parameters.alpha else 1
        self.reads_states = not parameters.alters_texts
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
        known = self.network.probabilities(embeddings).cpu()
        scores = self.judge(known)
        score = scores["micro_f1"]
        if p.select == "combined":
            stored = self.network.encode(self.train_tokens.first(SEARCHED))
            score = micro_f1(self.combined(embeddings, known, stored), self.valid_labels)
            scores["combined_micro_f1"] = score
        return scores | {"score": score}

    def validation_tokens(self) -> int:
        """Count the tokens that a validation reads: those of training documents too where neighbours have a say."""
        searched = self.train_tokens.first(SEARCHED) if self.parameters.select == "combined" else ()
        return super().validation_tokens() + (len(searched.flat) if searched else 0)

    def combined(self, embeddings: Tensor, known: Tensor, stored: Tensor) -> Tensor:
        """Combine with neighbours among the first training documents, whose embeddings are `stored`."""
        p, device = self.parameters, self.network.device
        keys = F.normalize(stored.to(device), dim=1)
        similarity, rows = (F.normalize(embeddings.to(device), dim=1) @ keys.T).topk(min(p.k, len(keys)))
        shares = torch.softmax(similarity / p.vote_temperature, dim=1)
        votes = torch.zeros(len(embeddings), self.labels.shape[1], device=device)
        for place in range(shares.shape[1]):
            votes += shares[:, place, None] * self.labels[rows[:, place]]
        votes = votes.cpu()
        half = p.combination != "confidence"
        return combine(
            known, votes, torch.full((len(known),), 0.5) if half else debiased_confidence(known, votes, p.gamma)
        )


def disagreement(first: Tensor, second: Tensor) -> Tensor:
    """Return the mean symmetric Kullback-Leibler divergence of two views' label probabilities, from (n,L) logits."""
    return ((torch.sigmoid(first) - torch.sigmoid(second)) * (first - second)).mean() / 2

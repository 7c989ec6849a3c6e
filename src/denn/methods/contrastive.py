"""DENN's network: a classifier trained on two views of every text, with the paper's contrastive loss."""

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

SEARCHED = 50_000  # training documents in which the combined validation score searches for neighbours


def _is_witness(name: str) -> str:
    lookup(WITNESSES, name, "witness")  # reports an unknown one before anything is learnt
    return name


def _is_combiner(name: str) -> str:
    lookup(COMBINERS, name, "combination")
    return name


@dataclass(frozen=True, kw_only=True)
class DennParameters(ClassifierParameters):
    """All parameters of DENN; Greek letters are the paper's."""

    unsaid: ClassVar[dict[int, dict[str, Any]]] = {
        format: {"witnesses": ("classifier", "neighbours"), "remember": False} for format in (1, 2)
    }  # bundle format → values that it implies

    effort: Literal["auto", "quick", "balanced", "best"] | None = None  # None: fine-tune once, by the other parameters
    alpha: NonNegativeFloat = 0.1  # α: weight of the contrastive loss; 0: a plain classifier with neighbours
    loss: Literal["debiased", "ucl", "scl", "wscl"] = "debiased"
    view: Literal["dropout", "masking", "span", "shuffle"] = "dropout"  # how to make the second view of a text
    temperature: PositiveFloat = 0.05  # τ₁, of the contrastive loss
    consistency: NonNegativeFloat = 0.0  # weight of the difference between the two views' scores; not in the paper
    vote_temperature: PositiveFloat = 0.05  # τ₂, of the neighbours' votes
    k: Neighbourhood = 30
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.7  # γ: minimum classifier score for a label to count in λ
    witnesses: Annotated[tuple[Annotated[str, AfterValidator(_is_witness)], ...], Field(min_length=1)] = (
        "classifier", "neighbours", "words",
    )  # fmt: skip  # scorers of labels; the paper has the first two
    combination: Annotated[str, AfterValidator(_is_combiner)] = "learnt"  # on validation; average; confidence: by λ
    remember: bool = True  # let a stored document with the same text decide, unless the combination is the paper's
    optimise: Literal["micro_f1", "macro_f1", "precision_at_k"] = "micro_f1"  # metric for choosing the combination
    select: Literal["classifier", "combined", "last"] = "classifier"  # validation score that selects the weights

    @property
    def alters_texts(self) -> bool:
        """Whether the second view of a text has different tokens."""
        return self.alpha > 0 and self.view != "dropout"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.combination == "confidence" and not {"classifier", "neighbours"} <= set(self.witnesses):
            raise ConfigError(
                f"Got the combination 'confidence' with the witnesses {', '.join(self.witnesses)}; it combines "
                "classifier and neighbours by λ and needs both. Add them, or use --set combination=average."
            )


class DennNetwork(Classifier):
    """The classifier, trained on two views of every text if there is a contrastive loss."""

    can_share = True

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
        """Return the mean BCE + α · contrast of a batch, Eq. 7, from one pass with both views of each text.

        If several processes share the batch, the texts are contrasted with those of all processes.
        """
        p, share = self.settings, batch.share
        if self.views == 1:
            return super().loss(batch)
        labels, count = batch.labels, 2 * len(batch.labels)  # the rest of the pass is padding
        embeddings = self.scaled_embeddings(batch.ids, batch.layout, batch.seeds)[:count]
        logits = self.classify(embeddings)
        classified = self.classification_loss(logits, labels.repeat_interleave(2, dim=0))
        both = F.normalize(torch.cat([embeddings[0::2], embeddings[1::2]]), dim=1)
        both = share.gather(both.view(2, len(labels), -1), dim=1).flatten(0, 1)  # (2N,d)
        losses = CONTRASTS[p.loss](both @ both.T, share.gather(labels), p.temperature)
        loss = classified + p.alpha * share.own(losses.view(2, -1), dim=1).mean()
        if p.consistency:
            loss = loss + p.consistency * disagreement(logits[0::2], logits[1::2])
        return loss


class DennTraining(Training):
    """The training of DENN, with a choice of validation scores for selecting the weights."""

    network: DennNetwork
    parameters: DennParameters

    def validate(self) -> dict[str, float]:
        """Score the validation split by the classifier at 0.5, and combined at the tuned threshold if that selects."""
        if self.parameters.select != "combined" or not len(self.valid_tokens):
            return super().validate()
        embeddings = self.network.encode(self.valid_tokens)
        stored = self.network.encode(self.train_tokens.first(SEARCHED))
        known = self.network.probabilities(embeddings).cpu()
        score = micro_f1(self.combined(embeddings, known, stored), self.valid_labels)
        return self.judge(known) | {"combined_micro_f1": score, "score": score}

    def validation_tokens(self) -> int:
        """Count the tokens that a validation reads, including training documents if neighbours are used."""
        searched = self.train_tokens.first(SEARCHED) if self.parameters.select == "combined" else ()
        return super().validation_tokens() + (len(searched.flat) if searched else 0)

    def combined(self, embeddings: Tensor, known: Tensor, stored: Tensor) -> Tensor:
        """Combine the scores with neighbours among the first training documents, whose embeddings are `stored`."""
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

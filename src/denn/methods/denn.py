"""DENN: train an encoder, let witnesses score the labels of texts, and combine what they say into one score."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from denn.clock import Clock
from denn.combiners.average import Average
from denn.combiners.confidence import Confidence, confidence_of
from denn.core import contrast
from denn.core.combine import combine, debiased_confidence, less_rejected, vote_sparse
from denn.durable import sync, sync_all
from denn.encoders.layout import Layout
from denn.encoders.transformer import TransformerEncoder
from denn.errors import BundleError, ConfigError, TrainingError
from denn.methods import views
from denn.methods.classifier import Classifier, ClassifierParameters
from denn.methods.neighbours import WithNeighbours
from denn.methods.same_text import decide_by_same_text
from denn.protocols import Combiner, Progress, Witness
from denn.registry import COMBINERS, WITNESSES, lookup
from denn.training.bounds import Neighbourhood
from denn.training.network import Batch
from denn.training.session import Training, micro_f1
from denn.types import Calibrated, Context, Corpus, Document, Fitted, LabelSpace, Neighbours, Scores, Stage, Support
from denn.untrusted import REMEDY
from denn.witnesses.texts import Texts

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

HOME = "witnesses"  # the folder in a bundle for what they learnt
WITNESS_SHARE = 0.2  # of the time left, that a witness may take to learn
FIT_SECONDS, SECONDS_A_CELL = 2.0, 1.2e-6  # in which a combiner learns from (texts × labels)
CALIBRATION_BYTES = 4 * 2**30  # bounds what the (texts × labels) matrices of validation documents take
MATRICES = 13  # of float32: three witnesses, and up to ten while a combiner is fitted, tuned and evaluated
REJECTION_WEIGHT = 3.0  # neighbours without a label that one more counts as that rejects it
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
        half = p.combination != "confidence"
        return combine(
            known, votes, torch.full((len(known),), 0.5) if half else debiased_confidence(known, votes, p.gamma)
        )


class DENN(WithNeighbours):
    """Witnesses to the labels of texts, and a combiner that weighs what they say.

    Classifier and neighbours alone, combined by λ, are the method of Cheng et al., TOIS 2024.
    """

    Parameters = DennParameters
    can_continue = can_refit = True
    parameters: DennParameters
    network: DennNetwork

    def __init__(self, parameters: DennParameters) -> None:
        super().__init__(parameters)
        self.combiner: Combiner = Average()
        self.label_counts = torch.zeros(0)

    def make(self, encoder: TransformerEncoder, labels: int) -> DennNetwork:
        """Put a linear map on the encoder."""
        return DennNetwork(encoder, labels, self.parameters)

    @classmethod
    def plan(
        cls, parameters: Any, corpus: Corpus, clock: Clock, progress: Progress, start: Path | None, resumed: bool
    ) -> DennParameters:
        """Choose the effort that suits the machine, if that is left open, and say how long it takes."""
        from denn.methods.effort import choose_effort

        return choose_effort(parameters, corpus, clock, progress, start, resumed)

    def training(self, corpus: Corpus) -> DennTraining:
        """Prepare the training on Eq. 7."""
        self.trained = DennTraining(self.network, corpus, self.parameters)
        self.trained.stores = True
        self.trained.effort = self.parameters.effort
        self.trained.trains_encoder = not {"classifier", "neighbours"}.isdisjoint(self.witnesses)
        self.trained.combining = combining_seconds(self.parameters, corpus)
        return self.trained

    def fit(self, corpus: Corpus, workdir: Path, progress: Progress, clock: Clock | None = None) -> Fitted:
        """Let the witnesses learn that need no encoder, then train the network."""
        clock, self.names = clock or Clock(self.parameters.time_budget), corpus.labels.names
        learnt = {name: self._learn(name, corpus, workdir, progress, clock) for name in self.parameters.witnesses}
        self.witnesses = {name: witness for name, witness in learnt.items() if witness is not None}
        if not self.witnesses:
            raise TrainingError(
                f"None of the witnesses {', '.join(learnt)} could learn these documents. Give more time or documents, "
                "or add the witness classifier."
            )
        self.parameters = replace(self.parameters, witnesses=tuple(self.witnesses))
        return super().fit(corpus, workdir, progress, clock)

    def _learn(self, name: str, corpus: Corpus, workdir: Path, progress: Progress, clock: Clock) -> Witness | None:
        """Let a witness learn; what it learnt before an interruption is read again if it had time for all of it."""
        kind, kept = lookup(WITNESSES, name, "witness"), workdir / HOME / name
        known: Witness | None = kind.load(kept, self) if kept.exists() else None
        if known and known.is_complete:
            return known
        witness: Witness | None = kind.fit(corpus, self, progress, WITNESS_SHARE * clock.left())
        if witness is None:
            return known
        unfinished = kept.with_name(f"{name}.part")
        shutil.rmtree(unfinished, ignore_errors=True)
        witness.save(unfinished)
        if unfinished.exists():
            sync_all(unfinished)
            shutil.rmtree(kept, ignore_errors=True)
            unfinished.rename(kept)
            sync(kept.parent)
            sync(workdir)
        return witness

    def save(self, folder: Path) -> None:
        """Write network, datastore and witnesses."""
        super().save(folder)
        for name, witness in self.witnesses.items():
            witness.save(folder / HOME / name)

    @classmethod
    def load(cls, folder: Path, parameters: DennParameters, labels: LabelSpace, learnt: Path | None = None) -> Self:
        """Read what `save` and `calibrate` wrote."""
        self = super().load(folder, parameters, labels, learnt)
        folder = learnt or folder
        named = ((name, lookup(WITNESSES, name, "witness")) for name in parameters.witnesses)
        self.witnesses = {name: kind.load(folder / HOME / name, self) for name, kind in named}
        self.combiner = lookup(COMBINERS, parameters.combination, "combination").load(folder)
        self.label_counts = torch.tensor(labels.counts)
        if unknown := set(self.combiner.hears) - set(self.witnesses):
            raise BundleError(
                f"{folder}: the combiner asks for the witness {min(unknown)!r}, which is not there. {REMEDY}"
            )
        return self

    def recall(self, scores: Scores, texts: Sequence[str]) -> Scores:
        """Let a stored document with the same text decide, but in the paper's own system."""
        if not self.parameters.remember or self.parameters.combination == "confidence":
            return scores
        return decide_by_same_text(scores, texts, self.store, self._knows_word)

    def _knows_word(self, word: str) -> bool:
        return any(witness.knows_word(word) for witness in self.witnesses.values())

    def calibrate(self, documents: Sequence[Document], folder: Path, progress: Progress) -> Calibrated:
        """Learn from validation documents whom to believe; each is scored as if its labels had not been seen.

        Where scores of all documents would take too much memory, some are drawn.
        """
        given = len(documents)
        documents = [documents[row] for row in self.drawn(given, progress)]
        texts = [document.text for document in documents]
        asked = Texts(texts, self.embed, lambda embeddings: self.search(embeddings, self.parameters.k))
        calibrated = self.learn_combination(asked, documents, folder, progress)
        if len(documents) == given:
            return calibrated
        return calibrated._replace(facts={**calibrated.facts, "validation_documents_used": len(documents)})

    def drawn(self, documents: int, progress: Progress) -> list[int]:
        """Return the places of as many validation documents as memory suffices for, drawn at random."""
        labels = len(self.store.labels)
        most = max(1, CALIBRATION_BYTES // (4 * MATRICES * max(1, labels)))
        if documents <= most:
            return list(range(documents))
        progress.note(
            f"{documents:,} validation documents × {labels:,} labels are too many to compare at once: {most:,} of "
            "them, drawn at random, decide on combination and thresholds"
        )
        order = torch.randperm(documents, generator=torch.Generator().manual_seed(self.parameters.seed))
        return order[:most].sort().values.tolist()

    def learn_combination(
        self, asked: Texts, documents: Sequence[Document], folder: Path, progress: Progress
    ) -> Calibrated:
        """Learn whom to believe from the texts of these documents, and write it to the folder."""
        p = self.parameters
        progress.start(Stage(f"hearing the witnesses on {len(asked):,} validation documents"))
        parts, found = self.hear(asked), asked.neighbours
        progress.start(Stage("learning whom to believe"))
        heard, context = self._weighed(parts, found)
        self.combiner = lookup(COMBINERS, p.combination, "combination")(optimise=p.optimise, seed=p.seed)
        learnt = self.combiner.fit(heard, LabelSpace(found.names).matrix(documents), context)
        self.combiner.save(folder)
        unseen = self.combiner.held_out
        unseen = self.combiner.combine(heard, context) if unseen is None else unseen
        scores = Scores(unseen, found.names, parts, self._confidence(heard, context), found)
        scores = replace(scores, alternatives=self.alternatives(scores))
        return Calibrated(scores, {"combination": learnt}, documents, asked.embeddings)

    def combine(self, parts: Mapping[str, Tensor], found: Neighbours, gamma: float | None = None) -> Scores:
        """Weigh what the witnesses say of texts with these neighbours."""
        heard, context = self._weighed(parts, found, gamma)
        final = self.combiner.combine(heard, context)
        familiarity = self.familiarity_of(found)
        return Scores(final, found.names, parts, self._confidence(heard, context), found, familiarity=familiarity)

    def _confidence(self, heard: Mapping[str, Tensor], context: Context) -> Tensor | None:
        """Return λ (n,) where both of its witnesses are heard."""
        return confidence_of(heard, context) if {"classifier", "neighbours"} <= heard.keys() else None

    def alternatives(self, scores: Scores) -> dict[str, Tensor]:
        """Return what the other combiners make of the same witnesses."""
        assert scores.neighbours is not None
        heard, context = self._weighed(scores.parts, scores.neighbours)
        others: dict[str, Combiner] = {"average": Average()}
        if scores.confidence is not None:
            others["confidence"] = Confidence()
        return {
            name: other.combine(heard, context) for name, other in others.items() if name != self.parameters.combination
        }

    def _weighed(
        self, parts: Mapping[str, Tensor], found: Neighbours, gamma: float | None = None
    ) -> tuple[Mapping[str, Tensor], Context]:
        """Return what a combiner reads: where nobody votes, that says nothing against a label."""
        lonely = ~found.similarity.isfinite().any(1)
        if "neighbours" in parts and bool(lonely.any()):
            parts = {**parts, "neighbours": parts["neighbours"].masked_fill(lonely[:, None], float("nan"))}
        p, later = self.parameters, len(found.names) - len(self.label_counts)
        counts = F.pad(self.label_counts, (0, later)) if later else self.label_counts
        return parts, Context(counts, found.similarity, p.gamma if gamma is None else gamma, p.vote_temperature)

    def votes(self, found: Neighbours, labels: int) -> Tensor:
        """Let neighbours vote, Eq. 9-10, and those that reject a label against it: (n,L)."""
        temperature = self.parameters.vote_temperature
        votes = vote_sparse(found.similarity, found.offsets, found.label_columns, labels, temperature)
        if not len(found.rejected_columns):
            return votes
        columns = found.rejected_offsets, found.rejected_columns
        return less_rejected(votes, vote_sparse(found.similarity, *columns, labels, temperature), REJECTION_WEIGHT)

    def support(self, texts: Sequence[str], columns: Sequence[Sequence[int]]) -> Support:
        """Return the words that speak for labels, from whichever witness names some."""
        for witness in self.witnesses.values():
            found = witness.support(texts, columns)
            if any(words for text in found for words in text):
                return found
        return [[[] for _ in some] for some in columns]


def combining_seconds(parameters: DennParameters, corpus: Corpus) -> float:
    """Estimate how long a combiner learns from the validation documents."""
    if not corpus.valid or parameters.combination != "learnt":
        return 0.0
    return FIT_SECONDS + SECONDS_A_CELL * len(corpus.valid) * len(corpus.labels)


def disagreement(first: Tensor, second: Tensor) -> Tensor:
    """Return the mean symmetric Kullback-Leibler divergence of two views' label probabilities, from (n,L) logits."""
    return ((torch.sigmoid(first) - torch.sigmoid(second)) * (first - second)).mean() / 2

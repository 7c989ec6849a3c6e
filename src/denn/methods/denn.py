"""DENN: train an encoder, let witnesses score the labels of texts, and combine their scores."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from denn.clock import Clock
from denn.combiners.average import Average
from denn.combiners.confidence import Confidence, confidence_of
from denn.core.combine import less_rejected, vote_sparse
from denn.durable import sync, sync_all
from denn.encoders.transformer import TransformerEncoder
from denn.errors import BundleError, TrainingError
from denn.methods.contrastive import DennNetwork, DennParameters, DennTraining
from denn.methods.neighbours import WithNeighbours
from denn.methods.same_text import decide_by_same_text
from denn.prediction_types import Calibrated, Context, Neighbours, Scores, Support
from denn.protocols import Combiner, Progress, Witness
from denn.registry import COMBINERS, WITNESSES, lookup
from denn.types import Corpus, Document, Fitted, LabelSpace, Stage
from denn.untrusted import REMEDY
from denn.witnesses.support import named_words
from denn.witnesses.texts import Texts

HOME = "witnesses"  # folder in a bundle for what the witnesses learnt
WITNESS_SHARE = 0.5  # share of the remaining time that one witness may use
FIT_SECONDS, SECONDS_A_CELL = 2.0, 1.2e-6  # for fitting a combiner, plus for each cell of (texts × labels)
CALIBRATION_BYTES = 4 * 2**30  # limit for the (texts × labels) matrices of validation documents
MATRICES = 13  # float32 matrices: three witnesses, and up to ten while a combiner is fitted, tuned and evaluated
REJECTION_WEIGHT = 3.0  # a neighbour that rejects a label counts as this many more neighbours without it


class DENN(WithNeighbours):
    """Witnesses that score the labels of texts, and a combiner for their scores.

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
        self._latest_counts: tuple[object, Tensor] | None = None

    def make(self, encoder: TransformerEncoder, labels: int) -> DennNetwork:
        """Add a linear map to the encoder."""
        return DennNetwork(encoder, labels, self.parameters)

    @classmethod
    def plan(
        cls, parameters: Any, corpus: Corpus, clock: Clock, progress: Progress, start: Path | None, resumed: bool
    ) -> DennParameters:
        """Choose the effort that suits the machine, if none is given, and report how long it takes."""
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
        """Fit the witnesses that need no encoder, then train the network."""
        clock, self.names = clock or Clock(self.parameters.time_budget), corpus.labels.names
        learnt = {name: self._learn(name, corpus, workdir, progress, clock) for name in self.parameters.witnesses}
        self.witnesses = {name: witness for name, witness in learnt.items() if witness is not None}
        if not self.witnesses:
            raise TrainingError(
                f"None of the witnesses {', '.join(learnt)} could learn from these documents. Give more time or "
                "documents, or add the witness classifier."
            )
        self.parameters = replace(self.parameters, witnesses=tuple(self.witnesses))
        return super().fit(corpus, workdir, progress, clock)

    def _learn(self, name: str, corpus: Corpus, workdir: Path, progress: Progress, clock: Clock) -> Witness | None:
        """Fit a witness, or load it if an interrupted run finished fitting it."""
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
    def load(
        cls,
        folder: Path,
        parameters: DennParameters,
        labels: LabelSpace,
        learnt: Path | None = None,
        shared: Self | None = None,
    ) -> Self:
        """Read what `save` and `calibrate` wrote."""
        self = super().load(folder, parameters, labels, learnt, shared)
        folder = learnt or folder
        named = ((name, lookup(WITNESSES, name, "witness")) for name in parameters.witnesses)
        self.witnesses = {name: kind.load(folder / HOME / name, self) for name, kind in named}
        self.combiner = lookup(COMBINERS, parameters.combination, "combination").load(folder)
        self.label_counts = torch.tensor(labels.counts)
        if unknown := set(self.combiner.hears) - set(self.witnesses):
            raise BundleError(f"{folder}: the combiner needs the witness {min(unknown)!r}, which is missing. {REMEDY}")
        return self

    def recall(self, scores: Scores, texts: Sequence[str]) -> Scores:
        """Let a stored document with the same text decide, except in the paper's own system."""
        if not self.parameters.remember or self.parameters.combination == "confidence":
            return scores
        return decide_by_same_text(scores, texts, self.store, self._knows_word)

    def _knows_word(self, word: str) -> bool:
        return any(witness.knows_word(word) for witness in self.witnesses.values())

    def calibrate(self, documents: Sequence[Document], folder: Path, progress: Progress) -> Calibrated:
        """Fit the combiner on validation documents, each scored as if its labels had not been seen.

        If scores of all documents would take too much memory, use a random sample.
        """
        given = len(documents)
        documents = [documents[row] for row in self.drawn(given, progress)]
        asked = self._ask(documents)
        progress.start(Stage(f"scoring {len(asked):,} validation documents"))
        calibrated = self.learn_combination(asked, documents, self.hear(asked), folder, progress)
        if len(documents) == given:
            return calibrated
        return calibrated._replace(facts={**calibrated.facts, "validation_documents_used": len(documents)})

    def calibrate_on_all(
        self, documents: Sequence[Document], folder: Path, progress: Progress, head_epochs: int, clock: Clock
    ) -> Calibrated | None:
        """Fit the combiner on validation and training documents, each scored by a model that has not learnt from it."""
        from denn.methods.cross_fitting import are_few, cross_fit
        from denn.methods.relearning import Judged

        if not are_few(self, len(documents) + len(self.store)):
            return None
        embeddings, exported = self._ask(documents).embeddings, list(self.store.export())
        learnt, vectors = [one for some, _ in exported for one in some], torch.cat([found for _, found in exported])
        judged = Judged(documents, embeddings, [None] * len(documents))
        fitted = cross_fit(self, judged, learnt, vectors, head_epochs, progress, clock)
        if fitted is None:
            return None
        calibrated = self.learn_combination(*fitted, folder, progress)
        facts = {**calibrated.facts, "cross_fitted": len(fitted.documents) - len(documents)}
        return calibrated._replace(facts=facts, embeddings=embeddings)

    def _ask(self, documents: Sequence[Document]) -> Texts:
        texts = [document.text for document in documents]
        return Texts(texts, self.embed, lambda embeddings: self.search(embeddings, self.parameters.k))

    @property
    def most_calibrated(self) -> int:
        """The number of documents whose scores for all labels fit in memory while a combiner is fitted, at least 1."""
        return max(1, CALIBRATION_BYTES // (4 * MATRICES * max(1, len(self.store.labels))))

    def drawn(self, documents: int, progress: Progress) -> list[int]:
        """Return the positions of as many randomly chosen validation documents as fit in memory."""
        most = self.most_calibrated
        if documents <= most:
            return list(range(documents))
        progress.note(
            f"{documents:,} validation documents × {len(self.store.labels):,} labels do not fit in memory: using a "
            f"random sample of {most:,} documents for the combination and thresholds"
        )
        order = torch.randperm(documents, generator=torch.Generator().manual_seed(self.parameters.seed))
        return order[:most].sort().values.tolist()

    def learn_combination(
        self, asked: Texts, documents: Sequence[Document], parts: Mapping[str, Tensor], folder: Path, progress: Progress
    ) -> Calibrated:
        """Fit the combiner on the texts of these documents and the witnesses' scores, and write it to the folder."""
        found = asked.neighbours
        progress.start(Stage("fitting the combination"))
        self.combiner, learnt, unseen = self.fit_combiner(parts, found, documents)
        self.combiner.save(folder)
        scores = Scores(unseen, found.names, parts, self._confidence(*self._weighed(parts, found)), found)
        scores = replace(scores, alternatives=self.alternatives(scores))
        return Calibrated(scores, {"combination": learnt}, documents, asked.embeddings)

    def fit_combiner(
        self, parts: Mapping[str, Tensor], found: Neighbours, documents: Sequence[Document]
    ) -> tuple[Combiner, Mapping[str, object], Tensor]:
        """Fit a combiner to the scores of the witnesses; return it, facts about it, and cross-fitted (n,L) scores.

        A combiner that learns has not seen the labels of the documents that it scores here.
        """
        p, (inputs, context) = self.parameters, self._weighed(parts, found)
        combiner: Combiner = lookup(COMBINERS, p.combination, "combination")(optimise=p.optimise, seed=p.seed)
        learnt = combiner.fit(inputs, LabelSpace(found.names).matrix(documents), context)
        unseen = combiner.held_out
        return combiner, learnt, combiner.combine(inputs, context) if unseen is None else unseen

    def combine(self, parts: Mapping[str, Tensor], found: Neighbours, gamma: float | None = None) -> Scores:
        """Combine the witnesses' scores of texts with these neighbours."""
        inputs, context = self._weighed(parts, found, gamma)
        final = self.combiner.combine(inputs, context)
        familiarity = self.familiarity_of(found)
        return Scores(final, found.names, parts, self._confidence(inputs, context), found, familiarity=familiarity)

    def _confidence(self, inputs: Mapping[str, Tensor], context: Context) -> Tensor | None:
        """Return λ (n,) if both of its witnesses are used."""
        return confidence_of(inputs, context) if {"classifier", "neighbours"} <= inputs.keys() else None

    def alternatives(self, scores: Scores) -> dict[str, Tensor]:
        """Return the scores of the other combiners for the same witnesses."""
        assert scores.neighbours is not None
        inputs, context = self._weighed(scores.parts, scores.neighbours)
        others: dict[str, Combiner] = {"average": Average()}
        if scores.confidence is not None:
            others["confidence"] = Confidence()
        return {
            name: other.combine(inputs, context)
            for name, other in others.items()
            if name != self.parameters.combination
        }

    def _weighed(
        self, parts: Mapping[str, Tensor], found: Neighbours, gamma: float | None = None
    ) -> tuple[Mapping[str, Tensor], Context]:
        """Return the input of a combiner; if no neighbour votes, that does not count against a label."""
        lonely = ~found.similarity.isfinite().any(1)
        if "neighbours" in parts and bool(lonely.any()):
            votes = parts["neighbours"]
            parts = {**parts, "neighbours": votes.masked_fill(lonely[:, None].to(votes.device), float("nan"))}
        p, device = self.parameters, next(iter(parts.values())).device
        counts = self._counts(len(found.names), device)
        gamma = p.gamma if gamma is None else gamma
        return parts, Context(counts, found.similarity.to(device), gamma, p.vote_temperature)

    def _counts(self, labels: int, device: torch.device) -> Tensor:
        """Return the training documents of each label, 0 for labels added later; reuse the latest tensor."""
        made_of = (self.label_counts.data_ptr(), len(self.label_counts), labels, device)
        kept = self._latest_counts
        if kept is None or kept[0] != made_of:
            counts = F.pad(self.label_counts, (0, labels - len(self.label_counts))).to(device)
            kept = self._latest_counts = made_of, counts
        return kept[1]

    def votes(self, found: Neighbours, labels: int) -> Tensor:
        """Let neighbours vote, Eq. 9-10, and against the labels that they reject: (n,L)."""
        temperature = self.parameters.vote_temperature
        votes = vote_sparse(found.similarity, found.offsets, found.label_columns, labels, temperature)
        if not len(found.rejected_columns):
            return votes
        columns = found.rejected_offsets, found.rejected_columns
        return less_rejected(votes, vote_sparse(found.similarity, *columns, labels, temperature), REJECTION_WEIGHT)

    def support(self, texts: Sequence[str], columns: Sequence[Sequence[int]]) -> Support:
        """Return the words that support labels, from whichever witness provides some."""
        return named_words(self.witnesses.values(), texts, columns)


def combining_seconds(parameters: DennParameters, corpus: Corpus) -> float:
    """Estimate how long it takes to fit a combiner on the validation documents, and on training documents if few."""
    from denn.methods import cross_fitting

    documents = len(corpus.train) + len(corpus.valid)
    few = parameters.effort == "quick" and documents <= cross_fitting.FEW
    fitting = cross_fitting.SECONDS_A_DOCUMENT * documents if few else 0.0
    if not corpus.valid or parameters.combination != "learnt":
        return fitting if corpus.valid else 0.0
    fitted_to = documents if few else len(corpus.valid)
    return fitting + FIT_SECONDS + SECONDS_A_CELL * fitted_to * len(corpus.labels)

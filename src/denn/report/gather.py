"""Compute the contents of a report on a model and labelled documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from denn.analysis.curves import calibration, threshold_curve
from denn.analysis.errors import confusions, worst
from denn.analysis.sweeps import GAMMAS, KS, Searched, datastore_sweep, sweep
from denn.core.components import principal_axes
from denn.core.thresholds import GRID, decide
from denn.data.vocabularies import with_ids
from denn.datastore import Datastore
from denn.errors import DataError, UnknownError
from denn.evaluation import Evaluation, concatenate, decision_thresholds, evaluate, stored_copies, systems_of
from denn.label_editing import merge_scores, with_merges
from denn.model import Model
from denn.prediction_types import Neighbour, Scores
from denn.predictions import checked, neighbours_with_texts
from denn.protocols import Progress, Retriever
from denn.report.combination import combination_of
from denn.text_batches import BATCH
from denn.types import Document, LabelSpace, Stage

MAPPED = 1000  # maximum number of stored documents, and of texts, on the map
COLOURED = 7  # number of labels with a colour on the map
EVIDENCE = 5  # number of neighbours shown for each of the worst texts
BINS = 20  # bins in the histogram of λ


@dataclass(frozen=True)
class Error:
    """A badly tagged text, its nearest stored documents, and the words that support its labels."""

    document: Document
    loss: float
    right: Sequence[str]
    missed: Sequence[tuple[str, float]]
    wrong: Sequence[tuple[str, float]]
    confidence: float | None  # λ, if it is used
    neighbours: Sequence[Neighbour]
    words: Mapping[str, Sequence[str]]  # label → supporting words, if any


@dataclass(frozen=True)
class Map:
    """The datastore on two principal components; points end with an index into `labels`, or −1."""

    labels: Sequence[str]
    stored: Sequence[tuple[float, float, int]]
    texts: Sequence[tuple[float, float, int]]
    variance: tuple[float, float]  # share explained by each component


@dataclass(frozen=True)
class Neighbourhood:
    """Findings that need a datastore; the sweeps are empty without the witness "neighbours"."""

    stored: int
    copies: int  # texts that are in the datastore
    shared: int  # texts that are also validation texts
    reached: int  # texts with a label that the classifier scores at γ or above; 0 if λ is not used
    sweep: Mapping[str, Sequence[Mapping[str, float]]]
    sizes: Sequence[Mapping[str, float]]
    map: Map


@dataclass(frozen=True)
class Findings:
    """Everything that the page shows."""

    evaluation: Evaluation
    labels_per_text: float
    train_counts: Sequence[int]  # training documents of each label
    curves: Mapping[str, Sequence[Mapping[str, float]]]  # system → threshold curve
    calibration: Mapping[str, Mapping[str, Any]]  # system → calibration
    confusions: Sequence[Mapping[str, Any]]
    errors: Sequence[Error]
    confidence: Sequence[int] | None  # number of texts in each bin of λ; None if λ is not used
    keeps_documents: bool  # whether the method has a datastore, even an empty one
    neighbourhood: Neighbourhood | None
    validated: int  # documents used to tune thresholds in the sweeps; 0: the model's threshold is used
    fitted: bool  # there are validation documents, but not for tuning: the combination was fitted to them


def gather(model: Model, documents: Sequence[Document], valid: Sequence[Document], progress: Progress) -> Findings:
    """Score the documents and analyse the scores.

    `valid` is used to tune thresholds in the sweeps, unless the combination was fitted to validation documents.
    """
    merges = model.merges()
    documents, valid = (with_merges(with_ids(some, model.vocabulary), merges) for some in (documents, valid))
    if not any(document.labels for document in documents):
        raise DataError(f"None of the {len(documents):,} documents has a label. A report needs labelled documents.")
    method, combination, around = model.method, combination_of(model.card), None
    fitted = combination is not None and combination.fitted
    tuning = () if fitted else valid
    if method.store is not None and len(method.store):
        around = _Searched(cast(Retriever, method), documents, tuning, progress)
    scores = _scores(model, documents, progress) if around is None else checked(merge_scores(around.scores, merges))
    uses_lambda = combination is not None and combination.uses_lambda
    counts = dict(zip(model.labels.names, model.card.corpus["label_counts"], strict=True))
    progress.start(Stage("comparing scores and labels"))
    later = model.later_thresholds(scores)
    evaluation = evaluate(scores, documents, model.card.thresholds, counts, later=later)
    gold = LabelSpace(evaluation.names).matrix(documents)
    systems = {name: F.pad(values, (0, evaluation.unknown_labels)) for name, values in systems_of(scores).items()}
    tuned = model.card.thresholds["final"]
    threshold = decision_thresholds(tuned, len(scores.names), later["final"])
    near = None
    if around is not None:
        near = around.neighbourhood(tuned.overall, len(model.labels), uses_lambda, valid)
    decided = F.pad(decide(scores.final, threshold), (0, evaluation.unknown_labels))
    return Findings(
        evaluation=evaluation,
        labels_per_text=float(gold.sum()) / len(gold),
        train_counts=[counts.get(name, 0) for name in evaluation.names],
        curves={name: threshold_curve(values, gold, GRID) for name, values in systems.items()},
        calibration={name: calibration(values, gold) for name, values in systems.items()},
        confusions=confusions(decided, gold, evaluation.names),
        errors=[_error(model, documents, scores, row, uses_lambda) for row in worst(scores, gold, threshold)],
        confidence=_histogram(scores.confidence) if uses_lambda and scores.confidence is not None else None,
        keeps_documents=method.store is not None,
        neighbourhood=near,
        validated=len(tuning),
        fitted=fitted and bool(valid),
    )


class _Searched:
    """Documents embedded and searched once, with the largest number of neighbours of any setting."""

    def __init__(
        self, method: Retriever, documents: Sequence[Document], tuning: Sequence[Document], progress: Progress
    ) -> None:
        self.method, self.progress = method, progress
        self.documents, self.tuning = documents, tuning
        self.test = Searched(method, documents, self._embed("embedding texts", documents))
        self.scores = self.test.scores

    def _embed(self, what: str, documents: Sequence[Document]) -> Tensor:
        batches = [self.method.embed(texts) for texts in _batches(what, documents, self.progress)]
        return torch.cat(batches) if batches else torch.empty(0, self.method.store.dimension)

    def neighbourhood(
        self, threshold: float, known: int, uses_lambda: bool, valid: Sequence[Document]
    ) -> Neighbourhood:
        """Sweep k, γ if λ is used, and the datastore size, and compute the map."""
        parameters, store = self.method.parameters, self.method.store
        swept, sizes = self._sweeps(threshold, uses_lambda) if "neighbours" in self.scores.parts else ({}, [])
        validation = {document.text for document in valid}
        copies = stored_copies(self.documents, self.scores, store)
        shared = sum(document.text in validation for document in self.documents)
        reached = 0
        if uses_lambda:
            reached = int((self.scores.parts["classifier"][:, :known] >= parameters.gamma).any(1).sum())
        return Neighbourhood(len(store), copies, shared, reached, swept, sizes, self._map())

    def _sweeps(
        self, threshold: float, uses_lambda: bool
    ) -> tuple[dict[str, list[dict[str, float]]], list[dict[str, float]]]:
        """Try other settings and smaller datastores, with thresholds tuned on the validation texts, if any."""
        valid = None
        if self.tuning:
            valid = Searched(self.method, self.tuning, self._embed("embedding validation texts", self.tuning))
        self.progress.start(Stage("trying other settings"))
        ks, gammas = (*KS, self.method.parameters.k), GAMMAS if uses_lambda else ()
        swept = sweep(valid, self.test, ks=ks, gammas=gammas, threshold=threshold)
        self.progress.start(Stage("trying smaller datastores"))
        return swept, datastore_sweep(valid, self.test, threshold=threshold)

    def _map(self) -> Map:
        """Project a sample of the datastore and of the texts onto two principal components of the datastore."""
        store, chance = self.method.store, torch.Generator().manual_seed(0)
        counts = store.label_counts()
        shown = LabelSpace(tuple(sorted(counts, key=lambda name: -counts[name])[:COLOURED]))
        ids = store.ids()
        sample = [ids[row] for row in torch.randperm(len(ids), generator=chance)[:MAPPED].tolist()]
        stored, vectors = _with_vectors(store, sample)
        chosen = torch.randperm(len(self.documents), generator=chance)[:MAPPED]
        keys, queries = (F.normalize(rows.double(), dim=1) for rows in (vectors, self.test.embeddings[chosen]))
        centre, axes, (first, second) = principal_axes(keys)
        return Map(
            shown.names,
            _coloured((keys - centre) @ axes, stored, shown),
            _coloured((queries - centre) @ axes, [self.documents[row] for row in chosen.tolist()], shown),
            (float(first), float(second)),
        )


def _with_vectors(store: Datastore, ids: Sequence[str]) -> tuple[list[Document], Tensor]:
    """Return stored documents with their (n,d) vectors, leaving out those that are removed meanwhile."""
    while True:
        documents = store.get(ids, missing_ok=True)
        ids = [str(document.id) for document in documents]
        with suppress(UnknownError):  # one was removed since
            return documents, store.vectors(ids)


def _coloured(points: Tensor, documents: Sequence[Document], shown: LabelSpace) -> list[tuple[float, float, int]]:
    """Return each point with the rarest of its shown labels, which is more informative than the most frequent one."""
    labels = (max(shown.columns(document.labels), default=-1) for document in documents)
    return [(across, up, label) for (across, up), label in zip(points.tolist(), labels, strict=True)]


def _scores(model: Model, documents: Sequence[Document], progress: Progress) -> Scores:
    """Score without neighbours, for a method without a datastore or with an empty one."""
    batches = [model.score(texts).cpu() for texts in _batches("scoring texts", documents, progress)]
    return concatenate([replace(batch, alternatives=model.method.alternatives(batch)) for batch in batches])


def _batches(what: str, documents: Sequence[Document], progress: Progress) -> Iterator[list[str]]:
    """Yield the texts in batches; log a note with the time left at each quarter."""
    if documents:
        progress.start(Stage(what, len(documents)))
        progress.advance(0)
    for start in range(0, len(documents), BATCH):
        yield [document.text for document in documents[start : start + BATCH]]
        done = min(start + BATCH, len(documents))
        progress.advance(done)
        if done < len(documents) and 4 * done // len(documents) > 4 * start // len(documents):
            progress.note(f"{what}: {done:,} of {len(documents):,}")


def _error(
    model: Model, documents: Sequence[Document], scores: Scores, found: Mapping[str, Any], uses_lambda: bool
) -> Error:
    """Collect the evidence for one of the worst texts; labels unknown to the model count as missed."""
    row, document = found["row"], documents[found["row"]]
    neighbours: Sequence[Neighbour] = ()
    missed = [(label, 0.0) for label in document.labels if label not in scores.names] + found["missed"]
    if scores.neighbours is not None:
        (neighbours,) = neighbours_with_texts(model.store, scores.neighbours.rows(row, row + 1), 1, EVIDENCE)
    involved = {*document.labels, *(label for label, _ in found["wrong"])}
    columns = [column for column, label in enumerate(scores.names) if label in involved]
    (support,) = model.method.support([document.text], [columns])
    return Error(
        document,
        found["loss"],
        [label for label in document.labels if label not in dict(missed)],
        missed,
        found["wrong"],
        float(scores.confidence[row]) if uses_lambda and scores.confidence is not None else None,
        neighbours,
        {
            scores.names[column]: [word for word, _ in words]
            for column, words in zip(columns, support, strict=True)
            if words
        },
    )


def _histogram(confidence: Tensor) -> list[int]:
    counts: list[int] = (confidence * BINS).long().clamp(0, BINS - 1).bincount(minlength=BINS).tolist()
    return counts

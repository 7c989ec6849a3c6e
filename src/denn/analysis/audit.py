"""Find labels that look wrong: documents whose labels others contradict, with labels to add or drop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch

from denn.analysis.queue import check_count
from denn.analysis.unseen import Judge, Stored
from denn.core.choice import suspicion
from denn.core.thresholds import decide
from denn.errors import DataError
from denn.label_editing import merge_scores
from denn.prediction_types import Neighbour, Scores
from denn.progress import Silent
from denn.protocols import Progress, Retriever
from denn.types import Document, LabelSpace, Stage, Where

if TYPE_CHECKING:
    from torch import Tensor

    from denn.model import Model

SHOWN = 3  # neighbours shown per document


@dataclass(frozen=True, slots=True)
class Doubt:
    """A label that a document seems to lack, or to have by mistake."""

    label: str
    score: float  # how likely the document has the label, judged without its own labels
    suspicion: float  # from 0 to 1; comparable between labels to add and labels to drop
    parts: Mapping[str, float]  # witness → its score
    words: tuple[tuple[str, float], ...]  # words that support the label, with their weights


@dataclass(frozen=True, slots=True)
class Suspect:
    """A document whose labels look wrong."""

    rank: int  # from 1
    document: Document
    suspicion: float  # suspicion of the label that is most likely wrong
    add: tuple[Doubt, ...]  # the most suspicious first
    drop: tuple[Doubt, ...]
    neighbours: tuple[Neighbour, ...]  # nearest first, without the document itself


def audit(model: Model, documents: Sequence[Document] | None, count: int, progress: Progress | None) -> list[Suspect]:
    """Rank documents by how likely a label is wrong; see `Model.audit`."""
    check_count(count)
    progress = progress or Silent()
    _ = model.store  # raises if there is none
    method = cast(Retriever, model.method)
    progress.start(Stage("reading the datastore"))
    stored = Stored(method)
    if documents is None:
        if len(stored.documents) < 2:
            raise DataError(
                f"An audit needs at least 2 stored documents, because each is judged by the others; found "
                f"{len(stored.documents)}. Add some with `denn store add`."
            )
        confirmed = set(model.store.select(Where(action="confirm")))
        documents = [document for document in stored.documents if document.id not in confirmed]
        if not documents:
            return []
    if not documents:
        raise DataError("There are no documents to audit. Give at least one.")
    folds: dict[int | None, list[Document]] = {}
    for document in documents:
        folds.setdefault(stored.fold(document), []).append(stored.with_rejections(document))
    shares, suspects = label_shares(method), []
    for number, (fold, some) in enumerate(folds.items(), 1):
        judge = Judge(method, stored, fold, progress)
        progress.start(Stage(f"judging documents, part {number} of {len(folds)}", len(some)))
        suspects += _worst(model, judge, some, shares, count, progress)
    suspects.sort(key=lambda suspect: -suspect.suspicion)
    return [replace(suspect, rank=rank) for rank, suspect in enumerate(suspects[:count], 1)]


def label_shares(method: Retriever) -> dict[str, float]:
    """Return the share of stored documents with each label, smoothed away from 0 and 1."""
    documents = len(method.store)
    return {name: (count + 0.5) / (documents + 1) for name, count in method.store.label_counts().items()}


def doubts(
    scores: Scores, documents: Sequence[Document], thresholds: float | Tensor, shares: Mapping[str, float]
) -> Tensor:
    """Return (n,L) how suspicious each label decision is; 0 if the scores agree, or if a person rejected the label."""
    labels = LabelSpace(scores.names)
    given = labels.matrix(documents)
    found = suspicion(scores.final, given, torch.tensor([shares.get(name, 0.0) for name in scores.names]))
    found[decide(scores.final, thresholds) == given] = 0
    for row, document in enumerate(documents):
        found[row, labels.columns(document.rejected)] = 0
    return found


def _worst(
    model: Model,
    judge: Judge,
    documents: Sequence[Document],
    shares: Mapping[str, float],
    count: int,
    progress: Progress,
) -> list[Suspect]:
    """Return the most suspicious documents of a fold, if any, computing evidence only for these."""
    highest, merges = [], model.merges()
    for begin in range(0, len(documents), model.batch()):
        batch = documents[begin : begin + model.batch()]
        scores = merge_scores(judge.score(batch), merges)
        highest.append(doubts(scores, batch, model.decision_thresholds(scores), shares).amax(1))
        progress.advance(begin + len(batch))
    worst = torch.cat(highest).sort(descending=True, stable=True)
    order = worst.indices[:count][worst.values[:count] > 0].tolist()
    found: list[Suspect] = []
    for begin in range(0, len(order), model.batch()):
        batch = [documents[row] for row in order[begin : begin + model.batch()]]
        scores = merge_scores(judge.score(batch), merges)
        wrong = doubts(scores, batch, model.decision_thresholds(scores), shares)
        found += _suspects(model, judge, batch, scores, wrong)
    return found


def _suspects(
    model: Model, judge: Judge, documents: Sequence[Document], scores: Scores, wrong: Tensor
) -> Iterator[Suspect]:
    """Yield what looks wrong in documents, and why."""
    ranked = wrong.argsort(dim=1, descending=True, stable=True)
    columns = [row[:number].tolist() for row, number in zip(ranked, (wrong > 0).sum(1).tolist(), strict=True)]
    neighbours = model.neighbours(scores, SHOWN)
    words = judge.support([document.text for document in documents], columns)
    for row, document in enumerate(documents):
        found = [
            _doubt(scores, wrong, row, column, named) for column, named in zip(columns[row], words[row], strict=True)
        ]
        add = tuple(doubt for doubt in found if doubt.label not in document.labels)
        drop = tuple(doubt for doubt in found if doubt.label in document.labels)
        yield Suspect(0, document, found[0].suspicion, add, drop, neighbours[row])


def _doubt(scores: Scores, wrong: Tensor, row: int, column: int, words: Sequence[tuple[str, float]]) -> Doubt:
    by_witness = {name: float(part[row, column]) for name, part in scores.parts.items()}
    return Doubt(
        scores.names[column],
        float(scores.final[row, column]),
        float(wrong[row, column]),
        {name: score for name, score in by_witness.items() if score == score},
        tuple(words),
    )

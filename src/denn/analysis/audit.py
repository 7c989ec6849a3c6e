"""Which labels look wrong: documents whose labels others contradict, with what to add or drop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch

from denn.analysis.queue import check_count
from denn.analysis.unseen import Judge, Stored
from denn.core.choice import suspicion
from denn.core.thresholds import decide
from denn.errors import DataError
from denn.protocols import Progress, Retriever
from denn.types import Document, LabelSpace, Neighbour, Scores, Stage

if TYPE_CHECKING:
    from torch import Tensor

    from denn.model import Model

SHOWN = 3  # neighbours of a document


@dataclass(frozen=True, slots=True)
class Doubt:
    """A label that a document seems to lack, or to have by mistake."""

    label: str
    score: float  # how likely the document has the label, judged without its own labels
    suspicion: float  # how likely the label is wrong as it stands
    parts: Mapping[str, float]  # witness → its score
    words: tuple[tuple[str, float], ...]  # that speak for the label, with their weight


@dataclass(frozen=True, slots=True)
class Suspect:
    """A document whose labels look wrong."""

    rank: int  # from 1
    document: Document
    suspicion: float  # of the label that is most likely wrong
    add: tuple[Doubt, ...]  # the most suspicious first
    drop: tuple[Doubt, ...]
    neighbours: tuple[Neighbour, ...]  # nearest first, without the document itself


class Unwatched(Progress):
    """Progress that nobody watches."""


def audit(model: Model, documents: Sequence[Document] | None, count: int, progress: Progress | None) -> list[Suspect]:
    """Rank documents by how likely a label is wrong, see `Model.audit`."""
    check_count(count)
    progress = progress or Unwatched()
    _ = model.store  # an error if there is none
    method = cast(Retriever, model.method)
    progress.start(Stage("reading the datastore"))
    stored = Stored(method)
    if documents is None:
        documents = stored.documents
    if not documents:
        raise DataError("Got no documents to audit, expected at least one. Add some with `denn store add`.")
    folds: dict[int | None, list[Document]] = {}
    for document in documents:
        folds.setdefault(stored.fold(document), []).append(document)
    suspects = []
    for number, (fold, some) in enumerate(folds.items(), 1):
        judge = Judge(method, stored, fold, progress)
        progress.start(Stage(f"judging documents, part {number} of {len(folds)}", len(some)))
        suspects += _worst(model, judge, some, count, progress)
    suspects.sort(key=lambda suspect: -suspect.suspicion)
    return [replace(suspect, rank=rank) for rank, suspect in enumerate(suspects[:count], 1)]


def _worst(model: Model, judge: Judge, documents: Sequence[Document], count: int, progress: Progress) -> list[Suspect]:
    """Return the most suspicious documents of a fold, if any; evidence is made for these alone."""
    highest = []
    for begin in range(0, len(documents), model.batch()):
        batch = documents[begin : begin + model.batch()]
        scores = judge.score(batch)
        highest.append(_suspicions(scores, batch).amax(1))
        progress.advance(begin + len(batch))
    order = torch.cat(highest).argsort(descending=True, stable=True)[:count].tolist()
    found: list[Suspect] = []
    for begin in range(0, len(order), model.batch()):
        batch = [documents[row] for row in order[begin : begin + model.batch()]]
        found += _suspects(model, judge, batch)
    return found


def _suspicions(scores: Scores, documents: Sequence[Document]) -> Tensor:
    """Return the (n,L) probabilities that labels are wrong as they stand; 0 for those that a person rejected."""
    labels = LabelSpace(scores.names)
    found = suspicion(scores.final, labels.matrix(documents))
    for row, document in enumerate(documents):
        found[row, labels.columns(document.rejected)] = 0
    return found


def _suspects(model: Model, judge: Judge, documents: Sequence[Document]) -> list[Suspect]:
    """Say what looks wrong in documents, and why."""
    scores = judge.score(documents)
    wrong, given = _suspicions(scores, documents), LabelSpace(scores.names).matrix(documents)
    doubtful = (decide(scores.final, model.decision_thresholds(scores)) != given) & (wrong > 0)
    ranked = wrong.masked_fill(~doubtful, 0).argsort(dim=1, descending=True, stable=True)
    columns = [row[:number].tolist() for row, number in zip(ranked, doubtful.sum(1).tolist(), strict=True)]
    neighbours = model.neighbours(scores, SHOWN)
    words = judge.support([document.text for document in documents], columns)
    suspects = []
    for row, document in enumerate(documents):
        doubts = [
            (bool(given[row, column]), _doubt(scores, wrong, row, column, named))
            for column, named in zip(columns[row], words[row], strict=True)
        ]
        add, drop = (tuple(doubt for there, doubt in doubts if there is kind) for kind in (False, True))
        if doubts:
            suspects.append(Suspect(0, document, doubts[0][1].suspicion, add, drop, neighbours[row]))
    return suspects


def _doubt(scores: Scores, wrong: Tensor, row: int, column: int, words: Sequence[tuple[str, float]]) -> Doubt:
    heard = {name: float(part[row, column]) for name, part in scores.parts.items()}
    return Doubt(
        scores.names[column],
        float(scores.final[row, column]),
        float(wrong[row, column]),
        {name: score for name, score in heard.items() if score == score},
        tuple(words),
    )

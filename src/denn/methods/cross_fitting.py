"""Score training documents by models that have not learnt from them, if validation documents alone are too few."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from denn.clock import Clock
from denn.combiners.judging import folds_of
from denn.errors import TrainingError
from denn.methods.denn import DENN
from denn.methods.relearning import Judged, ask, relearn, with_own_labels
from denn.progress import Silent
from denn.protocols import Progress
from denn.training.head import BATCH, epoch_seconds
from denn.types import Corpus, Document, LabelSpace, Stage
from denn.witnesses.texts import Texts

FEW = 500  # documents for training and validation; it pays up to 300 at least (results/few-documents.jsonl)
SECONDS_A_DOCUMENT = 0.01  # expected
TIME_SHARE = 0.25  # largest share of a time budget


class CrossFitted(NamedTuple):
    """Validation documents and then training documents, each scored by witnesses that have not learnt from it."""

    asked: Texts
    documents: Sequence[Document]
    parts: Mapping[str, Tensor]  # witness → (n,L)


def are_few(method: DENN, documents: int) -> bool:
    """Return whether this many documents for training and validation are so few that they should be cross-fitted."""
    return documents <= min(FEW, method.most_calibrated)


def cross_fit(
    method: DENN,
    judged: Judged,
    learnt: Sequence[Document],
    vectors: Tensor,
    head_epochs: int,
    progress: Progress,
    clock: Clock,
) -> CrossFitted | None:
    """Score the documents that a method has learnt from in folds, by heads and witnesses fitted to the other folds.

    `judged` are its validation documents, `vectors` the unit vectors of the others, and `head_epochs` those of its own
    head. Documents with the same text are in every fit and are not scored. Return None if there are too few documents
    to divide, or too little time or text for a fold.
    """
    budget = Clock(None if clock.budget == math.inf else min(TIME_SHARE * clock.budget, clock.left()))
    places, folds = _divide(judged.documents, learnt, method.parameters.seed)
    head = method.network.head
    if len(folds) < 2 or len(folds) * head_epochs * epoch_seconds(head, len(learnt)) > budget.left():
        return None
    scored = [learnt[row] for row in places]
    documents, own_ids = [*judged.documents, *scored], [*judged.own_ids, *(document.id for document in scored)]
    embeddings = torch.cat([F.normalize(judged.embeddings, dim=1), vectors[places]])
    asked = with_own_labels(method, ask(method, documents, embeddings, own_ids))
    valid = with_own_labels(method, ask(method, judged.documents, judged.embeddings, judged.own_ids))
    parts = {name: F.pad(part, (0, 0, 0, len(scored))) for name, part in method.hear(valid).items()}
    progress.start(Stage("scoring training documents in folds", len(folds), "folds"))
    for done, fold in enumerate(folds, 1):
        others = sorted(set(range(len(learnt))) - {places[at] for at in fold})
        new = _fit([learnt[row] for row in others], vectors[others], method, head_epochs, len(learnt))
        if new is None or budget.left() <= 0:
            return None
        some = [scored[at] for at in fold]
        unseen = ask(method, some, vectors[[places[at] for at in fold]], [document.id for document in some])
        for name, part in new.hear(with_own_labels(method, unseen)).items():
            parts[name][[len(judged.documents) + at for at in fold]] = part
        progress.advance(done)
    return CrossFitted(asked, documents, parts)


def _divide(judged: Sequence[Document], learnt: Sequence[Document], seed: int) -> tuple[list[int], list[list[int]]]:
    """Return the rows of the documents whose text is unique, and the folds of their positions in this list."""
    copies = Counter(document.text for document in (*judged, *learnt))
    places = [row for row, document in enumerate(learnt) if copies[document.text] == 1]
    fold = folds_of(len(places), seed)
    return places, [(fold == number).nonzero()[:, 0].tolist() for number in sorted(set(fold.tolist()))]


def epochs_for_as_many_steps(epochs: int, documents: int, fewer: int) -> int:
    """Return in how many epochs a head makes as many steps with fewer documents."""
    return math.ceil(epochs * math.ceil(documents / BATCH) / math.ceil(fewer / BATCH))


def _fit(documents: Sequence[Document], vectors: Tensor, method: DENN, head_epochs: int, given: int) -> DENN | None:
    """Fit a head and witnesses to some of the `given` documents; None if one of them could not learn every label.

    The head makes as many steps as it would make with all of them in `head_epochs`.
    """
    counts = Counter(label for document in documents for label in document.labels)
    labels = LabelSpace(method.names, tuple(counts[name] for name in method.names))
    epochs = epochs_for_as_many_steps(head_epochs, given, len(documents))
    try:
        new = relearn(method, Corpus(documents, labels=labels), vectors, Silent(), Clock(), epochs)
    except TrainingError:
        return None
    return new if all(witness.is_complete for witness in new.witnesses.values()) else None

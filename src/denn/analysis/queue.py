"""Choose what to label next: texts that are uncertain, unfamiliar, and unlike each other."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from denn.core.choice import expected_errors, spread_out
from denn.core.thresholds import decide
from denn.errors import ConfigError, DataError
from denn.methods import familiarity
from denn.prediction_types import Prediction, Scores
from denn.types import Document

if TYPE_CHECKING:
    from torch import Tensor

    from denn.datastore import Datastore
    from denn.model import Model

MOST = 10_000  # maximum number of texts to choose
POOL = 10  # candidates for each of them, from which those unlike each other are chosen


@dataclass(frozen=True, slots=True)
class Queued:
    """A text that is worth labelling."""

    rank: int  # from 1
    text: str
    id: str | None
    uncertainty: float  # expected number of wrong labels in the prediction
    nearness: float  # mean cosine of the nearest stored documents
    prediction: Prediction  # without evidence


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text with what its labels would teach."""

    value: float
    place: int  # in the input
    text: str
    id: str | None
    uncertainty: float
    nearness: float
    prediction: Prediction

    def __lt__(self, other: Candidate) -> bool:
        return (self.value, -self.place) < (other.value, -other.place)


def queue(model: Model, texts: Iterable[str | Document], count: int) -> list[Queued]:
    """Rank texts by how much their labels would teach; see `Model.queue`."""
    check_count(count)
    _ = model.store  # raises if there is none
    pool: list[Candidate] = []
    for candidate in _candidates(model, texts):
        if len(pool) < POOL * count:
            heapq.heappush(pool, candidate)
        else:
            heapq.heappushpop(pool, candidate)
    if not pool:
        raise DataError("There are no texts to rank. Give at least one.")
    pool.sort(reverse=True)
    vectors = [
        model.embed([candidate.text for candidate in pool[begin : begin + model.batch()]])
        for begin in range(0, len(pool), model.batch())
    ]
    return ranked(pool, torch.cat(vectors), count)


def ranked(pool: Sequence[Candidate], vectors: Tensor, count: int) -> list[Queued]:
    """Return the best candidates, given with their (n,d) embeddings, so that similar ones do not follow each other."""
    values = torch.tensor([candidate.value for candidate in pool])
    chosen = [pool[row] for row in spread_out(values, F.normalize(vectors.float(), dim=1), count)]
    return [
        Queued(rank, found.text, found.id, found.uncertainty, found.nearness, found.prediction)
        for rank, found in enumerate(chosen, 1)
    ]


def check_count(count: int) -> None:
    """Raise a ConfigError if the number of results is out of range."""
    if not 1 <= count <= MOST:
        raise ConfigError(f"count must be a number from 1 to {MOST:,}, not {count}.")


def _candidates(model: Model, texts: Iterable[str | Document]) -> Iterator[Candidate]:
    """Score texts batch by batch, using only the first of equal texts."""
    place, documents = 0, distinct(texts)
    while batch := list(islice(documents, model.batch())):
        scores = model.score([document.text for document in batch], own_ids(model.store, batch))
        yield from judged(model, batch, scores, place)
        place += len(batch)


def own_ids(store: Datastore, documents: Sequence[Document]) -> list[str | None]:
    """Return the ids of those documents that are stored with the same text, to exclude them from their own evidence."""
    texts = store.texts([document.id for document in documents if document.id is not None])
    return [one.id if one.id is not None and texts.get(one.id) == one.text else None for one in documents]


def judged(model: Model, documents: Sequence[Document], scores: Scores, place: int = 0) -> Iterator[Candidate]:
    """Yield how much each of these scored texts would teach; `place` is the position of the first one."""
    scores = scores.cpu()
    thresholds = model.decision_thresholds(scores)
    uncertainty = expected_errors(scores.final, decide(scores.final, thresholds))
    assert scores.neighbours is not None
    nearness = mean_nearness(scores.neighbours.similarity)
    values = worth(uncertainty, nearness).tolist()
    rows = zip(
        values, documents, uncertainty.tolist(), nearness.tolist(), model.decide(scores, thresholds, evidence=0),
        strict=True,
    )  # fmt: skip
    for number, (value, document, unsure, near, prediction) in enumerate(rows, place):
        yield Candidate(value, number, document.text, document.id, unsure, near, prediction)


def worth(uncertainty: Tensor, nearness: Tensor) -> Tensor:
    """Return how much the labels of texts would teach: more for uncertain texts, less for familiar ones."""
    return uncertainty * (1 - nearness.clamp(0, 1))


def mean_nearness(similarity: Tensor) -> Tensor:
    """Return the (n,) mean cosine of the nearest neighbours from (n,k) cosines, nearest first; 0 if there are none."""
    near = familiarity.nearness(similarity)
    return near.where(near.isfinite(), 0.0)


def distinct(texts: Iterable[str | Document]) -> Iterator[Document]:
    """Yield each text once, keeping sixteen bytes of each."""
    seen: set[bytes] = set()
    for number, given in enumerate(texts, 1):
        document = Document(given) if isinstance(given, str) else given
        if not isinstance(document, Document):
            raise DataError(f"Text {number} is of type {type(given).__name__}, expected a string or a Document.")
        if (known := digest(document.text)) not in seen:
            seen.add(known)
            yield document


def digest(text: str) -> bytes:
    """Return sixteen bytes that identify a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()

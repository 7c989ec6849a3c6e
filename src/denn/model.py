"""A trained model: tags texts with evidence, learns and forgets documents, evaluates itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Self

from denn.bundle import Card, read
from denn.config import make_recipe
from denn.core.thresholds import decide
from denn.errors import BundleError, ConfigError, DataError, StoreError
from denn.evaluation import Evaluation, concatenate, evaluate, label_thresholds
from denn.registry import METHODS, lookup
from denn.types import Document, LabelSpace, Neighbour, Neighbours, Prediction, Scores

BATCH = 256  # texts scored at a time
SHOWN = 10  # labels worth showing beside the decided ones
WORTH_SHOWING = 0.01


class Model:
    """A bundle in memory."""

    def __init__(self, method: Any, labels: LabelSpace, card: Card) -> None:
        self.method = method
        self.labels = labels  # what the model was trained on; the datastore may know more
        self.card = card

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the datastore."""
        if hasattr(self.method, "store"):
            self.method.store.close()

    def predict(
        self,
        texts: Sequence[str],
        *,
        threshold: float | None = None,
        per_label: bool = False,
        min_labels: int = 0,
        evidence: int | None = None,
    ) -> list[Prediction]:
        """Tag texts, in order.

        Labels are decided by the threshold tuned on validation, by `threshold`, or by one per label; `min_labels`
        adds the best ones where fewer pass. `evidence` limits the neighbours that are returned (None: all k).
        """
        if isinstance(texts, str):
            raise DataError("Got one string, expected a list of texts. Write predict([text]).")
        return list(
            self.stream(texts, threshold=threshold, per_label=per_label, min_labels=min_labels, evidence=evidence)
        )

    def stream(
        self,
        texts: Iterable[str],
        *,
        threshold: float | None = None,
        per_label: bool = False,
        min_labels: int = 0,
        evidence: int | None = None,
    ) -> Iterator[Prediction]:
        """Tag any number of texts in constant memory; see `predict`."""
        if threshold is not None and not 0 <= threshold <= 1:
            raise ConfigError(f"Got the threshold {threshold}, expected a number from 0 to 1.")
        start = 0
        for batch in _batches(texts):
            for number, text in enumerate(batch, start + 1):
                if not isinstance(text, str):
                    raise DataError(f"Text {number} is of type {type(text).__name__}, expected a string.")
            yield from self._decide(self.method.scores(batch), threshold, per_label, min_labels, evidence)
            start += len(batch)

    def scores(self, texts: Sequence[str], own_ids: Sequence[str | None] | None = None) -> Scores:
        """Score texts without deciding; see `Method.scores`."""
        if not texts:
            raise DataError("Got no texts to score.")
        batches = range(0, len(texts), BATCH)
        return concatenate(
            [
                self.method.scores(texts[i : i + BATCH], None if own_ids is None else own_ids[i : i + BATCH])
                for i in batches
            ]
        )

    def evaluate(self, documents: Sequence[Document], *, stored: bool = False, min_labels: int = 0) -> Evaluation:
        """Compare predictions with the documents' labels.

        `stored` says that the documents may lie in the datastore under their own ids, which are then left out of
        their own evidence.
        """
        own_ids = [document.id for document in documents] if stored else None
        if own_ids and not set(own_ids) & set(self._store().ids()):
            raise DataError("None of the documents is in the datastore by its id; evaluate them without --stored.")
        scores = self.scores([document.text for document in documents], own_ids)
        counts = dict(zip(self.labels.names, self.card.corpus["label_counts"], strict=True))
        return evaluate(scores, documents, self.card.thresholds, counts, min_labels)

    def add(self, documents: Sequence[Document]) -> list[str]:
        """Put labelled documents into the datastore, durably; the next prediction sees them. Return their ids."""
        return list(self._store().add(documents, self.method.embed([document.text for document in documents])))

    def remove(self, ids: Sequence[str]) -> int:
        """Take documents out of the datastore. Return how many went."""
        return int(self._store().remove(ids))

    def _store(self) -> Any:
        if not hasattr(self.method, "store"):
            raise StoreError(
                f"The method {self.card.method!r} keeps no datastore; train with one that does, such as 'denn'."
            )
        return self.method.store

    def _decide(
        self, scores: Scores, threshold: float | None, per_label: bool, min_labels: int, evidence: int | None
    ) -> Iterator[Prediction]:
        """Turn the scores of a batch into predictions."""
        tuned = self.card.thresholds["final"]
        cut: Any = tuned.overall if threshold is None else threshold
        if per_label and threshold is None:
            cut = label_thresholds(tuned, len(scores.names))
        chosen = decide(scores.final, cut, min_labels)
        neighbours = self._neighbours(scores, evidence)
        top = scores.final.topk(min(SHOWN, len(scores.names)), dim=1)
        for row in range(len(scores.final)):
            decided = chosen[row].nonzero().flatten().tolist()
            best = [
                c
                for s, c in zip(top.values[row].tolist(), top.indices[row].tolist(), strict=True)
                if s >= WORTH_SHOWING
            ]
            columns = sorted({*decided, *best}, key=lambda column: (-float(scores.final[row, column]), column))
            yield Prediction(
                labels=tuple(scores.names[column] for column in columns if column in decided),
                scores={scores.names[column]: float(scores.final[row, column]) for column in columns},
                confidence=None if scores.confidence is None else float(scores.confidence[row]),
                neighbours=neighbours[row],
            )

    def _neighbours(self, scores: Scores, limit: int | None) -> list[tuple[Neighbour, ...]]:
        """Fetch the texts of the neighbours; one that was removed meanwhile is left out."""
        found = scores.neighbours
        if found is None or limit == 0:
            return [()] * len(scores.final)
        texts = self._texts({id for ids in found.ids for id in ids[:limit]})
        return [
            tuple(
                Neighbour(id, similarity, _labels(found, row, place, scores.names), texts[id])
                for place, (id, similarity) in enumerate(zip(ids, found.similarity[row].tolist(), strict=False))
                if similarity != float("-inf") and id in texts
            )[:limit]
            for row, ids in enumerate(found.ids)
        ]

    def _texts(self, ids: set[str]) -> dict[str, str]:
        """Fetch the texts of those documents that are still stored."""
        store = self._store()
        order = sorted(ids)
        try:
            return {document.id: document.text for document in store.get(order)}
        except StoreError:  # one was removed between the search and now
            stored = set(store.ids())
            return {document.id: document.text for document in store.get([id for id in order if id in stored])}


def load(path: str | Path) -> Model:
    """Read a model from its folder, checking digests and format."""
    folder = Path(path)
    card, labels = read(folder)
    recipe = make_recipe(card.method, card.parameters)
    method = lookup(METHODS, card.method, "method").load(folder, recipe.parameters, labels)
    model = Model(method, labels, card)
    if hasattr(method, "store") and method.store.labels[: len(labels)] != labels.names:
        model.close()
        raise BundleError(
            f"{folder}: the datastore's labels are not those of labels.txt. Restore the folder from a copy."
        )
    return model


def _labels(found: Neighbours, row: int, place: int, names: Sequence[str]) -> tuple[str, ...]:
    entry = row * found.k + place
    columns = found.label_columns[int(found.offsets[entry]) : int(found.offsets[entry + 1])]
    return tuple(names[column] for column in columns.tolist())


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Cut an iterable into lists of at most BATCH."""
    iterator = iter(texts)
    while batch := list(islice(iterator, BATCH)):
        yield batch

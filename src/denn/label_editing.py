"""Rename and merge labels: the vocabulary of a model's folder changes, its weights and files of labels do not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from denn import bundle
from denn.bundle_card import Card
from denn.datastore import Datastore
from denn.durable import sync
from denn.errors import BundleError, ConflictError, UnknownError
from denn.prediction_types import Scores
from denn.stores.rules import check_labels
from denn.types import Document, Where
from denn.validation import changing
from denn.vocabulary import Vocabulary
from denn.vocabulary_file import read_vocabulary, vocabulary_in, write_vocabulary


def edit(folder: Path, created: str, change: Callable[[Vocabulary], Vocabulary]) -> tuple[Card, Vocabulary]:
    """Change the vocabulary of the model created then, durably, all or nothing; return the new card and vocabulary."""
    with changing(folder):
        card = bundle.read_card(folder)
        if card.created != created:
            raise BundleError(f"{folder} now contains another model. Load it again to use that one.")
        old, vocabulary = vocabulary_in(card.digests), read_vocabulary(folder, card.digests)
        changed = change(vocabulary)
        if changed == vocabulary:
            return card, vocabulary
        stem, _, number = (old or "vocabulary").removesuffix(".json").partition("-")
        new = f"{stem}-{int(number or 1) + 1}.json"
        write_vocabulary(folder, changed, new)
        sync(folder / new)
        digests = {name: digest for name, digest in card.digests.items() if name != old}
        digests[new] = hashlib.sha256((folder / new).read_bytes()).hexdigest()
        card = card.model_copy(update={"digests": digests})
        bundle.write_card(folder, card)
        if old is not None:
            (folder / old).unlink(missing_ok=True)
        return card, changed


def renamed(vocabulary: Vocabulary, labels: Iterable[str], label: str, name: str) -> Vocabulary:
    """Return a vocabulary in which a label has another name; raise if another label has it already."""
    check_labels([name])
    others = (*labels, *(entry.id for entry in vocabulary))
    taken = next((one for one in others if one != label and name in (one, vocabulary.name(one))), None)
    if taken is not None:
        raise ConflictError(
            f"There is already a label named {name!r}. Choose another name, or merge the labels with `denn labels "
            "merge`."
        )
    return vocabulary.with_entry(label, name=name)


def merged(vocabulary: Vocabulary, labels: Sequence[str], into: str, change: int = 0) -> Vocabulary:
    """Return a vocabulary in which labels are replaced by another one, by a change of the datastore."""
    for label in labels:
        vocabulary = vocabulary.with_entry(label, replaced_by=into, replaced_in=change)
    return vocabulary


def check_mergeable(labels: Sequence[str], into: str, store: Datastore) -> None:
    """Raise a ConflictError if labels cannot be merged into another one."""
    if into in labels:
        raise ConflictError(f"The label {into!r} cannot be merged into itself. Give two different labels.")
    for label in labels:
        if not store.select(Where(labels=(label,))):  # there would be no change to undo
            raise ConflictError(
                f"No document has the label {label!r}, so there is nothing to merge. After a refit, the model no "
                "longer predicts it."
            )


def check_known(labels: Iterable[str], known: Iterable[str]) -> None:
    """Raise an UnknownError for a label that the model does not have."""
    held = set(known)
    if unknown := [label for label in labels if label not in held]:
        raise UnknownError(f"There is no label {unknown[0]!r}. `denn store info MODEL --json` lists all labels.")


class Merges:
    """The merges that are in force, found again only after a change of the datastore or the vocabulary."""

    def __init__(self) -> None:
        self._vocabulary = Vocabulary()
        self._number = 0  # of the last change seen
        self._undone: set[int] = set()  # changes that were undone
        self._found: dict[str, str] = {}

    def of(self, vocabulary: Vocabulary, store: Datastore | None) -> dict[str, str]:
        """Return the merged labels that no stored document carries, each with the label that stands for it now.

        If a merge is undone, or its label is assigned again, the label is predicted again.
        """
        if not vocabulary.replaced or store is None:
            return {}
        number = next((one.number for one in store.history(1)), 0)
        if vocabulary is self._vocabulary and number == self._number:
            return self._found
        if vocabulary is not self._vocabulary or any(one.undoes for one in store.history(number - self._number)):
            self._undone = {one.number for one in store.history() if one.undone}
        self._found = _in_force(vocabulary, store, self._undone)
        self._vocabulary, self._number = vocabulary, number
        return self._found


def _in_force(vocabulary: Vocabulary, store: Datastore, undone: Container[int]) -> dict[str, str]:
    gone = {label for label in vocabulary.replaced if vocabulary.replaced_in(label) not in undone}
    if gone and store.select(Where(labels=tuple(sorted(gone)))):
        gone = {label for label in gone if not store.select(Where(labels=(label,)))}
    found = {}
    for label in gone:
        into, seen = vocabulary.replaced[label], {label}
        while into in gone and into not in seen:
            seen.add(into)
            into = vocabulary.replaced[into]
        if into not in gone:
            found[label] = into
    return found


def with_merges(documents: Sequence[Document], merges: Mapping[str, str]) -> Sequence[Document]:
    """Return documents with the labels that stand for merged ones."""
    if not merges:
        return documents
    return [
        replace(one, labels=labels, rejected=tuple(label for label in one.rejected if label not in labels))
        for one in documents
        for labels in [tuple(dict.fromkeys(merges.get(label, label) for label in one.labels))]
    ]


def merge_scores(scores: Scores, merges: Mapping[str, str]) -> Scores:
    """Return scores in which a label has the highest score of itself and those merged into it, which score 0."""
    column = {name: place for place, name in enumerate(scores.names)}
    pairs = [(column[label], column[into]) for label, into in merges.items() if label in column and into in column]
    if not pairs:
        return scores

    def fold(values: Tensor) -> Tensor:
        values = values.clone()
        for label, into in pairs:
            values[:, into] = torch.fmax(values[:, into], values[:, label])  # NaN where a witness does not know it
            values[:, label] = 0.0
        return values

    parts = {name: fold(part) for name, part in scores.parts.items()}
    return replace(scores, final=fold(scores.final), parts=parts)

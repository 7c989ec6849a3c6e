"""What holds in every datastore, whatever it is made of: names of documents and labels, what cannot be undone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from denn.errors import ConflictError, StoreError, UnknownError
from denn.types import Document, Where, Which

CENTURY = timedelta(days=36_525)  # longer than any history, and within what every clock can count
MADE = re.compile(r"doc-([0-9]{1,15})")  # ids that a store may make
MOST_COUNTED = 10**15 - 1


def check_dimension(dimension: int) -> None:
    """Refuse what cannot be the width of an embedding."""
    if dimension < 1:
        raise StoreError(f"got the dimension {dimension}, expected the width of the embeddings, at least 1.")


def as_ids(which: str | Sequence[str]) -> list[str]:
    """Return one id or several as a list, each once."""
    return [which] if isinstance(which, str) else list(dict.fromkeys(which))


def check_meant(which: Which, everything: bool) -> None:
    """Refuse to change every document where nothing says that all of them are meant."""
    if isinstance(which, Where) and which.matches_everything and not everything:
        raise StoreError("got no condition, which means every document. Give one, or say everything=True.")


def label_names(given: Sequence[str]) -> tuple[str, ...]:
    """Return labels as a document has them, each once; one string, or a blank label, is an error."""
    names = Document("", given if isinstance(given, str) else tuple(given)).labels  # type: ignore[arg-type]
    check_labels(names)
    return names


def check_labels(names: Iterable[str]) -> None:
    """Refuse labels that are blank or have more than one line."""
    for name in names:
        if not name.strip():
            raise StoreError(f"got the label {name!r}, expected a name with at least one visible character.")
        if "\n" in name:
            raise StoreError(f"got the label {name!r}, expected one line. Remove the line break.")


def fresh_labels(documents: Sequence[Document], known: Container[str]) -> list[str]:
    """Return the labels that documents bring or reject and that are not known; a blank one is an error."""
    names = (name for document in documents for name in (*document.labels, *document.rejected))
    fresh = list(dict.fromkeys(name for name in names if name not in known))
    check_labels(fresh)
    return fresh


def checked_age(keep: timedelta) -> timedelta:
    """Return for how long the past is kept, at most a century; a negative time is an error."""
    if keep < timedelta():
        raise StoreError(f"got {keep.total_seconds() / 86400:g} days of history to keep, expected 0 or more.")
    return min(keep, CENTURY)


@dataclass(frozen=True)
class Relabelling:
    """Other labels for documents; see `Datastore.relabel`."""

    labels: tuple[str, ...] | None  # None: those that each one has
    add: tuple[str, ...]
    drop: tuple[str, ...]
    reject: tuple[str, ...]

    @classmethod
    def of(
        cls, labels: Sequence[str] | None, add: Sequence[str], drop: Sequence[str], reject: Sequence[str]
    ) -> Relabelling:
        """Check what was asked; a label that is to be given and rejected is an error."""
        new = None if labels is None else label_names(labels)
        asked = cls(new, label_names(add), label_names(drop), label_names(reject))
        Document("", (*(new or ()), *asked.add), rejected=asked.reject)
        return asked

    def apply(self, document: Document) -> Document:
        """Return a document with the labels that it is to have."""
        has, gone = document.labels if self.labels is None else self.labels, {*self.drop, *self.reject}
        labels = (*(label for label in has if label not in gone), *self.add)
        decided = {*labels, *self.drop}
        kept = (label for label in document.rejected if label not in decided)
        return replace(document, labels=labels, rejected=(*kept, *self.reject))


def given_ids(documents: Sequence[Document]) -> list[str]:
    """Return the ids that documents bring along; the same twice is an error."""
    given = Counter(document.id for document in documents if document.id is not None)
    twice = [id for id, times in given.items() if times > 1]
    if twice:
        raise StoreError(f"got the id {twice[0]!r} more than once in one add, expected different ids.")
    return list(given)


def place(
    documents: Sequence[Document], last: int, row_of: Callable[[str], int | None], is_taken: Callable[[str], bool]
) -> list[tuple[int, str]]:
    """Return row number and id of each document: those it has, or new ones, where `last` is the highest row so far.

    `is_taken` says whether an id is or was that of a document.
    """
    # A row number never comes twice, so an id made of it does not either, once it is above all given ones like it.
    # Those with more digits than MADE are too long to count up to, and passed over one by one instead.
    given = given_ids(documents)
    last = max([last, *(int(number[1]) for id in given if (number := MADE.fullmatch(id)))])
    placed = []
    for document in documents:
        row = None if document.id is None else row_of(document.id)
        if row is None:
            row = last = last + 1
        while document.id is None and row > MOST_COUNTED and (is_taken(f"doc-{row}") or f"doc-{row}" in given):
            row = last = last + 1
        placed.append((row, f"doc-{row}" if document.id is None else document.id))
    return placed


def undone_after(number: int, undoes: Callable[[int], int | None]) -> dict[int, bool]:
    """Return which changes count as undone once change `number` is.

    To undo an undo is to do again what it undid, so every other change of the chain that `undoes` follows is in force.
    """
    state, undone = {}, True
    following: int | None = number
    while following is not None:
        if following in state:
            raise StoreError(f"the datastore is damaged: change {following} undoes itself. Restore it from a copy.")
        state[following] = undone
        following, undone = undoes(following), not undone
    return state


def check_undoable(number: int, found: tuple[str, bool, bool] | None) -> None:
    """Refuse to undo a change of this (action, undone, undoable), None where there is none of that number."""
    if found is None:
        raise UnknownError(f"there is no change {number} in the history. List it to see the numbers.")
    action, undone, undoable = found
    if undone:
        raise ConflictError(f"change {number} is undone already. Nothing was changed.")
    if not undoable:
        why = "a forget is for good" if action == "forget" else "vacuum dropped what it would need"
        raise ConflictError(f"change {number} cannot be undone: {why}. Nothing was changed.")


def check_untouched(number: int, later: tuple[str, int] | None) -> None:
    """Refuse to undo a change where (id, number) of a later one stands in the way."""
    if later is not None:
        raise ConflictError(
            f"change {number} cannot be undone: change {later[1]} touched its document {later[0]!r} after it. "
            "Undo that first. Nothing was changed."
        )

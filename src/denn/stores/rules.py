"""Rules of every datastore: ids and labels of documents, and what cannot be undone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from denn.errors import ConflictError, StoreError, UnknownError
from denn.types import Document, Where, Which

CENTURY = timedelta(days=36_525)  # longer than any history, and within the range of every clock
MANY, SHARE = 1000, 0.1  # documents, and share of all; interfaces ask before larger changes
MADE = re.compile(r"doc-([0-9]{1,15})")  # ids that a store may create
MOST_COUNTED = 10**15 - 1
NAMED = 3  # documents that an entry of the history names


def check_dimension(dimension: int) -> None:
    """Reject an invalid embedding dimension."""
    if dimension < 1:
        raise StoreError(f"got the dimension {dimension}, expected that of the embeddings, at least 1.")


def as_ids(which: str | Sequence[str]) -> list[str]:
    """Return one id or several as a list, each once."""
    return [which] if isinstance(which, str) else list(dict.fromkeys(which))


def is_large(count: int, total: int, share: float = SHARE) -> bool:
    """Return whether changing this many of all documents needs a confirmation."""
    return count > MANY or count > share * total


def in_utc(time: datetime) -> datetime:
    """Return a time in UTC; one without a zone is local. Raise a StoreError if it is out of range."""
    try:
        return time.astimezone(UTC)
    except (OverflowError, ValueError) as error:
        raise StoreError(f"got the time {time}, expected one in the years 2 to 9998.") from error


def check_filter(which: Which, everything: bool) -> None:
    """Reject a filter that matches every document unless `everything` confirms it."""
    if isinstance(which, Where) and which.matches_everything and not everything:
        raise StoreError("the filter has no conditions and matches every document. Add one, or pass everything=True.")


def label_names(given: Sequence[str]) -> tuple[str, ...]:
    """Return labels without duplicates; raise for a single string or a blank label."""
    names = Document("", given if isinstance(given, str) else tuple(given)).labels  # type: ignore[arg-type]
    check_labels(names)
    return names


def check_labels(names: Iterable[str]) -> None:
    """Reject labels that are blank, have more than one line, or are not Unicode text."""
    for name in names:
        if not _is_unicode(name):
            raise StoreError(f"got the label {name!r}, which is not valid Unicode text. Check its encoding.")
        if not name.strip():
            raise StoreError(f"got the label {name!r}, expected a name with at least one visible character.")
        if "\n" in name:
            raise StoreError(f"got the label {name!r}, expected one line. Remove the line break.")


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # lone surrogates, as from bytes on the command line that are not UTF-8
        return False
    return True


def fresh_labels(documents: Sequence[Document], known: Container[str]) -> list[str]:
    """Return the labels that documents have or reject and that are not known; raise a StoreError for a blank one."""
    names = (name for document in documents for name in (*document.labels, *document.rejected))
    fresh = list(dict.fromkeys(name for name in names if name not in known))
    check_labels(fresh)
    return fresh


def checked_age(keep: timedelta) -> timedelta:
    """Return how long to keep the history, at most a century; raise a StoreError if it is negative."""
    if keep < timedelta():
        raise StoreError(f"got {keep.total_seconds() / 86400:g} days of history to keep, expected 0 or more.")
    return min(keep, CENTURY)


@dataclass(frozen=True)
class Relabelling:
    """Other labels for documents; see `Datastore.relabel`."""

    labels: tuple[str, ...] | None  # None: the document's own labels
    add: tuple[str, ...]
    drop: tuple[str, ...]
    reject: tuple[str, ...]

    @classmethod
    def of(
        cls, labels: Sequence[str] | None, add: Sequence[str], drop: Sequence[str], reject: Sequence[str]
    ) -> Relabelling:
        """Check the request; raise a DataError if a label is both given and rejected."""
        new = None if labels is None else label_names(labels)
        asked = cls(new, label_names(add), label_names(drop), label_names(reject))
        Document("", (*(new or ()), *asked.add), rejected=asked.reject)
        return asked

    def apply(self, document: Document) -> Document:
        """Return a document with its new labels."""
        has, gone = document.labels if self.labels is None else self.labels, {*self.drop, *self.reject}
        labels = (*(label for label in has if label not in gone), *self.add)
        decided = {*labels, *self.drop}
        kept = (label for label in document.rejected if label not in decided)
        return replace(document, labels=labels, rejected=(*kept, *self.reject))


def given_ids(documents: Sequence[Document]) -> list[str]:
    """Return the ids that documents already have; raise a StoreError for duplicates."""
    given = Counter(document.id for document in documents if document.id is not None)
    twice = [id for id, times in given.items() if times > 1]
    if twice:
        raise StoreError(f"got the id {twice[0]!r} more than once in one add, expected different ids.")
    return list(given)


def place(
    documents: Sequence[Document], last: int, row_of: Callable[[str], int | None], is_taken: Callable[[str], bool]
) -> list[tuple[int, str]]:
    """Return the row number and id of each document, existing or new; `last` is the highest row so far.

    `is_taken` returns whether an id is or was used by a document.
    """
    # Row numbers are never reused, so neither are ids made from them, once they are above all given ids of this form.
    # Ids with more digits than MADE are too large to count up to, and are skipped one by one instead.
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
    """Return which changes count as undone after undoing change `number`.

    Undoing an undo redoes the original change, so every other change in the chain that `undoes` follows is in force.
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
    """Raise if a change with this (action, undone, undoable) cannot be undone; None if it does not exist."""
    if found is None:
        raise UnknownError(f"there is no change {number} in the history. List the history to see the numbers.")
    action, undone, undoable = found
    if undone:
        raise ConflictError(f"change {number} is already undone. Nothing was changed.")
    if not undoable:
        why = "forgetting is permanent" if action == "forget" else "vacuum deleted the necessary data"
        raise ConflictError(f"change {number} cannot be undone: {why}. Nothing was changed.")


def check_untouched(number: int, later: tuple[str, int] | None) -> None:
    """Raise a ConflictError if a later change, given as (id, number), prevents undoing a change."""
    if later is not None:
        raise ConflictError(
            f"change {number} cannot be undone: change {later[1]} touched its document {later[0]!r} later. "
            "Undo that first. Nothing was changed."
        )

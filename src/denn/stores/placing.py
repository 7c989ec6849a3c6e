"""Where new documents go in an embedded datastore: their rows, their ids, the columns of their labels."""

from __future__ import annotations

import re
import sqlite3
from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence

import numpy as np

from denn.errors import StoreError
from denn.types import Document

MADE = re.compile(r"doc-([0-9]{1,15})")  # ids that a store may make


def place(
    writer: sqlite3.Connection, documents: Sequence[Document], row_of: Callable[[str], int | None]
) -> list[tuple[int, str]]:
    """Return row number and id of each document: those it has, or new ones."""
    given = Counter(document.id for document in documents if document.id is not None)
    twice = [id for id, times in given.items() if times > 1]
    if twice:
        raise StoreError(f"got the id {twice[0]!r} more than once in one add, expected different ids.")
    last = writer.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'documents'").fetchone()[0] or 0
    # A row number never comes twice, so an id made of it does not either, once it is above all given ones like it.
    last = max([last, *(int(number[1]) for id in given if (number := MADE.fullmatch(id)))])
    placed = []
    for document in documents:
        row = None if document.id is None else row_of(document.id)
        if row is None:
            row = last = last + 1
        placed.append((row, f"doc-{row}" if document.id is None else document.id))
    return placed


def number_labels(
    writer: sqlite3.Connection, labels: Sequence[Sequence[str]], known: MutableMapping[str, int]
) -> list[bytes]:
    """Return the label columns of each document as stored, appending the labels that are new."""
    fresh = dict.fromkeys(name for names in labels for name in names if name not in known)
    new = {name: column for column, name in enumerate(fresh, len(known))}
    writer.executemany("INSERT INTO labels(name, column) VALUES (?, ?)", new.items())
    lookup: Mapping[str, int] = ChainMap(new, known)
    return [np.array([lookup[name] for name in names], "<i4").tobytes() for names in labels]

"""One change of an embedded datastore: add, remove or relabel documents in one transaction."""

from __future__ import annotations

import sqlite3
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from denn.stores.embedded import ledger
from denn.stores.embedded.replica import Replica
from denn.stores.rejections import signed_columns
from denn.stores.rules import fresh_labels, given_ids, place
from denn.types import Document


@dataclass
class PendingChange:
    """A change in progress; memory still has the state before it."""

    writer: sqlite3.Connection
    replica: Replica
    number: int
    documents: int = 0  # number of documents that it touched
    undoes: int | None = None

    def put(self, documents: Sequence[Document], vectors: NDArray[np.float32]) -> list[str]:
        """Store documents with their unit vectors, replacing those with the same ids; return the ids."""
        ledger.check_not_forgotten(self.writer, given_ids(documents))
        last = self.writer.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'documents'").fetchone()[0] or 0
        index = self.replica.index
        placed = place(documents, last, index.row, self._is_taken)
        ledger.keep(self.writer, self.number, (row for row, id in placed if id in index))
        ledger.keep_absent(self.writer, self.number, ((row, id) for row, id in placed if id not in index))
        columns = self._columns(documents)
        self.writer.executemany(
            "INSERT OR REPLACE INTO documents(row, id, changed, labels, embedding, text) VALUES (?, ?, ?, ?, ?, ?)",
            (
                (row, id, self.number, columns[i], vectors[i].astype("<f4", copy=False).tobytes(), documents[i].text)
                for i, (row, id) in enumerate(placed)
            ),
        )
        self.documents = len(placed)
        return [id for _, id in placed]

    def take_out(self, rows: Sequence[int]) -> None:
        """Remove documents."""
        ledger.keep(self.writer, self.number, rows)
        ledger.take_out(self.writer, self.number, rows)
        self.documents = len(rows)

    def relabel(self, wanted: Mapping[int, Document]) -> None:
        """Give the documents in these rows the labels of the given documents."""
        columns = self._columns(list(wanted.values()))
        ledger.keep(self.writer, self.number, wanted)
        self.writer.executemany(
            "UPDATE documents SET labels = ?, changed = ? WHERE row = ?",
            ((blob, self.number, row) for blob, row in zip(columns, wanted, strict=True)),
        )
        self.documents = len(wanted)

    def forget(self, ids: Sequence[str]) -> None:
        """Delete stored and past documents, except for their ids; raise an UnknownError for an unknown id."""
        self.replica.check_known([id for id in ids if not ledger.is_past(self.writer, id)])
        ledger.forget(self.writer, ids, self.number)
        self.documents = len(ids)

    def undo(self, number: int) -> None:
        """Restore what another change touched."""
        self.documents = ledger.undo(self.writer, number, self.number)
        self.undoes = number

    def _is_taken(self, id: str) -> bool:
        return id in self.replica.index or ledger.is_past(self.writer, id) or ledger.is_forgotten(self.writer, id)

    def _columns(self, documents: Sequence[Document]) -> list[bytes]:
        """Return the label columns of each document as stored, appending new labels."""
        known = self.replica.columns
        fresh = fresh_labels(documents, known)
        new = {name: column for column, name in enumerate(fresh, len(known))}
        self.writer.executemany("INSERT INTO labels(name, column) VALUES (?, ?)", new.items())
        lookup: Mapping[str, int] = ChainMap(new, known)
        return [np.array(signed_columns(document, lookup), "<i4").tobytes() for document in documents]

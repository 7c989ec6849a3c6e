"""One change of an embedded datastore: documents brought, taken out or given other labels, in one transaction."""

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
    """A change that is being made; memory holds the store as it was before."""

    writer: sqlite3.Connection
    replica: Replica
    number: int
    documents: int = 0  # how many it touched
    undoes: int | None = None

    def put(self, documents: Sequence[Document], vectors: NDArray[np.float32]) -> list[str]:
        """Store documents with their unit vectors in the place of those with the same ids; return the ids."""
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
        """Give the documents of these rows the labels that these have."""
        columns = self._columns(list(wanted.values()))
        ledger.keep(self.writer, self.number, wanted)
        self.writer.executemany(
            "UPDATE documents SET labels = ?, changed = ? WHERE row = ?",
            ((blob, self.number, row) for blob, row in zip(columns, wanted, strict=True)),
        )
        self.documents = len(wanted)

    def forget(self, ids: Sequence[str]) -> None:
        """Delete documents, stored or past, but for their ids; an unknown id is an error."""
        self.replica.check_known([id for id in ids if not ledger.is_past(self.writer, id)])
        ledger.forget(self.writer, ids, self.number)
        self.documents = len(ids)

    def undo(self, number: int) -> None:
        """Bring what another change touched back to where it was."""
        self.documents = ledger.undo(self.writer, number, self.number)
        self.undoes = number

    def _is_taken(self, id: str) -> bool:
        return id in self.replica.index or ledger.is_past(self.writer, id) or ledger.is_forgotten(self.writer, id)

    def _columns(self, documents: Sequence[Document]) -> list[bytes]:
        """Return the label columns of each document as stored, appending the labels that are new."""
        known = self.replica.columns
        fresh = fresh_labels(documents, known)
        new = {name: column for column, name in enumerate(fresh, len(known))}
        self.writer.executemany("INSERT INTO labels(name, column) VALUES (?, ?)", new.items())
        lookup: Mapping[str, int] = ChainMap(new, known)
        return [np.array(signed_columns(document, lookup), "<i4").tobytes() for document in documents]

"""Make a change in PostgreSQL, from the lock that makes it exclusive to its entry in the history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, TypeVar
from uuid import UUID, uuid4

from denn.errors import ConflictError, UnavailableError
from denn.stores.postgres.link import (
    Address,
    Connection,
    Link,
    OperationalError,
    Rollback,
    explained,
    lost,
    wait_at_most,
)
from denn.stores.postgres.read import digests
from denn.stores.postgres.search import State
from denn.stores.rejections import signed_columns
from denn.stores.rules import fresh_labels, given_ids, place
from denn.types import Document

LABELS = "ARRAY(SELECT label FROM document_labels l WHERE l.row = d.row ORDER BY place)"
DOCUMENT_TABLES = ("documents", "vectors", "document_labels")
ID_TABLES = ("documents", "past", "forgotten")
FEW = 100  # rows up to which single inserts are faster than a COPY
Result = TypeVar("Result")


def change(
    link: Link, state: State, patience: float, action: str, source: str, work: Callable[[Writing], Result]
) -> tuple[Result, int | None, State]:
    """Make one change as a transaction, stored and in the history when this returns.

    Return the result of the work, the number of the change, and the new state. A change that touches nothing is not
    recorded and has no number. If the connection is lost, the change is tried once more, unless it turns out that it
    was stored.
    """
    token, done = uuid4(), list[Result]()  # done: the result of an attempt that may have been stored

    def attempt() -> tuple[Result, int | None, State]:
        number: int | None = None
        with link.connection() as connection, connection.transaction() as transaction:
            writing = Writing(connection, link.address, state, patience)
            if done and (number := writing.number_of(token)) is not None:
                raise Rollback(transaction)
            done[:] = [work(writing)]
            if not writing.touched:
                raise Rollback(transaction)
            writing.finish(action, source, token)
            return done[0], writing.number, writing.state
        return done[0], number, state

    with explained(link.address):
        try:
            return attempt()
        except OperationalError as error:
            if not lost(error):
                raise
        link.repair()
        try:
            return attempt()
        except OperationalError as error:
            if not done:
                raise
            raise UnavailableError(
                f"the connection to {link.address.text} was lost while a change was being stored, and it is unknown "
                "whether it was stored. Check the history before trying again."
            ) from error


class Writing:
    """A change in progress, which holds the lock on the row of meta so that nobody else changes the store."""

    def __init__(self, connection: Connection, address: Address, state: State, patience: float) -> None:
        """Wait `patience` seconds for the lock; the caller manages the transaction."""
        self.connection, self.address = connection, address
        wait_at_most(connection, patience)
        begin = "UPDATE meta SET version = version + 1 RETURNING version, epoch, last_row"
        row: Any = connection.execute(begin).fetchone()
        self.number, epoch, self.last_row = row
        current = (state.version + 1, state.epoch) == (self.number, epoch)
        self.state = replace(state, version=self.number) if current else state.reread(connection)
        self.touched = 0  # documents
        self.undoes: int | None = None
        self.more = 0  # increase in the number of documents

    def number_of(self, token: UUID) -> int | None:
        """Return the number of an earlier attempt at this change if it was stored after all."""
        row: Any = self.connection.execute("SELECT number FROM changes WHERE token = %s", (token,)).fetchone()
        return None if row is None else row[0]

    def touch(self, documents: int) -> int:
        """Count documents as touched by this change, and return their number."""
        self.touched += documents
        return documents

    def finish(self, action: str, source: str, token: UUID) -> None:
        """Record the change in the history."""
        entry = (self.number, action, source.encode(), self.touched, self.undoes, action != "forget", token)
        self.connection.execute(
            "WITH entry AS (INSERT INTO changes(number, action, source, documents, undoes, undoable, token) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s)) UPDATE meta SET documents = documents + %s, last_row = %s",
            (*entry, self.more, self.last_row),
        )
        self.state = replace(self.state, documents=self.state.documents + self.more)

    def place(self, documents: Sequence[Document]) -> list[tuple[int, str]]:
        """Return the row number and id of each document, existing or new; a forgotten id is an error."""
        rows = self._known(given_ids(documents))
        placed = place(documents, self.last_row, rows.get, self._is_taken)
        self.last_row = max([self.last_row, *(row for row, _ in placed)])
        self.keep(rows.values())
        self.take_out(rows.values())
        return placed

    def _is_taken(self, id: str) -> bool:
        places = " UNION ALL ".join(f"SELECT FROM {table} WHERE sha256(id) = %(id)b" for table in ID_TABLES)
        return self.connection.execute(places, {"id": digests([id])[0]}).fetchone() is not None

    def _known(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the rows of the stored ids."""
        found = self.connection.execute(
            "SELECT id, row, NULL FROM documents WHERE sha256(id) = ANY(%(ids)b::bytea[]) "
            "UNION ALL SELECT id, NULL, time FROM forgotten WHERE sha256(id) = ANY(%(ids)b::bytea[])",
            {"ids": digests(ids)},
            binary=True,
        ).fetchall()
        for id, _, time in found:
            if time is not None:
                raise ConflictError(
                    f"the document {id.decode()!r} was forgotten on {time.date()}; its id cannot be used again. "
                    "Use another id."
                )
        return {id.decode(): row for id, row, _ in found}

    def numbered(self, documents: Sequence[Document]) -> list[list[int]]:
        """Return the label numbers of documents, with complements for rejected ones, appending new labels."""
        if fresh := fresh_labels(documents, self.state.labels.number_of):
            self.connection.execute(
                "INSERT INTO labels(name, given) SELECT name, false FROM unnest(%b::bytea[]) WITH ORDINALITY "
                "AS new(name, place) ORDER BY place",
                ([name.encode() for name in fresh],),
            )
            self.state = self.state.reread(self.connection)
        number_of = self.state.labels.number_of
        return [signed_columns(document, number_of) for document in documents]

    def put(self, placed: Sequence[tuple[int, str]], documents: Sequence[Document], vectors: Any) -> None:
        """Store documents with their (n,d) unit vectors in free rows."""
        labels = self.numbered(documents)
        rows = [row for row, _ in placed]
        self._insert(
            "documents",
            {"row": "int8", "id": "bytea", "changed": "int8", "text": "bytea"},
            (
                (row, id.encode(), self.number, document.text.encode())
                for (row, id), document in zip(placed, documents, strict=True)
            ),
        )
        self._insert("vectors", {"row": "int8", "embedding": "vector"}, zip(rows, vectors, strict=True))
        self.put_labels(rows, labels)
        self.more += len(rows)
        self.keep_absent()

    def put_labels(self, rows: Iterable[int], labels: Iterable[Sequence[int]]) -> None:
        """Store the label numbers of documents that have none."""
        self._insert(
            "document_labels",
            {"row": "int8", "place": "int4", "label": "int4"},
            (
                (row, place, number)
                for row, numbers in zip(rows, labels, strict=True)
                for place, number in enumerate(numbers)
            ),
        )

    def keep(self, rows: Collection[int], whole: bool = True) -> None:
        """Keep stored documents, or only their labels, in their state before this change."""
        if not rows:
            return
        more = "d.text, v.embedding" if whole else "NULL, NULL"
        self.connection.execute(
            f"INSERT INTO past(number, row, id, labels, text, embedding) SELECT %s, d.row, d.id, {LABELS}, {more} "
            "FROM documents d JOIN vectors v USING (row) WHERE d.row = ANY(%s)",
            (self.number, list(rows)),
        )

    def keep_absent(self) -> None:
        """Record that documents which this change added, but did not replace, did not exist before."""
        self.connection.execute(
            "INSERT INTO past(number, row, id) SELECT changed, row, id FROM documents WHERE changed = %s "
            "ON CONFLICT DO NOTHING",
            (self.number,),
        )

    def take_out(self, rows: Collection[int]) -> None:
        """Delete documents."""
        if rows:
            for table in DOCUMENT_TABLES:
                self.connection.execute(f"DELETE FROM {table} WHERE row = ANY(%s)", (list(rows),))
            self.connection.execute("UPDATE meta SET swept = false")
            self.more -= len(rows)

    def relabel(self, wanted: dict[int, Document]) -> None:
        """Give the documents in some rows the labels of the given documents."""
        rows = list(wanted)
        self.keep(rows, whole=False)
        self.connection.execute("DELETE FROM document_labels WHERE row = ANY(%s)", (rows,))
        self.put_labels(rows, self.numbered(list(wanted.values())))
        self.connection.execute("UPDATE documents SET changed = %s WHERE row = ANY(%s)", (self.number, rows))

    def _insert(self, table: str, columns: dict[str, str], rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert rows into a table, whose columns are given with their types."""
        start = list(islice(rows, FEW + 1))
        names = ", ".join(columns)
        with self.connection.cursor() as cursor:
            if len(start) <= FEW:  # fewer round trips
                cursor.executemany(f"INSERT INTO {table}({names}) VALUES ({', '.join(['%b'] * len(columns))})", start)
                return
            with cursor.copy(f"COPY {table}({names}) FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(list(columns.values()))
                for row in chain(start, rows):
                    copy.write_row(row)

"""The embedded datastore: one SQLite file that outlives power cuts, searched exactly in memory."""

from __future__ import annotations

import sqlite3
import threading
from collections import ChainMap, Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from denn.errors import StoreError
from denn.stores.memory import MemoryIndex, unit_rows
from denn.stores.sqlite import connect, explained, read_dimension, write_schema
from denn.types import Document, Neighbours

READ_ROWS = 2048  # documents taken into memory at one time


class EmbeddedStore:
    """A datastore in one local file; one process writes at a time, any number read, threads may share it.

    Searches run on the last committed state, and an add is seen whole or not at all.
    """

    def __init__(self, path: str | Path, read_only: bool, device: str | torch.device, patience: float) -> None:
        """Open a store; `open` and `create` are the ways to call this."""
        self.path = Path(path)
        self._write_lock = threading.Lock()  # held for a whole change
        self._read_lock = threading.Lock()  # held while memory is taken or brought up to date, not while searching
        self._labels: tuple[str, ...] = ()
        self._columns: dict[str, int] = {}
        self._version = 0  # what memory holds of the store's history
        self._data_version = -1  # SQLite's cheap sign that another connection has committed
        with explained(self.path), ExitStack() as opened:
            # Two connections, so that searches go on while a long add is being written.
            self._reader = opened.enter_context(closing(connect(self.path, patience)))
            self._reader.execute("PRAGMA query_only = ON")
            self._dimension = read_dimension(self._reader, self.path)
            self._writer = None if read_only else opened.enter_context(closing(connect(self.path, patience)))
            if self._writer is not None:
                self._writer.execute("PRAGMA journal_mode = WAL")
                self._writer.execute("PRAGMA synchronous = FULL")
            self._memory = MemoryIndex(self._dimension, device)
            self.refresh()
            self._opened = opened.pop_all()

    @classmethod
    def create(
        cls,
        path: str | Path,
        dimension: int,
        labels: Sequence[str] = (),
        *,
        device: str | torch.device = "cpu",
        patience: float = 10.0,
    ) -> Self:
        """Make an empty store for embeddings of this width, with `labels` as its first columns."""
        if dimension < 1:
            raise StoreError(f"got the dimension {dimension}, expected the width of the embeddings, at least 1.")
        path = Path(path)
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with closing(connect(path, patience, mode="rwc")) as connection:
                write_schema(connection, path, dimension, labels)
        return cls(path, False, device, patience)

    @classmethod
    def open(
        cls, path: str | Path, read_only: bool = False, *, device: str | torch.device = "cpu", patience: float = 10.0
    ) -> Self:
        """Open a store that exists; a change waits `patience` seconds for another process that is writing."""
        if not Path(path).is_file():
            raise StoreError(f"there is no datastore at {path}. Check the path, or create one there first.")
        return cls(path, read_only, device, patience)

    def close(self) -> None:
        """Release the file; what was added is safe with or without this."""
        with self._write_lock, self._read_lock:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def dimension(self) -> int:
        """The width of the embeddings."""
        return self._dimension

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names in column order; new names are appended, never reordered."""
        with self._reading():
            return self._labels

    def __len__(self) -> int:
        with self._reading():
            return len(self._memory)

    def ids(self) -> list[str]:
        """Return the ids of all documents, oldest first."""
        with self._reading():
            return self._memory.ids()

    def label_counts(self) -> dict[str, int]:
        """Count the stored documents of each label, in column order."""
        with self._reading():
            return dict(zip(self._labels, self._memory.label_counts(len(self._labels)), strict=True))

    def info(self) -> dict[str, object]:
        """Return the facts a user asks for first."""
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        return {
            "path": self.path.name,
            "documents": len(self),
            "labels": len(self.labels),
            "dimension": self.dimension,
            "bytes": sum(file.stat().st_size for file in files if file.exists()),
        }

    def get(self, ids: Sequence[str]) -> list[Document]:
        """Return stored documents in the order of the ids; an unknown id is an error."""
        select = "SELECT text, labels FROM documents WHERE id = ?"
        with self._reading():
            self._check_known(ids)
            found = [self._reader.execute(select, (id,)).fetchone() for id in ids]
            names = self._labels
        return [
            Document(text, tuple(names[column] for column in np.frombuffer(columns, "<i4")), id)
            for id, (text, columns) in zip(ids, found, strict=True)
        ]

    def search(self, queries: Tensor, k: int, exclude: Collection[str] = ()) -> Neighbours:
        """Find the k nearest documents by cosine for each of the (n,d) queries, leaving out excluded ids.

        The result is as wide as k or as the number of documents left, whichever is smaller.
        """
        if k < 1:
            raise StoreError(f"got k = {k}, expected at least one neighbour.")
        with self._reading():
            snapshot = self._memory.snapshot(exclude)
        return snapshot.search(unit_rows(queries, self._dimension), k)

    def refresh(self) -> bool:
        """Take in what other processes changed; every call does so by itself. Return whether anything did."""
        with self._reading() as news:
            return news

    def add(self, documents: Sequence[Document], embeddings: Tensor) -> list[str]:
        """Store documents with their (n,d) embeddings, all or none; an id that exists is replaced. Return the ids.

        A document without an id gets one that this store never gives again.
        """
        if not documents:
            return []
        if len(embeddings) != len(documents):
            raise StoreError(f"got {len(embeddings)} embeddings, expected one for each of {len(documents)} documents.")
        vectors = unit_rows(embeddings, self._dimension).cpu().numpy().astype("<f4", copy=False)
        with self._changing() as (writer, version):
            placed = self._place(writer, documents)
            columns = self._number(writer, [document.labels for document in documents])
            writer.executemany(
                "INSERT OR REPLACE INTO documents(row, id, changed, labels, embedding, text) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (row, id, version, columns[i], vectors[i].tobytes(), documents[i].text)
                    for i, (row, id) in enumerate(placed)
                ),
            )
        return [id for _, id in placed]

    def remove(self, ids: Sequence[str]) -> int:
        """Remove documents, all or none; an unknown id is an error. Return how many went."""
        with self._changing() as (writer, version):
            self._check_known(ids)
            rows = {self._memory.row(id) for id in ids}
            writer.executemany("DELETE FROM documents WHERE row = ?", ((row,) for row in rows))
            writer.executemany("INSERT INTO removed(row, changed) VALUES (?, ?)", ((row, version) for row in rows))
        return len(rows)

    def relabel(self, id: str, labels: Sequence[str]) -> None:
        """Give a stored document other labels; new ones are appended to the columns."""
        checked = Document("", labels if isinstance(labels, str) else tuple(labels)).labels  # type: ignore[arg-type]
        with self._changing() as (writer, version):
            self._check_known([id])
            (columns,) = self._number(writer, [checked])
            writer.execute("UPDATE documents SET labels = ?, changed = ? WHERE id = ?", (columns, version, id))

    @contextmanager
    def _reading(self) -> Iterator[bool]:
        """Hold memory and the reader still at the newest committed state; say whether it is new."""
        with self._read_lock, explained(self.path):
            self._reader.execute("BEGIN")
            try:
                yield self._catch_up()
            finally:
                self._reader.rollback()

    @contextmanager
    def _changing(self) -> Iterator[tuple[sqlite3.Connection, int]]:
        """Run one change as a transaction; it is on the disk, and in memory, when this returns."""
        if self._writer is None:
            raise StoreError(f"the datastore {self.path} was opened for reading only. Open it without read_only.")
        with self._write_lock, explained(self.path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                self.refresh()  # from here to the commit nobody else can change the store
                version = self._version + 1
                yield self._writer, version
                self._writer.execute("UPDATE meta SET value = ? WHERE key = 'version'", (version,))
                self._writer.execute("COMMIT")
            finally:
                self._writer.rollback()  # does nothing after a commit
            self.refresh()

    def _catch_up(self) -> bool:
        """Take into memory what was committed since the last time, in the reader's transaction."""
        (data_version,) = self._reader.execute("PRAGMA data_version").fetchone()
        if data_version == self._data_version:
            return False
        (version,) = self._reader.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
        known = (len(self._labels),)
        names = self._reader.execute("SELECT name FROM labels WHERE column >= ? ORDER BY column", known).fetchall()
        if names:
            self._labels += tuple(name for (name,) in names)
            self._columns = {name: column for column, name in enumerate(self._labels)}
        seen = (self._version,)
        self._memory.drop([row for (row,) in self._reader.execute("SELECT row FROM removed WHERE changed > ?", seen)])
        (count,) = self._reader.execute("SELECT count(*) FROM documents WHERE changed > ?", seen).fetchone()
        self._memory.reserve(count)
        changed = self._reader.execute("SELECT row, id, labels, embedding FROM documents WHERE changed > ?", seen)
        while chunk := changed.fetchmany(READ_ROWS):
            self._take(chunk)
        news = bool(version != self._version)
        self._version, self._data_version = version, data_version
        return news

    def _take(self, chunk: Sequence[tuple[int, str, bytes, bytes]]) -> None:
        rows, ids, labels, embeddings = zip(*chunk, strict=True)
        vectors = np.frombuffer(bytearray().join(embeddings), "<f4")
        if len(vectors) != len(rows) * self._dimension:
            raise StoreError(f"the datastore {self.path} holds embeddings of another width than {self._dimension}.")
        self._memory.put(
            torch.tensor(rows),
            ids,
            torch.from_numpy(vectors.reshape(len(rows), self._dimension)),
            torch.tensor([len(blob) // 4 for blob in labels]),
            torch.from_numpy(np.frombuffer(bytearray().join(labels), "<i4")),
        )

    def _check_known(self, ids: Sequence[str]) -> None:
        unknown = [id for id in ids if id not in self._memory]
        if unknown:
            raise StoreError(
                f"the datastore {self.path} holds no document with the id {unknown[0]!r} ({len(unknown)} unknown of "
                f"{len(ids)}). Nothing was changed."
            )

    def _place(self, writer: sqlite3.Connection, documents: Sequence[Document]) -> list[tuple[int, str]]:
        """Return row number and id of each document: those it has, or new ones."""
        given = Counter(document.id for document in documents if document.id is not None)
        twice = [id for id, times in given.items() if times > 1]
        if twice:
            raise StoreError(f"got the id {twice[0]!r} more than once in one add, expected different ids.")
        last = writer.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'documents'").fetchone()[0] or 0
        placed = []
        for document in documents:
            id = document.id
            row = None if id is None else self._memory.row(id)
            if row is None:
                last += 1
                while id is None and (f"doc-{last}" in given or f"doc-{last}" in self._memory):
                    last += 1
                row = last
            placed.append((row, f"doc-{row}" if id is None else id))
        return placed

    def _number(self, writer: sqlite3.Connection, labels: Sequence[Sequence[str]]) -> list[bytes]:
        """Return the label columns of each document as stored, appending the labels that are new."""
        fresh = dict.fromkeys(name for names in labels for name in names if name not in self._columns)
        new = {name: column for column, name in enumerate(fresh, len(self._labels))}
        writer.executemany("INSERT INTO labels(name, column) VALUES (?, ?)", new.items())
        lookup = ChainMap(new, self._columns)
        return [np.array([lookup[name] for name in names], "<i4").tobytes() for names in labels]

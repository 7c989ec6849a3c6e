"""A process's copy of an embedded datastore in memory, updated from the file before every use."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from denn.errors import UnavailableError, UnknownError
from denn.stores.embedded.approximate import Approximate
from denn.stores.embedded.memory import MemoryIndex, Snapshot
from denn.stores.embedded.sqlite import (
    Connection,
    Frozen,
    check_types,
    connect_reader,
    explained,
    inode,
    is_outdated,
    label_columns,
    read_meta,
    undisturbed,
)
from denn.stores.embedded.vectors import matrix, read_vectors

READ_ROWS = 2048  # documents read into memory at a time
REOPEN_PATIENCE = 10.0  # seconds


class Replica:
    """The index and label names of a store in the last committed state."""

    def __init__(
        self, reader: Connection, path: Path, dimension: int, device: str | torch.device, *, private: bool
    ) -> None:
        self.reader = reader
        self.labels: tuple[str, ...] = ()
        self.columns: dict[str, int] = {}
        self.version = 0  # the last change that is in memory
        self.index = MemoryIndex(dimension, device)
        self._path = path.absolute()  # the working folder may change
        self._dimension, self._device = dimension, device
        self._private = private  # no other connection can see the data, and this one also writes it
        self.lock = threading.RLock()  # held while memory is read or updated, not while searching
        self.epoch = 0
        self.main: Approximate | None = None  # the index; vectors that it covers stay in the file
        self._data_version = -1  # SQLite's cheap indicator that another connection has committed

    @contextmanager
    def reading(self) -> Iterator[bool]:
        """Hold memory and the reader at the newest committed state; yield whether it is new."""
        with self.lock, explained(self._path):
            if self._private:
                yield self._catch_up()
                return
            if is_outdated(self.reader, self._path):
                self._reopen()
            with undisturbed(self.reader, self._path):
                self.reader.execute("BEGIN")
                try:
                    yield self._catch_up()
                finally:
                    self.reader.rollback()

    def snapshot(self, exclude: Collection[str]) -> tuple[Snapshot, tuple[str, ...]]:
        """Return the newest committed state for a search, with its label names."""
        with self.lock:
            if self._private or self._behind():
                with self.reading():
                    pass
            return self.index.snapshot(exclude), self.labels

    def _behind(self) -> bool:
        with explained(self._path):
            if is_outdated(self.reader, self._path):
                return True
            return bool(self.reader.execute("PRAGMA data_version").fetchone()[0] != self._data_version)

    def _reopen(self) -> None:
        """Read a file again that changed under a frozen connection."""
        self.reader.close()
        self.reader = connect_reader(self._path, REOPEN_PATIENCE)
        self._start_over()
        self._data_version = -1

    def check_in_place(self) -> None:
        """Raise an UnavailableError if another file has taken the place of the open one; frozen readers follow it."""
        if self._private or isinstance(self.reader, Frozen) or inode(self._path) == self.reader.inode:
            return
        raise UnavailableError(
            f"the datastore {self._path} was moved or replaced after it was opened, as training with --replace does, "
            "so it cannot be used any more. Load the model again, or restart the service."
        )

    def _start_over(self) -> None:
        self.index = MemoryIndex(self._dimension, self._device)
        self.labels, self.columns, self.version = (), {}, 0

    def adopt(self, main: Approximate | None) -> None:
        """Search with another approximate index, or exactly; call this inside `reading`."""
        self.index.adopt(main, self._fetch)
        self.main = main

    def check_known(self, ids: Sequence[str]) -> None:
        """Reject unknown ids."""
        unknown = [id for id in ids if id not in self.index]
        if unknown:
            raise UnknownError(
                f"the datastore {self._path} has no document with the id {unknown[0]!r} ({len(unknown)} of {len(ids)} "
                "ids are unknown). Nothing was changed."
            )

    def _catch_up(self) -> bool:
        """Load what was committed since the last time, in the reader's transaction."""
        (data_version,) = self.reader.execute("PRAGMA data_version").fetchone()
        if data_version == self._data_version and not self._private:
            return False
        meta = read_meta(self.reader)
        if meta["epoch"] != self.epoch:  # a vacuum renumbered the labels and deleted the list of removed rows
            self._start_over()
        news = bool(meta["version"] != self.version or meta["epoch"] != self.epoch)
        if news or not self.labels:
            self._take_changes()
        self.version, self.epoch, self._data_version = meta["version"], meta["epoch"], data_version
        return news

    def _take_changes(self) -> None:
        known = (len(self.labels),)
        names = self.reader.execute("SELECT name FROM labels WHERE column >= ? ORDER BY column", known).fetchall()
        if names:
            check_types((name for (name,) in names), str)
            self.labels += tuple(name for (name,) in names)
            self.columns = {name: column for column, name in enumerate(self.labels)}
        seen = (self.version,)
        self.index.drop([row for (row,) in self.reader.execute("SELECT row FROM removed WHERE changed > ?", seen)])
        if self.version == 0 and self.main is not None:  # only vectors that the index does not cover are needed
            changed = self.reader.execute("SELECT row, id, changed, labels, NULL FROM documents")
        else:
            (count,) = self.reader.execute("SELECT count(*) FROM documents WHERE changed > ?", seen).fetchone()
            self.index.reserve(count)
            select = "SELECT row, id, changed, labels, embedding FROM documents WHERE changed > ?"
            changed = self.reader.execute(select, seen)
        while chunk := changed.fetchmany(READ_ROWS):
            self._take(chunk)
        if self.version == 0 and self.main is not None:
            self.index.adopt(self.main, self._fetch)

    def _fetch(self, rows: Tensor) -> Tensor:
        return read_vectors(self.reader, self._dimension, rows)

    def _take(self, chunk: Sequence[tuple[int, str, int, bytes, bytes | None]]) -> None:
        rows, ids, changed, labels, embeddings = zip(*chunk, strict=True)
        check_types(ids, str)
        check_types((*rows, *changed), int)
        columns = label_columns(labels, len(self.labels))
        self.index.put(
            torch.tensor(rows),
            ids,
            None if embeddings[0] is None else matrix(embeddings, self._dimension),
            torch.tensor([len(blob) // 4 for blob in labels]),
            torch.from_numpy(columns),
            torch.tensor(changed),
        )

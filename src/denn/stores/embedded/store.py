"""The embedded datastore: one SQLite file that survives power cuts, searched in memory, approximately if large."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from denn.errors import StoreError
from denn.prediction_types import Neighbours
from denn.stores.embedded import index_file, ledger, read
from denn.stores.embedded.index_maintenance import Index, IndexKeeper, maintain
from denn.stores.embedded.pending_change import PendingChange
from denn.stores.embedded.replica import Replica
from denn.stores.embedded.sqlite import (
    check_file,
    clean,
    connect,
    connect_reader,
    explained,
    prepare_writer,
    read_meta,
    set_meta,
    transaction,
    undisturbed,
    write_schema,
)
from denn.stores.rules import Relabelling, as_ids, check_dimension, check_filter, checked_age
from denn.stores.unit_vectors import unit_rows
from denn.types import Change, Document, Where, Which


class EmbeddedStore:
    """A datastore in one local file; one process writes at a time, any number read, threads may share it.

    Searches use the last committed state, and see all of an add or nothing. They are exact in a store of moderate size,
    and use an approximate index next to the file in a larger one (`index="auto"`), or never or always.
    """

    last_change = 0  # number of the last change made through this object
    _keeper: IndexKeeper | None = None

    def __init__(
        self, path: str | Path, read_only: bool, device: str | torch.device, patience: float, index: Index
    ) -> None:
        """Open a store; call `open` or `create` instead."""
        self.path = Path(path)
        self._write_lock = threading.RLock()  # held for a whole change
        with explained(self.path), ExitStack() as opened:
            # Two connections, so that searches continue while a long add is being written.
            reader = connect_reader(self.path, patience)
            opened.callback(reader.close)
            self._dimension = check_file(reader, self.path, read_only)
            self._writer = None if read_only else opened.enter_context(closing(connect(self.path, patience)))
            if self._writer is not None:
                prepare_writer(self._writer)
            self._replica = Replica(reader, self.path, self._dimension, device, private=False)
            opened.callback(lambda: self._replica.reader.close())  # it may have been replaced by then
            self._keeper = maintain(self._replica, self.path, self._dimension, device, index, builds=not read_only)
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
        index: Index = "auto",
    ) -> Self:
        """Create an empty store for embeddings of this dimension, with `labels` as its first columns."""
        check_dimension(dimension)
        path = Path(path)
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with closing(connect(path, patience, mode="rwc")) as connection:
                write_schema(connection, path, dimension, labels)
        return cls(path, False, device, patience, index)

    @classmethod
    def open(
        cls,
        path: str | Path,
        read_only: bool = False,
        *,
        device: str | torch.device = "cpu",
        patience: float = 10.0,
        index: Index = "auto",
    ) -> Self:
        """Open an existing store; a change waits `patience` seconds for another process that is writing."""
        if not Path(path).is_file():
            raise StoreError(f"there is no datastore at {path}. Check the path, or create one there first.")
        return cls(path, read_only, device, patience, index)

    def close(self) -> None:
        """Release the file and stop building an index; documents are safe with or without this."""
        if self._keeper is not None:
            self._keeper.close()
        with self._write_lock, self._replica.lock:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def dimension(self) -> int:
        """The dimension of the embeddings."""
        return self._dimension

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names in column order; new names are appended; only `vacuum` removes unused ones."""
        with self._replica.reading():
            return self._replica.labels

    @property
    def given_labels(self) -> tuple[str, ...]:
        """The labels given at creation, which come first and which `vacuum` keeps even if they are unused."""
        with self._replica.reading():
            return self._replica.labels[: read_meta(self._replica.reader)["given"]]

    def __len__(self) -> int:
        with self._replica.reading():
            return len(self._replica.index)

    def ids(self) -> list[str]:
        """List the ids of all documents, oldest first."""
        with self._replica.reading():
            return self._replica.index.ids()

    def label_counts(self) -> dict[str, int]:
        """Count the stored documents of each label, in column order."""
        with self._replica.reading():
            names = self._replica.labels
            return dict(zip(names, self._replica.index.label_counts(len(names)), strict=True))

    def info(self) -> dict[str, object]:
        """Return a summary of the store."""
        files = (self.path, self.path.with_name(self.path.name + "-wal"), index_file.beside(self.path))
        return {
            "kind": "embedded",
            "path": self.path.name,
            "documents": len(self),
            "labels": len(self.labels),
            "rejections": self._replica.index.rejections(),
            "dimension": self.dimension,
            "bytes": sum(file.stat().st_size for file in files if file.exists()),
            **(self._keeper.facts() if self._keeper else {"search": "exact"}),
        }

    def select(self, where: Where) -> list[str]:
        """List the ids of the matching documents, oldest first; searches continue meanwhile."""
        if where == Where(labels=where.labels):  # can be answered from memory
            with self._replica.reading():
                columns = self._replica.columns
                wanted = [columns[label] for label in where.labels if label in columns]
                return self._replica.index.carrying(wanted) if where.labels else self._replica.index.ids()
        with explained(self.path), self._apart() as reader:
            return read.select(reader, where)

    def get(self, ids: Sequence[str], *, missing_ok: bool = False) -> list[Document]:
        """Return stored documents in the order of the ids; an unknown id is an error unless `missing_ok`."""
        return read.documents(self._replica, ids, missing_ok)

    def texts(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the texts of stored documents by id, leaving out unknown ids."""
        return read.texts(self._replica, ids)

    def vectors(self, ids: Sequence[str]) -> Tensor:
        """Return the (n,d) unit vectors of stored documents in the order of the ids; an unknown id is an error."""
        return read.vectors(self._replica, ids, self._dimension)

    def export(self, size: int = 1024) -> Iterator[tuple[list[Document], Tensor]]:
        """Yield a snapshot of all documents, oldest first, with their (n,d) unit vectors, in batches of `size`."""
        with explained(self.path), self._apart() as reader:
            yield from read.parts(reader, size, self._dimension)

    def search(self, queries: Tensor, k: int, exclude: Collection[str] = ()) -> Neighbours:
        """Find the k nearest documents by cosine for each of the (n,d) queries, ignoring the ids in `exclude`.

        The result has k columns, or fewer if fewer documents are left.
        """
        if k < 1:
            raise StoreError(f"k must be at least 1, not {k}.")
        rows = unit_rows(queries, self._dimension)
        if self._keeper is not None:
            self._keeper.look()
        snapshot, names = self._replica.snapshot(exclude)
        return snapshot.search(rows, k, names)

    def build_index(self) -> None:
        """Build the approximate index of a store that may have one, and return when searches use it.

        It is built automatically in the background when it is due; this is for after a bulk add, before serving.
        """
        if self._keeper is None or self._writer is None:
            raise StoreError("this datastore was opened for exact search or read-only. Open it without these options.")
        self._keeper.build_now()

    def refresh(self) -> bool:
        """Load changes made by other processes, as every call does; return whether there were any.

        Raise an UnavailableError if another file has taken the place of the open one.
        """
        self._replica.check_in_place()
        with self._replica.reading() as news:
            return news

    def history(self, limit: int | None = None, id: str | None = None) -> list[Change]:
        """List changes, newest first; with an id, the recorded changes to that document."""
        with self._replica.reading():
            return ledger.changes(self._replica.reader, limit, id)

    def add(self, documents: Sequence[Document], embeddings: Tensor, *, source: str = "") -> list[str]:
        """Store documents with their (n,d) embeddings, replacing documents with the same ids; return the ids.

        A document without an id gets one that this store never uses again; a forgotten id is an error.
        """
        if not documents:
            return []
        if len(embeddings) != len(documents):
            raise StoreError(f"got {len(embeddings)} embeddings, expected one for each of {len(documents)} documents.")
        vectors = unit_rows(embeddings, self._dimension).numpy()
        with self._changing("add", source) as change:
            return change.put(documents, vectors)

    def remove(self, which: Which, *, source: str = "", everything: bool = False) -> int:
        """Remove documents and return how many; an unknown id is an error."""
        check_filter(which, everything)
        with self._changing("remove", source) as change:
            change.take_out(list(self._rows(which)))
        return change.documents

    def relabel(
        self,
        which: Which,
        labels: Sequence[str] | None = None,
        *,
        add: Sequence[str] = (),
        drop: Sequence[str] = (),
        reject: Sequence[str] = (),
        confirm: bool = False,
        source: str = "",
        everything: bool = False,
    ) -> int:
        """Replace the labels of documents, or `add` and `drop` some; return how many documents changed.

        `reject` removes labels and records them as rejected until they are assigned again or dropped. `confirm` records
        that the labels are right, even if they stay the same: audits skip the documents until they change again.
        """
        check_filter(which, everything)
        asked = Relabelling.of(labels, add, drop, reject)
        with self._changing("confirm" if confirm else "relabel", source) as change:
            rows = self._rows(which)
            before = zip(rows, self.get(list(rows.values())), strict=True)
            change.relabel({row: new for row, old in before if (new := asked.apply(old)) != old or confirm})
        return change.documents

    def forget(self, which: Which, *, source: str = "", everything: bool = False) -> int:
        """Permanently delete documents and their history, except for their ids; after `vacuum`, also from the file."""
        check_filter(which, everything)
        with self._changing("forget", source) as change:
            change.forget(self._ids(which))
        return change.documents

    def undo(self, number: int, *, source: str = "") -> int:
        """Restore the documents that a change touched to their state before it; return how many were restored."""
        with self._changing("undo", source) as change:
            change.undo(number)
        return change.documents

    def vacuum(self, keep: timedelta | None = None) -> None:
        """Rewrite the file without removed documents, unused later labels and outdated history.

        Other processes then read the whole store again.
        """
        until = None if keep is None else datetime.now(UTC) - checked_age(keep)
        with self._writing() as writer:
            with transaction(writer):
                if until is not None:
                    ledger.prune(writer, until)
                meta = read_meta(writer)
                ledger.drop_unused_labels(writer, meta["given"])
                writer.execute("DELETE FROM removed")
                set_meta(writer, epoch=meta["epoch"] + 1)
            if self._keeper is not None:
                self._keeper.delete()
            self.refresh()
            clean(writer)

    @contextmanager
    def _apart(self) -> Iterator[sqlite3.Connection]:
        """Hold a snapshot of the store for a long read, without blocking others."""
        with closing(connect_reader(self.path, 10.0)) as reader:
            self._replica.check_in_place()  # now that this connection is open
            with undisturbed(reader, self.path), transaction(reader, "DEFERRED"):
                yield reader

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        if self._writer is None:
            raise StoreError(f"the datastore {self.path} was opened read-only. Open it without read_only.")
        with self._write_lock, explained(self.path):
            self._replica.check_in_place()
            yield self._writer

    @contextmanager
    def _changing(self, action: str, source: str) -> Iterator[PendingChange]:
        """Run one change as a transaction; it is on disk, in memory and in the history when this returns.

        A change that touches nothing is not recorded.
        """
        with self._writing() as writer:
            with transaction(writer):
                self.refresh()  # nobody else can change the store until the commit
                change = PendingChange(writer, self._replica, self._replica.version + 1)
                yield change
                if change.documents:
                    ledger.record(writer, change.number, action, source, change.documents, change.undoes)
                    set_meta(writer, version=change.number)
            if change.documents:
                self.last_change = change.number
            self.refresh()  # raises if the change went to a file that is no longer in place
            if self._keeper is not None:
                self._keeper.look()

    def _ids(self, which: Which) -> list[str]:
        return self.select(which) if isinstance(which, Where) else as_ids(which)

    def _rows(self, which: Which) -> dict[int, str]:
        """Return rows and ids of the matching documents."""
        ids = self._ids(which)
        self._replica.check_known(ids)
        return {row: id for id in ids if (row := self._replica.index.row(id)) is not None}

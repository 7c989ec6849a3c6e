"""The shared datastore: PostgreSQL with pgvector, for many processes on many machines at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from typing import Self, TypeVar

import torch
from torch import Tensor

from denn.errors import StoreError
from denn.prediction_types import Neighbours
from denn.stores.postgres import read, undo
from denn.stores.postgres.changes import Writing, change
from denn.stores.postgres.link import Address, Connection, Link, connected, explained
from denn.stores.postgres.schema import (
    WIDEST,
    WIDEST_INDEXED,
    build_index,
    check_tables,
    create_tables,
    is_owner,
    migrate_tables,
)
from denn.stores.postgres.search import State, by_index, nearest
from denn.stores.rules import Relabelling, check_filter, checked_age
from denn.stores.unit_vectors import unit_rows
from denn.types import Change, Document, Where, Which

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class PostgresStore:
    """A datastore in a schema of a PostgreSQL database; any number of processes read and write, one at a time.

    Its address is `postgresql://host/database?schema=NAME`. Readers never wait for writers. A small store is scanned;
    a larger one has an HNSW index, which may occasionally miss a neighbour.
    """

    last_change = 0  # number of the last change made through this object

    def __init__(self, address: Address, read_only: bool, patience: float) -> None:
        """Open a store; call `open` or `create` instead."""
        self.address = address.text
        self._where, self._read_only, self._patience = address, read_only, patience
        with connected(address) as connection:
            self._dimension = check_tables(connection, address)
            self._state = State().renewed(connection)
        self._documents = self._state.documents  # as last seen; results of searches do not depend on it
        self._link = Link(address, read_only)

    @classmethod
    def create(
        cls,
        address: str,
        dimension: int,
        labels: Sequence[str] = (),
        *,
        device: str | torch.device = "cpu",
        patience: float = 10.0,
    ) -> Self:
        """Create an empty store for embeddings of this dimension, with `labels` as its first columns.

        The device is ignored, because the server searches.
        """
        if not 1 <= dimension <= WIDEST:
            raise StoreError(f"got the dimension {dimension}, expected that of the embeddings, 1 to {WIDEST:,}.")
        where = Address.parse(address)
        with connected(where) as connection:
            create_tables(connection, where, dimension, labels)
        return cls(where, False, patience)

    @classmethod
    def open(
        cls, address: str, read_only: bool = False, *, device: str | torch.device = "cpu", patience: float = 10.0
    ) -> Self:
        """Open an existing store; a change waits `patience` seconds for another process that is writing."""
        return cls(Address.parse(address), read_only, patience)

    @classmethod
    def migrate(cls, address: str) -> int:
        """Update the tables of an older version of denn, as their owner; return the number of migrations."""
        where = Address.parse(address)
        with connected(where) as connection:
            return migrate_tables(connection, where)

    def close(self) -> None:
        """Close the connections."""
        self._link.close()

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
        return self._renew().labels.names

    @property
    def given_labels(self) -> tuple[str, ...]:
        """The labels given at creation, which come first and which `vacuum` keeps even if they are unused."""
        return self._link.run(read.given_labels)

    def __len__(self) -> int:
        return self._renew().documents

    def ids(self) -> list[str]:
        """List the ids of all documents, oldest first."""
        return self.select(Where())

    def label_counts(self) -> dict[str, int]:
        """Count the stored documents of each label, in column order."""
        return self._link.run(read.label_counts)

    def info(self) -> dict[str, object]:
        """Return a summary of the store, without secrets."""
        state = self._renew()
        place, size, server, rejections = self._link.run(lambda connection: read.facts(connection, self._where))
        return {
            "kind": "postgres",
            "address": place,
            "documents": state.documents,
            "labels": len(state.labels.names),
            "rejections": rejections,
            "dimension": self.dimension,
            "bytes": size,
            "search": self._search_kind(),
            "server": server,
        }

    def select(self, where: Where) -> list[str]:
        """List the ids of the matching documents, oldest first."""
        return list(self._link.run(lambda connection: read.select(connection, where)))

    def get(self, ids: Sequence[str], *, missing_ok: bool = False) -> list[Document]:
        """Return stored documents in the order of the ids; an unknown id is an error unless `missing_ok`."""
        return self._link.run(lambda connection: read.documents(connection, self._where, ids, missing_ok))

    def texts(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the texts of stored documents by id, leaving out unknown ids."""
        return self._link.run(lambda connection: read.texts(connection, ids))

    def vectors(self, ids: Sequence[str]) -> Tensor:
        """Return the (n,d) unit vectors of stored documents in the order of the ids; an unknown id is an error."""
        return self._link.run(lambda connection: read.vectors(connection, self._where, ids, self._dimension))

    def export(self, size: int = 1024) -> Iterator[tuple[list[Document], Tensor]]:
        """Yield a snapshot of all documents, oldest first, with their (n,d) unit vectors, in batches of `size`."""
        with explained(self._where), self._link.connection() as connection:
            for rows in read.parts(connection, size):
                documents = [read.document_of(row[:-1]) for row in rows]
                yield documents, read.stacked([row[-1] for row in rows], self._dimension)

    def search(self, queries: Tensor, k: int, exclude: Collection[str] = ()) -> Neighbours:
        """Find the k nearest documents by cosine for each of the (n,d) queries, ignoring the ids in `exclude`.

        The result has k columns, or fewer if fewer documents are left.
        """
        if k < 1:
            raise StoreError(f"k must be at least 1, not {k}.")
        rows, known = unit_rows(queries, self._dimension).numpy(), self._state
        found, state, self._documents = self._link.run(
            lambda connection: nearest(connection, known, self._documents, rows, k, read.digests(exclude))
        )
        if state is not known:
            self._state = state
        return found

    def refresh(self) -> bool:
        """Return whether other processes changed anything since the last check; every call sees the newest state."""
        before = self._state
        after = self._renew()
        return (before.version, before.epoch) != (after.version, after.epoch)

    def history(self, limit: int | None = None, id: str | None = None) -> list[Change]:
        """List changes, newest first; with an id, the recorded changes to that document."""
        return self._link.run(lambda connection: read.history(connection, limit, id))

    def add(self, documents: Sequence[Document], embeddings: Tensor, *, source: str = "") -> list[str]:
        """Store documents with their (n,d) embeddings, replacing documents with the same ids; return the ids.

        A document without an id gets one that this store never uses again; a forgotten id is an error. When the owner
        adds enough documents, this also creates the index for nearest neighbours before it returns.
        """
        if not documents:
            return []
        if len(embeddings) != len(documents):
            raise StoreError(f"got {len(embeddings)} embeddings, expected one for each of {len(documents)} documents.")
        vectors = unit_rows(embeddings, self._dimension).numpy()

        def work(writing: Writing) -> list[str]:
            placed = writing.place(documents)
            writing.put(placed, documents, vectors)
            writing.touch(len(placed))
            return [id for _, id in placed]

        ids = self._change("add", source, work)
        if self._lacks_index():
            try:
                self._link.run(self._make_index)
            except StoreError as error:  # the documents are stored, and found without an index as well
                log.warning("the index for nearest neighbours was not created: %s", error)
        return ids

    def remove(self, which: Which, *, source: str = "", everything: bool = False) -> int:
        """Remove documents and return how many; an unknown id is an error."""
        check_filter(which, everything)

        def work(writing: Writing) -> int:
            rows = read.rows_of(writing.connection, self._where, which).values()
            writing.keep(rows)
            writing.take_out(rows)
            return writing.touch(len(rows))

        return self._change("remove", source, work)

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

        def work(writing: Writing) -> int:
            rows = read.rows_of(writing.connection, self._where, which)
            before = read.documents(writing.connection, self._where, list(rows))
            wanted = {rows[str(old.id)]: new for old in before if (new := asked.apply(old)) != old or confirm}
            writing.relabel(wanted)
            return writing.touch(len(wanted))

        return self._change("confirm" if confirm else "relabel", source, work)

    def forget(self, which: Which, *, source: str = "", everything: bool = False) -> int:
        """Permanently delete documents and their history, except for their ids; after `vacuum`, also from the files."""
        check_filter(which, everything)
        return self._change("forget", source, lambda writing: undo.forget(writing, which))

    def undo(self, number: int, *, source: str = "") -> int:
        """Restore the documents that a change touched to their state before it; return how many were restored."""
        return self._change("undo", source, lambda writing: undo.undo(writing, number))

    def vacuum(self, keep: timedelta | None = None) -> None:
        """Rewrite the tables without removed documents, unused later labels and outdated history.

        Only the owner of the tables can do this. Meanwhile, others wait for each table in turn.
        """
        self._check_writable()
        age = None if keep is None else checked_age(keep)

        def work(connection: Connection) -> None:
            if not is_owner(connection):
                raise StoreError(f"only the owner of the tables of {self.address} can vacuum. Connect as that role.")
            with connection.transaction():
                undo.prune(connection, age, self._patience)
            undo.rewrite(connection, self._patience)
            self._state = self._state.renewed(connection)
            if self._lacks_index():
                self._make_index(connection)

        self._link.run(work)

    def _renew(self) -> State:
        self._state = state = self._link.run(lambda connection: self._state.renewed(connection))
        self._documents = state.documents
        return state

    def _check_writable(self) -> None:
        if self._read_only:
            raise StoreError(f"the datastore {self.address} was opened read-only. Open it without read_only.")

    def _change(self, action: str, source: str, work: Callable[[Writing], Result]) -> Result:
        self._check_writable()
        result, number, self._state = change(self._link, self._state, self._patience, action, source, work)
        self.last_change = max(number or 0, self.last_change)
        self._documents = self._state.documents
        return result

    def _lacks_index(self) -> bool:
        many = by_index(self._state.documents, 1)
        return many and not self._state.indexed and self._dimension <= WIDEST_INDEXED

    def _make_index(self, connection: Connection) -> None:
        if is_owner(connection):
            with connection.transaction():
                build_index(connection, self._patience)
            self._state = self._state.renewed(connection)

    def _search_kind(self) -> str:
        if self._dimension > WIDEST_INDEXED:
            return f"exact (an index supports at most {WIDEST_INDEXED:,} dimensions)"
        return "hnsw" if self._state.indexed and by_index(self._state.documents, 1) else "exact"

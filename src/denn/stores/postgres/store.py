"""The shared datastore: PostgreSQL with pgvector, for many processes on many machines at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from typing import Self, TypeVar

import torch
from torch import Tensor

from denn.errors import StoreError
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
from denn.stores.rules import Relabelling, check_meant, checked_age
from denn.stores.unit_vectors import unit_rows
from denn.types import Change, Document, Neighbours, Where, Which

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class PostgresStore:
    """A datastore in a schema of a PostgreSQL database; any number of processes read and write, one at a time.

    Its address is `postgresql://host/database?schema=NAME`. Readers never wait for writers. While there are few
    documents all are looked at; for more there is an HNSW index, which may miss a neighbour now and then.
    """

    def __init__(self, address: Address, read_only: bool, patience: float) -> None:
        """Open a store; `open` and `create` are the ways to call this."""
        self.address = address.text
        self._where, self._read_only, self._patience = address, read_only, patience
        with connected(address) as connection:
            self._dimension = check_tables(connection, address)
            self._state = State().renewed(connection)
        self._documents = self._state.documents  # as last seen; what a search finds is not decided by it
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
        """Make an empty store for embeddings of this width, with `labels` as its first columns.

        The device is of no account: the server searches.
        """
        if not 1 <= dimension <= WIDEST:
            raise StoreError(f"got the dimension {dimension}, expected the width of the embeddings, 1 to {WIDEST:,}.")
        where = Address.parse(address)
        with connected(where) as connection:
            create_tables(connection, where, dimension, labels)
        return cls(where, False, patience)

    @classmethod
    def open(
        cls, address: str, read_only: bool = False, *, device: str | torch.device = "cpu", patience: float = 10.0
    ) -> Self:
        """Open a store that exists; a change waits `patience` seconds for another process that is writing."""
        return cls(Address.parse(address), read_only, patience)

    @classmethod
    def migrate(cls, address: str) -> int:
        """Bring the tables of an older version of denn up to date, as their owner. Return how many steps that took."""
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
        """The width of the embeddings."""
        return self._dimension

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names in column order; new names are appended, never reordered; only `vacuum` takes unused ones out."""
        return self._renew().labels.names

    def __len__(self) -> int:
        return self._renew().documents

    def ids(self) -> list[str]:
        """List the ids of all documents, oldest first."""
        return self.select(Where())

    def label_counts(self) -> dict[str, int]:
        """Count the stored documents of each label, in column order."""
        return self._link.run(read.label_counts)

    def info(self) -> dict[str, object]:
        """Return what a person would ask first; no part of it is a secret."""
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
        """List the ids of the documents that are meant, oldest first."""
        return list(self._link.run(lambda connection: read.select(connection, where)))

    def get(self, ids: Sequence[str], *, missing_ok: bool = False) -> list[Document]:
        """Return stored documents in the order of the ids; an unknown id is an error, or left out if `missing_ok`."""
        return self._link.run(lambda connection: read.documents(connection, self._where, ids, missing_ok))

    def texts(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the texts of stored documents by id; unknown ids are left out."""
        return self._link.run(lambda connection: read.texts(connection, ids))

    def vectors(self, ids: Sequence[str]) -> Tensor:
        """Return the (n,d) unit vectors of stored documents in the order of the ids; an unknown id is an error."""
        return self._link.run(lambda connection: read.vectors(connection, self._where, ids, self._dimension))

    def export(self, size: int = 1024) -> Iterator[tuple[list[Document], Tensor]]:
        """Go through all documents of one moment, oldest first, with their (n,d) unit vectors, in parts of `size`."""
        with explained(self._where), self._link.connection() as connection:
            for rows in read.parts(connection, size):
                documents = [read.document_of(row[:-1]) for row in rows]
                yield documents, read.stacked([row[-1] for row in rows], self._dimension)

    def search(self, queries: Tensor, k: int, exclude: Collection[str] = ()) -> Neighbours:
        """Find the k nearest documents by cosine for each of the (n,d) queries, leaving out excluded ids.

        The result is as wide as k or as the number of documents left, whichever is smaller.
        """
        if k < 1:
            raise StoreError(f"got k = {k}, expected at least one neighbour.")
        rows, known = unit_rows(queries, self._dimension).numpy(), self._state
        found, state, self._documents = self._link.run(
            lambda connection: nearest(connection, known, self._documents, rows, k, read.digests(exclude))
        )
        if state is not known:
            self._state = state
        return found

    def refresh(self) -> bool:
        """Look whether other processes changed anything since this one last looked; every call sees the newest."""
        before = self._state
        after = self._renew()
        return (before.version, before.epoch) != (after.version, after.epoch)

    def history(self, limit: int | None = None, id: str | None = None) -> list[Change]:
        """List the changes, newest first; with an id those that touched this document and can be told."""
        return self._link.run(lambda connection: read.history(connection, limit, id))

    def add(self, documents: Sequence[Document], embeddings: Tensor, *, source: str = "") -> list[str]:
        """Store documents with their (n,d) embeddings, all or none; an id that exists is replaced. Return the ids.

        A document without an id gets one that this store never gives again; a forgotten id is an error. The owner's
        add that makes the documents many returns when the index of the nearest neighbours is made, too.
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
            except StoreError as error:  # what was to be added is, and is found without an index as well
                log.warning("the index of the nearest neighbours was not made: %s", error)
        return ids

    def remove(self, which: Which, *, source: str = "", everything: bool = False) -> int:
        """Remove documents, all or none; an unknown id is an error. Return how many went."""
        check_meant(which, everything)

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
        source: str = "",
        everything: bool = False,
    ) -> int:
        """Give documents these labels, or those they have, without `drop` and with `add`. Return how many changed.

        `reject` takes labels away and stores that they were rejected, until they are given again or dropped.
        """
        check_meant(which, everything)
        asked = Relabelling.of(labels, add, drop, reject)

        def work(writing: Writing) -> int:
            rows = read.rows_of(writing.connection, self._where, which)
            before = read.documents(writing.connection, self._where, list(rows))
            wanted = {rows[str(old.id)]: new for old in before if (new := asked.apply(old)) != old}
            writing.relabel(wanted)
            return writing.touch(len(wanted))

        return self._change("relabel", source, work)

    def forget(self, which: Which, *, source: str = "", everything: bool = False) -> int:
        """Remove documents, in the history too, but for their ids; after `vacuum` nothing of them is in the tables."""
        check_meant(which, everything)
        return self._change("forget", source, lambda writing: undo.forget(writing, which))

    def undo(self, number: int, *, source: str = "") -> int:
        """Bring the documents that a change touched to where they were before it. Return how many were."""
        return self._change("undo", source, lambda writing: undo.undo(writing, number))

    def vacuum(self, keep: timedelta | None = None) -> None:
        """Write the tables anew without what was removed, without later labels that nothing carries, without old pasts.

        It is for the owner of the tables. Meanwhile others wait for each table in turn.
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
            raise StoreError(f"the datastore {self.address} was opened for reading only. Open it without read_only.")

    def _change(self, action: str, source: str, work: Callable[[Writing], Result]) -> Result:
        self._check_writable()
        result, self._state = change(self._link, self._state, self._patience, action, source, work)
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
            return f"exact (an index takes at most {WIDEST_INDEXED:,} dimensions)"
        return "hnsw" if self._state.indexed and by_index(self._state.documents, 1) else "exact"

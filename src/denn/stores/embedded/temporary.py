"""A datastore that exists only in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Self

import torch

from denn.errors import StoreError
from denn.stores.embedded.index_maintenance import Index
from denn.stores.embedded.replica import Replica
from denn.stores.embedded.sqlite import Connection, prepare_writer, write_schema
from denn.stores.embedded.store import EmbeddedStore
from denn.stores.rules import check_dimension


class MemoryStore(EmbeddedStore):
    """The embedded store without its file, lost when the process ends; for trials, and as the reference for others."""

    def __init__(self, dimension: int, labels: Sequence[str], device: str | torch.device) -> None:
        """Create an empty store; call `create` instead."""
        self.path = Path("memory")
        self._dimension = dimension
        with ExitStack() as opened:
            connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=Connection)
            self._writer = opened.enter_context(closing(connection))
            write_schema(connection, self.path, dimension, labels)
            prepare_writer(connection)
            self._replica = Replica(connection, self.path, dimension, device, private=True)
            self._write_lock = self._replica.lock  # there is only one connection, so reading waits for writing
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
        return cls(dimension, labels, device)

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
        """Raise a StoreError, because there is nothing to open."""
        raise StoreError("a store in memory ends with its process and cannot be opened again. Create a new one.")

    @contextmanager
    def _apart(self) -> Iterator[sqlite3.Connection]:
        with self._replica.lock:
            yield self._replica.reader

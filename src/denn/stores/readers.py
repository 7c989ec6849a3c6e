"""Stored vectors, read from the file of an embedded datastore while others use and change it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from denn.errors import StoreError
from denn.stores.memory import Fetch
from denn.stores.sqlite import connect, explained, read_meta


def matrix(embeddings: Sequence[bytes], dimension: int) -> Tensor:
    """Return embeddings as they are stored as (n,d) vectors."""
    vectors = np.frombuffer(bytearray().join(embeddings), "<f4")
    if len(vectors) != len(embeddings) * dimension:
        raise StoreError(f"the datastore holds embeddings of another width than {dimension}. Restore it from a copy.")
    return torch.from_numpy(vectors.reshape(len(embeddings), dimension))


def read_present(connection: sqlite3.Connection, dimension: int, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return those of the ascending rows that are stored, with their vectors."""
    # CROSS JOIN keeps the order of the rows.
    select = "SELECT row, embedding FROM json_each(?) CROSS JOIN documents ON row = value"
    found = connection.execute(select, (json.dumps(rows.tolist()),)).fetchall()
    kept = torch.tensor([row for row, _ in found], dtype=torch.int64)
    return kept, matrix([blob for _, blob in found], dimension)


def read_vectors(connection: sqlite3.Connection, dimension: int, rows: Tensor) -> Tensor:
    """Return the (n,d) vectors of ascending rows, all of which are stored."""
    kept, vectors = read_present(connection, dimension, rows)
    if not torch.equal(kept, rows):
        raise StoreError("the datastore lost documents that it did not remove. Restore it from a copy.")
    return vectors


class Readers:
    """Connections that searches borrow, so that they neither wait for each other nor see a change halfway."""

    def __init__(self, path: Path, dimension: int, patience: float) -> None:
        self._path, self._dimension, self._patience = path, dimension, patience
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    @contextmanager
    def at(self, version: int) -> Iterator[Fetch | None]:
        """Lend the vectors of the store as it is after change `version`; None where the store has moved on."""
        with explained(self._path):
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = connect(self._path, self._patience)
            try:
                connection.execute("BEGIN")
                moved = read_meta(connection)["version"] != version
                yield None if moved else partial(read_vectors, connection, self._dimension)
            finally:
                connection.rollback()
                self._idle.append(connection)
                if self._closed:
                    self.close()

    def close(self) -> None:
        """Close what is idle now, and what is lent when it comes back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

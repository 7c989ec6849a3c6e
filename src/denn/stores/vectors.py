"""Stored vectors, read from the file of an embedded datastore."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from denn.errors import StoreError


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

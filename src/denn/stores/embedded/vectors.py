"""Read stored vectors from the file of an embedded datastore."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from denn.errors import StoreError
from denn.stores.embedded.sqlite import check_types

UNIT_TOLERANCE = 1e-3  # allowed deviation of a stored vector's squared length from 1


def matrix(embeddings: Sequence[bytes], dimension: int) -> Tensor:
    """Return stored embeddings as (n,d) vectors."""
    check_types(embeddings, bytes)
    if any(len(blob) != 4 * dimension for blob in embeddings):
        raise StoreError(
            f"the datastore is damaged: an embedding does not have {dimension} dimensions. Restore it from a copy."
        )
    vectors = np.frombuffer(bytearray().join(embeddings), "<f4").reshape(len(embeddings), dimension)
    squares = np.einsum("nd,nd->n", vectors, vectors)
    if not ((np.abs(squares - 1) < UNIT_TOLERANCE) | (squares == 0)).all():  # also catches nan
        raise StoreError("the datastore is damaged: an embedding does not have length 1. Restore it from a copy.")
    return torch.from_numpy(vectors)


def read_present(
    connection: sqlite3.Connection, dimension: int, rows: Tensor, until: int = 2**63 - 1
) -> tuple[Tensor, Tensor]:
    """Return those of the ascending rows that are stored, with their vectors, unless changed after change `until`."""
    # CROSS JOIN keeps the order of the rows.
    select = "SELECT row, embedding FROM json_each(?) CROSS JOIN documents ON row = value WHERE changed <= ?"
    found = connection.execute(select, (json.dumps(rows.tolist()), until)).fetchall()
    kept = torch.tensor([row for row, _ in found], dtype=torch.int64)
    return kept, matrix([blob for _, blob in found], dimension)


def read_vectors(connection: sqlite3.Connection, dimension: int, rows: Tensor) -> Tensor:
    """Return the (n,d) vectors of ascending rows, all of which are stored."""
    kept, vectors = read_present(connection, dimension, rows)
    if not torch.equal(kept, rows):
        raise StoreError("the datastore is damaged: documents are missing. Restore it from a copy.")
    return vectors

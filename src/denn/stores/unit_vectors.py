"""Vectors of length 1, as stored in every datastore."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denn.errors import DataError, StoreError

SMALL, LARGE = 1e-9, 1e9  # lengths whose squares are safe in float32


def unit_rows(vectors: Tensor, dimension: int) -> Tensor:
    """Return the (n,d) vectors as float32 rows of length 1; a zero row stays zero; raise if one is not finite."""
    if vectors.ndim != 2 or vectors.shape[1] != dimension:
        raise StoreError(
            f"got vectors of shape {tuple(vectors.shape)}, expected (n, {dimension}). "
            "Use the encoder that this datastore was created with."
        )
    # NumPy, because waking torch's threads costs more than the work on a few queries.
    rows = vectors.detach().cpu().to(torch.promote_types(vectors.dtype, torch.float32)).numpy()
    norm = np.sqrt(np.einsum("nd,nd->n", rows, rows))[:, None]
    if not ((norm > SMALL) & (norm < LARGE)).all():  # the squares may overflow or underflow
        rows, norm = _in_range(rows)
    return torch.from_numpy((rows / norm).astype(np.float32, copy=False))


def _in_range(rows: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return rows of the same directions and their lengths, 1 for zero rows; raise if one is not finite.

    Rows are scaled by powers of two, so that a row is rounded the same way whatever the other rows are.
    """
    largest = np.abs(rows).max(axis=1, keepdims=True)
    broken = np.flatnonzero(~np.isfinite(largest))
    if len(broken):
        raise DataError(
            f"vector {broken[0]} contains a value that is not finite, expected only finite numbers. "
            "Check the encoder's weights."
        )
    rows = np.ldexp(rows, -np.frexp(largest)[1])
    norm = np.sqrt(np.einsum("nd,nd->n", rows, rows))[:, None]
    return rows, np.where(norm == 0, 1, norm)

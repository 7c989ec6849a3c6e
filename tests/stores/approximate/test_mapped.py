"""Vectors that are mapped into memory."""

import mmap
import tempfile

import numpy as np
import pytest

from denn.stores.embedded.mapped import MappedVectors


@pytest.mark.parametrize("dimension", [3, 384, 1500])
def test_vectors_are_those_of_the_file(dimension):
    rows = np.random.default_rng(0).random((500, dimension), np.float32)
    with tempfile.TemporaryFile() as file:
        file.write(b" " * mmap.PAGESIZE + rows.tobytes() + b"what follows")
        file.flush()
        vectors = MappedVectors(file, 500, dimension, mmap.PAGESIZE)
    assert vectors.shape == rows.shape
    for positions in (np.array([[0, 499], [7, -1]]), np.arange(500), np.empty((0, 5), np.int64)):
        assert np.array_equal(vectors[positions], rows[positions])

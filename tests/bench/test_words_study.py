"""The study of words: what the other solvers are given."""

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix

from denn_bench.studies.words import omikuji_lines


def test_documents_without_terms_are_left_out():
    rows = csr_matrix(np.array([[0.5, 0, 0.25], [0, 0, 0], [0, 1, 0]], dtype=np.float32))
    gold = csc_matrix(np.array([[True, True], [True, False], [False, False]]))
    assert [*omikuji_lines(rows, gold)] == ["2 3 2\n", "0,1 0:0.5 2:0.25\n", " 1:1\n"]

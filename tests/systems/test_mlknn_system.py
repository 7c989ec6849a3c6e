"""ML-kNN on texts: its neighbours by cosine against loops, itself left out, blocks and threads that change nothing."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import denn
from denn.progress import Silent
from denn_bench.core.mlknn import neighbour_histograms, posterior
from denn_bench.systems import mlknn
from denn_bench.systems.mlknn import MLkNN, MlknnParameters, nearest


def texts_of(documents):
    return [document.text for document in documents]


def unit_rows(count: int, width: int, seed: int, empty: int | None = None, copy: tuple[int, int] | None = None):
    """Draw rows of norm 1, one of them empty or a copy of another."""
    chance = np.random.default_rng(seed)
    rows = chance.random((count, width)) * (chance.random((count, width)) < 0.4)
    if empty is not None:
        rows[empty] = 0
    if copy is not None:
        rows[copy[0]] = rows[copy[1]]
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return csr_matrix((rows / np.where(norms > 0, norms, 1)).astype(np.float32))


def nearest_by_loops(queries, known, k, own):
    """Return the sets of row numbers that `nearest` should find."""
    found = []
    for i, query in enumerate(queries.toarray()):
        cosine = [(float(query @ row), j) for j, row in enumerate(known.toarray()) if not (own and i == j)]
        found.append({j for value, j in sorted(cosine, reverse=True)[:k] if value > 0})
    return found


def sets(matrix):
    assert (matrix.data == 1).all()
    return [set(matrix[row].indices.tolist()) for row in range(matrix.shape[0])]


@pytest.mark.parametrize("k", [1, 4, 100])
@pytest.mark.parametrize("block", [1, 7, 64])
def test_neighbours_are_the_nearest_by_cosine_with_a_common_term(k, block, monkeypatch):
    monkeypatch.setattr(mlknn, "QUERIES", block)
    known, queries = unit_rows(40, 8, 0), unit_rows(15, 8, 1, empty=3)
    found = nearest(queries, known, k, jobs=2)
    assert found.shape == (15, 40)
    assert sets(found) == nearest_by_loops(queries, known, k, own=False)
    assert sets(found)[3] == set()


def test_a_document_is_no_neighbour_of_its_own_but_its_copy_is(monkeypatch):
    monkeypatch.setattr(mlknn, "CELLS", 20)  # blocks of two
    known = unit_rows(20, 10, 2, copy=(5, 9))
    found = sets(nearest(known, known, 3, jobs=1, own=True))
    assert found == nearest_by_loops(known, known, 3, own=True)
    assert all(row not in neighbours for row, neighbours in enumerate(found))
    assert 9 in found[5] and 5 in found[9]


def test_progress_counts_documents_up_to_the_last():
    said: list[int] = []
    known = unit_rows(150, 10, 3)
    nearest(known, known, 3, jobs=2, own=True, report=said.append)
    assert said == [64, 128, 150]


def test_scores_are_posteriors_of_what_neighbours_carry(tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(mlknn, "COUNTED", 16)
    method = MLkNN(MlknnParameters(k=4, smoothing=0.5, min_df=1, jobs=1))
    method.fit(tiny_corpus, tmp_path, Silent())
    gold = tiny_corpus.labels.matrix(tiny_corpus.train)

    def near(neighbours):
        return torch.stack([gold[sorted(rows)].sum(0) for rows in neighbours])

    texts = texts_of(tiny_corpus.test)
    known, unseen = method.known, method.features(texts).astype("float32")
    learnt = neighbour_histograms(near(nearest_by_loops(known, known, 4, own=True)), gold, 4)
    assert torch.equal(method.with_label, learnt[0]) and torch.equal(method.without_label, learnt[1])
    expected = posterior(near(nearest_by_loops(unseen, known, 4, own=False)), *learnt, 0.5)
    found = method.scores(texts)
    assert found.names == tiny_corpus.labels.names
    torch.testing.assert_close(found.final, expected.float())
    wanted = tiny_corpus.labels.matrix(tiny_corpus.test)
    assert ((found.final > 0.5) == wanted).float().mean() > 0.8


def test_a_single_document_has_no_neighbours_to_learn_from(tmp_path):
    method = MLkNN(MlknnParameters())
    method.fit(denn.Corpus([denn.Document("goal", ("sport",), "0")]), tmp_path, Silent())
    assert method.with_label.tolist() == [[1] + [0] * 10]
    assert method.scores(["goal", ""]).final.shape == (2, 1)

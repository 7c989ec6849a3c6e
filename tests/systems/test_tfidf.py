"""TF-IDF features against their formula, on disk, and what they refuse; work in threads."""

import math
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.sparse import random as random_matrix

from denn.errors import BundleError, DataError
from denn_bench.systems.tfidf import Tfidf, TfidfParameters, from_arrays, in_threads, to_arrays

TEXTS = ["Goal goal match", "match team", "team Goal! x 電車", "", "電車 only here"]


def test_a_row_is_the_formula_written_out():
    features, known = Tfidf.of(TEXTS, TfidfParameters(min_df=2))
    terms = ["goal", "match", "team", "電車"]  # not "x", a single character, nor what one document has
    assert features.vectorizer.get_feature_names_out().tolist() == terms
    counts = [[2, 1, 0, 0], [0, 1, 1, 0], [1, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]]
    for row, of_text in enumerate(counts):
        weights = []
        for column, count in enumerate(of_text):
            documents = sum(other[column] > 0 for other in counts)
            weights.append((1 + math.log(count)) * (1 + math.log(6 / (1 + documents))) if count else 0.0)
        norm = math.sqrt(sum(weight**2 for weight in weights)) or 1.0
        assert known[row].toarray()[0].tolist() == pytest.approx([weight / norm for weight in weights])
    np.testing.assert_allclose(features(TEXTS).toarray(), known.toarray(), rtol=1e-12)
    assert features(["nothing known"]).nnz == 0


@pytest.mark.parametrize("parameters", [TfidfParameters(min_df=1, bigrams=True), TfidfParameters(max_features=2)])
def test_features_survive_disk(parameters, tmp_path):
    features, known = Tfidf.of(TEXTS, parameters)
    features.save(tmp_path)
    again = Tfidf.load(tmp_path, parameters)
    np.testing.assert_allclose(again(TEXTS).toarray(), known.toarray(), rtol=1e-12)
    terms = (tmp_path / "vocabulary.txt").read_text(encoding="utf-8").split("\n")
    assert len(terms) == known.shape[1]
    assert ("goal match" in terms) == parameters.bigrams


def test_fewer_documents_than_min_df_keep_what_all_share():
    _, known = Tfidf.of(["goal"], TfidfParameters(min_df=5))
    assert known.toarray().tolist() == [[1.0]]


@pytest.mark.parametrize("texts", [["", "a b c"], ["one", "two", "three"]])
def test_no_common_word_is_refused(texts):
    with pytest.raises(DataError, match=rf"Got {len(texts)} training documents .* min_df=1"):
        Tfidf.of(texts, TfidfParameters(min_df=2))


@pytest.mark.parametrize("shape", [(5, 7), (0, 3), (3, 0)])
def test_sparse_matrices_survive_being_taken_apart(shape):
    matrix = random_matrix(*shape, density=0.4, format="csr", rng=np.random.default_rng(0))
    arrays = {name: torch.from_numpy(array) for name, array in to_arrays(matrix, "one").items()}
    again = from_arrays(arrays, "one", shape[0], shape[1], Path("file"))
    assert again.shape == shape
    assert (again != matrix).nnz == 0


def test_threads_work_at_the_same_time_and_results_come_in_order():
    together = threading.Barrier(2, timeout=60)

    def task(number: int) -> int:
        together.wait()  # passes only where two are at work
        return number

    assert list(in_threads(task, 6, 2)) == [0, 1, 2, 3, 4, 5]


def test_what_fails_in_a_thread_is_heard():
    def task(number: int) -> None:
        if number == 1:
            raise DataError("no")

    with pytest.raises(DataError):
        list(in_threads(task, 4, 2))


@pytest.mark.parametrize(
    ("part", "values", "said"),
    [
        ("indices", [0, 99], "is damaged"),
        ("indices", [0, -1], "is damaged"),
        ("indptr", [0, 2, 1], "is damaged"),
        ("indptr", [0, 1, 99], "is damaged"),
        ("indptr", [0, 2], "does not match the terms"),
        ("shape", [2, 10**12], "does not match the terms"),
        ("shape", [10**12, 3], "does not match the terms"),
        ("shape", [-1, 3], "does not match the terms"),
    ],
)
def test_a_damaged_matrix_is_refused_before_it_is_used(part, values, said):
    arrays = {
        name: torch.from_numpy(array) for name, array in to_arrays(csr_matrix([[1, 0, 2], [0, 0, 0]]), "m").items()
    }
    arrays[f"m.{part}"] = torch.tensor(values, dtype=arrays[f"m.{part}"].dtype)
    with pytest.raises(BundleError, match=said):
        from_arrays(arrays, "m", 2, 3, Path("file"))

"""Machines fitted near the margin equal those fitted to all documents; time, order, labels without documents."""

import os
import tracemalloc
from threading import Event

import numpy as np
import pytest
from scipy.sparse import csc_matrix, csr_matrix
from sklearn.svm import LinearSVC

from denn.witnesses import sparse_linear
from denn.witnesses.sparse_linear import NEVER, Learner, available_cores


def problem(documents=600, terms=120, labels=6, seed=0):
    random = np.random.default_rng(seed)
    x = random.exponential(size=(documents, terms)) * (random.random((documents, terms)) < 0.1)
    x /= np.linalg.norm(x, axis=1, keepdims=True) + 1e-9
    decisions = x @ random.normal(size=(terms, labels))
    return csr_matrix(x.astype(np.float32)), csc_matrix(decisions > np.quantile(decisions, 0.92, axis=0))


def learner(rows, gold, *, negatives=60, seed=0, prune=0.0, left=lambda: None):
    return Learner(rows, gold, 1.0, negatives, prune, seed, left)


def ignore(_):
    pass


@pytest.mark.parametrize("first", [sparse_linear.FIRST, 10])
@pytest.mark.parametrize("negatives", [60, 600])
def test_few_documents_give_nearly_the_machines_of_all(monkeypatch, first, negatives):
    monkeypatch.setattr(sparse_linear, "FIRST", first)
    rows, gold = problem()
    found = learner(rows, gold, negatives=negatives).learn(np.arange(6), ignore)
    ours = rows @ found.weights.toarray() + found.bias
    for label in range(6):
        whole = LinearSVC(dual=False, tol=1e-6).fit(rows.astype(float), gold[:, [label]].toarray().ravel())
        theirs = whole.decision_function(rows.astype(float))
        assert np.corrcoef(ours[:, label], theirs)[0, 1] > 0.99
        assert np.mean((ours[:, label] > -0.3) == (theirs > -0.3)) > 0.985


def test_the_same_seed_gives_the_same_machines():
    rows, gold = problem()
    once, again = (learner(rows, gold, seed=5).learn(np.arange(6), ignore) for _ in range(2))
    assert (once.weights != again.weights).nnz == 0
    assert np.array_equal(once.bias, again.bias)


def test_small_weights_are_dropped():
    rows, gold = problem()
    whole, pruned = (learner(rows, gold, prune=prune).learn(np.arange(6), ignore) for prune in (0.0, 0.2))
    assert 0 < pruned.weights.nnz < whole.weights.nnz
    assert np.abs(pruned.weights.data).min() >= 0.2


def test_labels_of_none_and_of_all_documents_are_constant():
    rows, _ = problem(documents=20)
    gold = csc_matrix(np.array([[False, True]] * 20))
    found = learner(rows, gold).learn(np.arange(2), ignore)
    assert found.weights.nnz == 0
    assert found.bias.tolist() == [NEVER, -NEVER]


def test_labels_are_learnt_in_order_until_the_time_is_over(monkeypatch):
    monkeypatch.setattr("denn.witnesses.sparse_linear.THREADS", 1)
    rows, gold = problem()
    left = iter([1.0] * 5)  # three rounds of one label, and two of the next
    found = learner(rows, gold, left=lambda: next(left, 0.0)).learn(np.array([3, 1, 0, 2, 4, 5]), ignore)
    assert found.learnt.nonzero()[0].tolist() == [1, 3]
    assert np.isnan(found.bias[~found.learnt]).all() and found.weights[:, ~found.learnt].nnz == 0
    left = iter([1.0] * 4)  # the second label has not seen all documents
    found = learner(rows, gold, left=lambda: next(left, 0.0)).learn(np.array([3, 1, 0, 2, 4, 5]), ignore)
    assert found.learnt.nonzero()[0].tolist() == [3]


def test_progress_counts_labels():
    rows, gold = problem()
    seen = []
    learner(rows, gold).learn(np.array([0, 2, 4]), seen.append)
    assert seen == [1, 2, 3]


class FirstLast(Learner):
    """Learns the first block last, so that all others wait for their turn."""

    def _block(self, labels, sample):
        found = super()._block(labels, sample)
        if labels[0] == 0:
            assert others_done.wait(60)
        elif labels[-1] == 63:
            others_done.set()
        return found


others_done = Event()


@pytest.mark.slow
def test_blocks_that_wait_for_others_are_small(monkeypatch):
    monkeypatch.setattr(sparse_linear, "available_cores", lambda: 2)
    monkeypatch.setattr(sparse_linear, "BLOCK", 4)
    rows, gold = problem(documents=40, terms=50, labels=64)
    rows.resize(40, 20_000)
    dense = 20_000 * 64 * 4
    tracemalloc.start()
    try:
        FirstLast(rows, gold, 1.0, 10, 0.05, 0, lambda: None).learn(np.arange(64), ignore)
        assert tracemalloc.get_traced_memory()[1] < dense / 2
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinities")
def test_only_cores_that_may_be_used_count():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert available_cores() == len(before)

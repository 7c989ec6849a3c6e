"""Graphs between labels: shares counted by hand, and a pass written out in loops."""

import math

import torch

from denn_bench.core.label_graph import co_occurrence, propagate


def test_shares_of_labels_that_come_together():
    rows = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]]).bool()
    # Label 0 is in four rows, 1 in two of them, 2 in one of these, 3 in none.
    expected = [[0, 1, 1, 0], [2 / 4, 0, 1, 0], [1 / 4, 1 / 2, 0, 0], [0, 0, 0, 0]]
    torch.testing.assert_close(co_occurrence(rows), torch.tensor(expected))


def test_shares_of_one_label_and_of_no_rows():
    assert co_occurrence(torch.ones(3, 1, dtype=torch.bool)).tolist() == [[0.0]]
    assert co_occurrence(torch.zeros(0, 2, dtype=torch.bool)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_a_pass_along_the_edges_of_each_text():
    torch.manual_seed(0)
    graphs, features = torch.rand(2, 4, 4), torch.randn(2, 4, 3)
    graphs[0, 1] = 0  # a label whose only edge is to itself
    found = propagate(graphs, features)
    for text in range(2):
        own = [max(1.0, float(graphs[text, i].sum())) for i in range(4)]
        with_own = [[float(graphs[text, i, j]) + (i == j) * own[i] for j in range(4)] for i in range(4)]
        degree = [sum(row) for row in with_own]
        for i in range(4):
            for column in range(3):
                expected = sum(
                    with_own[i][j] / math.sqrt(degree[i] * degree[j]) * float(features[text, j, column])
                    for j in range(4)
                )
                assert math.isclose(float(found[text, i, column]), expected, abs_tol=1e-5)


def test_one_graph_for_all_texts_is_the_same_graph_for_each():
    torch.manual_seed(0)
    graph, features = torch.rand(4, 4), torch.randn(3, 4, 2)
    torch.testing.assert_close(propagate(graph, features), propagate(graph.expand(3, 4, 4), features))


def test_edges_that_vanish_leave_finite_gradients():
    logits = torch.full((1, 3, 3), -200.0, requires_grad=True)
    propagate(torch.sigmoid(logits), torch.ones(1, 3, 2)).sum().backward()
    assert bool(logits.grad.isfinite().all())

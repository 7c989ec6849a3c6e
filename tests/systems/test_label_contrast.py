"""The losses over one view of each text against sums written out in loops, and their rows without a positive."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from denn_bench.core.label_contrast import (
    distances,
    euclidean,
    identical_sets,
    jaccard,
    jaccard_denominator,
    jaccard_weights,
    label_by_label,
    same_targets,
    shared_labels,
    weighted_contrast,
)


@st.composite
def batches(draw, smallest=1):
    """Draw (N,N) logits and (N,L) labels, with empty rows and equal rows among them."""
    size, width = draw(st.integers(smallest, 6)), draw(st.integers(1, 4))
    cells = draw(st.lists(st.booleans(), min_size=size * width, max_size=size * width))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    vectors = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    return vectors @ vectors.T, torch.tensor(cells).view(size, width)


def sets_of(labels):
    return [{column for column, value in enumerate(row) if value} for row in labels.tolist()]


def log_share(logits, i, j):
    """Return log( exp(z_ij) / Σ_{k≠i} exp(z_ik) )."""
    return logits[i][j] - math.log(sum(math.exp(logits[i][k]) for k in range(len(logits)) if k != i))


def by_weights(logits, weight_of):
    """Sum −w log share over the others of each anchor, where `weight_of(i, j)` gives weights that add up to 1 or 0."""
    z, losses = logits.tolist(), []
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        total = sum(weight_of(i, j) for j in others)
        losses.append(-sum(weight_of(i, j) / total * log_share(z, i, j) for j in others) if total else 0.0)
    return torch.tensor(losses, dtype=torch.float64)


def assert_same(found, expected):
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-6)


@given(batches())
def test_scl_averages_over_the_documents_with_the_same_label_set(batch):
    logits, labels = batch
    sets = sets_of(labels)
    assert_same(
        weighted_contrast(logits, identical_sets(labels)), by_weights(logits, lambda i, j: float(sets[i] == sets[j]))
    )


@given(batches())
def test_jscl_weighs_by_the_jaccard_index(batch):
    logits, labels = batch
    sets = sets_of(labels)

    def index(i, j):
        return len(sets[i] & sets[j]) / len(sets[i] | sets[j]) if sets[i] | sets[j] else 0.0

    expected = torch.tensor([[index(i, j) for j in range(len(sets))] for i in range(len(sets))])
    assert_same(jaccard(labels), expected)
    assert_same(weighted_contrast(logits, jaccard_weights(labels)), by_weights(logits, index))


@given(batches())
def test_dynamic_coefficients_are_the_shares_of_common_labels(batch):
    logits, labels = batch
    sets = sets_of(labels)
    coefficients = shared_labels(labels)
    for i in range(len(sets)):
        common = {j: len(sets[i] & sets[j]) for j in range(len(sets)) if j != i}
        for j, count in common.items():
            expected = count / sum(common.values()) if count else 0.0
            assert float(coefficients[i, j]) == pytest.approx(expected)
    assert_same(weighted_contrast(logits, coefficients), by_weights(logits, lambda i, j: len(sets[i] & sets[j])))


@given(batches())
def test_slcl_is_the_mean_over_labels_of_a_contrast_of_two_classes(batch):
    logits, labels = batch
    expected = torch.zeros(len(labels), dtype=torch.float64)
    for column in labels.T.tolist():
        expected += by_weights(logits, lambda i, j, column=column: float(column[i] == column[j])) / labels.shape[1]
    assert_same(weighted_contrast(logits, label_by_label(labels)), expected)


@given(batches(), st.integers(1, 3))
def test_icl_contrasts_the_labels_within_each_document(batch, documents):
    logits, targets = batch
    rows = [targets[:, column % targets.shape[1]] for column in range(documents)]  # a target for each of the N labels
    labels = torch.stack(rows)
    found = weighted_contrast(logits.expand(documents, -1, -1), same_targets(labels))
    for row, target in zip(found, labels.tolist(), strict=True):
        assert_same(row, by_weights(logits, lambda c, d, target=target: float(target[c] == target[d])))


@given(batches(smallest=2))
def test_the_code_of_jscl_weighs_the_denominator(batch):
    logits, labels = batch
    sets, z = sets_of(labels), logits.tolist()
    for i, loss in enumerate(jaccard_denominator(logits, labels).tolist()):
        others = [j for j in range(len(sets)) if j != i]
        denominator = 1e-20
        for k in others:
            if sets[i] & sets[k]:
                denominator += len(sets[i] & sets[k]) / len(sets[i] | sets[k]) * math.exp(z[i][k])
        expected = -sum(z[i][j] - math.log(denominator) for j in others) / len(others)
        assert loss == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_what_shares_no_label_is_a_constant_of_the_code_of_jscl():
    labels = torch.tensor([[1, 0], [0, 1], [0, 0]])
    logits = torch.tensor([[9.0, 1.0, 2.0], [1.0, 9.0, 4.0], [2.0, 4.0, 9.0]])
    expected = torch.tensor([-46.0517 - 1.5, -46.0517 - 2.5, -46.0517 - 3.0])
    torch.testing.assert_close(jaccard_denominator(logits, labels), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("weights_of", [identical_sets, jaccard_weights, shared_labels])
def test_an_anchor_without_a_positive_costs_nothing(weights_of):
    labels = torch.tensor([[1, 0, 0], [1, 0, 0], [0, 1, 1]])
    logits = torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    losses = weighted_contrast(logits, weights_of(labels))
    assert float(losses[2].detach()) == 0 and bool((losses[:2] > 0).all())
    losses.sum().backward()
    assert logits.grad[2].tolist() == [0, 0, 0] and bool(logits.grad.isfinite().all())


@pytest.mark.parametrize("weights_of", [identical_sets, jaccard_weights, shared_labels, label_by_label])
@pytest.mark.parametrize("labels", [[[1, 0]], [[0, 0]]])
def test_one_document_costs_nothing(weights_of, labels):
    logits = torch.ones(1, 1, requires_grad=True)
    loss = weighted_contrast(logits, weights_of(torch.tensor(labels)))
    loss.sum().backward()
    assert loss.tolist() == [0.0] and logits.grad.tolist() == [[0.0]]
    assert jaccard_denominator(logits.detach(), torch.tensor(labels)).tolist() == [0.0]


def test_documents_without_labels_have_the_same_label_set():
    labels = torch.tensor([[0, 0], [0, 0], [1, 0]])
    assert identical_sets(labels).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert jaccard_weights(labels).tolist() == [[0, 0, 0]] * 3


def test_distances_are_those_of_vectors_of_one_length():
    vectors = torch.randn(7, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    unit = torch.nn.functional.normalize(vectors, dim=1)
    found = euclidean(unit @ unit.T, 15.0)
    expected = torch.cdist(15 * unit, 15 * unit).clamp(min=0.015)  # a text is this far from itself
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_distances_of_vectors_of_any_length():
    vectors = torch.randn(7, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = [[max(math.dist(a, b), 0.001) for b in vectors.tolist()] for a in vectors.tolist()]
    torch.testing.assert_close(distances(vectors), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_copies_of_a_text_have_a_gradient():
    vectors = torch.ones(2, 3, requires_grad=True)
    unit = torch.nn.functional.normalize(vectors, dim=1)
    weighted_contrast(-euclidean(unit @ unit.T, 15.0), shared_labels(torch.ones(2, 1))).sum().backward()
    assert bool(vectors.grad.isfinite().all())

"""The contrastive losses against sums written out in loops, their gradients (Eq. 14-16) and their invariances."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from denn.core.contrast import (
    debiased_contrastive_loss,
    label_overlap,
    negative_weights,
    supervised_contrastive_loss,
    unsupervised_contrastive_loss,
    weighted_supervised_contrastive_loss,
)

# Each loss with: do labels weigh the negatives, are rows of the same label set positives.
VARIANTS = {
    debiased_contrastive_loss: (True, False),
    unsupervised_contrastive_loss: (False, False),
    supervised_contrastive_loss: (False, True),
    weighted_supervised_contrastive_loss: (True, True),
}
every_loss = pytest.mark.parametrize("loss_of", VARIANTS)


@st.composite
def batches(draw, smallest=1):
    """Draw the cosine matrix (2N,2N) of two views, labels (N,L) with empty rows among them, and a temperature."""
    size, width = draw(st.integers(smallest, 6)), draw(st.integers(1, 5))
    cells = draw(st.lists(st.booleans(), min_size=size * width, max_size=size * width))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    views = torch.nn.functional.normalize(torch.randn(2 * size, 4, generator=generator, dtype=torch.float64), dim=1)
    labels = torch.tensor(cells).view(size, width)
    return views @ views.T, labels, draw(st.sampled_from([0.02, 0.05, 0.5, 2.0]))


def overlap_of_sets(a, b):
    return len(a & b) / max(len(a), len(b)) if a or b else 1.0


def label_sets(labels):
    return [{column for column, value in enumerate(row) if value} for row in labels.tolist()]


def loss_in_loops(loss_of, similarity, labels, temperature):
    weighted, supervised = VARIANTS[loss_of]
    sets = label_sets(labels) * 2
    rows, s = len(sets), similarity.tolist()
    losses = []
    for i in range(rows):
        denominator = 0.0
        for j in range(rows):
            if j != i:
                weight = 1 + (1 - overlap_of_sets(sets[i], sets[j])) if weighted else 1.0
                denominator += weight * math.exp(s[i][j] / temperature)
        positives = [(i + rows // 2) % rows]
        if supervised:
            positives = [j for j in range(rows) if j != i and sets[j] == sets[i]]
        total = 0.0
        for p in positives:
            total += -math.log(math.exp(s[i][p] / temperature) / denominator)
        losses.append(total / len(positives))
    return torch.tensor(losses, dtype=torch.float64)


@given(batches(), batches())
def test_overlap_is_common_labels_over_the_larger_set(first, second):
    a, b = first[1], torch.nn.functional.pad(second[1], (0, 5))[:, : first[1].shape[1]]
    expected = [[overlap_of_sets(x, y) for y in label_sets(b)] for x in label_sets(a)]
    torch.testing.assert_close(label_overlap(a.double(), b.double()), torch.tensor(expected, dtype=torch.float64))


def test_overlap_of_empty_label_sets():
    none, some = torch.zeros(1, 3), torch.tensor([[0.0, 1.0, 1.0]])
    assert label_overlap(none, none).tolist() == [[1.0]]
    assert label_overlap(none, some).tolist() == [[0.0]]
    assert label_overlap(some, none).tolist() == [[0.0]]
    assert label_overlap(torch.zeros(2, 0), torch.zeros(1, 0)).tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16, torch.float32])
def test_overlap_takes_labels_of_any_kind(dtype):
    labels = torch.tensor([[1, 1, 0], [0, 1, 0]]).to(dtype)
    overlap = label_overlap(labels, labels)
    assert overlap.dtype == torch.float32
    assert overlap.tolist() == [[1.0, 0.5], [0.5, 1.0]]


def test_overlap_counts_exactly_under_autocast():
    a, b = torch.ones(1, 1001), torch.ones(1, 1001)
    b[0, 0] = 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        overlap = label_overlap(a, b)
    torch.testing.assert_close(overlap, torch.tensor([[1000 / 1001]]), rtol=0, atol=1e-7)


@given(batches())
def test_weights_are_symmetric_between_one_and_two_and_one_for_the_own_view(batch):
    overlap = label_overlap(batch[1], batch[1])
    weights = negative_weights(overlap)
    assert torch.equal(weights, 2 - overlap)
    assert torch.equal(weights, weights.T)
    assert weights.min() >= 1
    assert weights.max() <= 2
    assert (weights.diagonal() == 1).all()


@every_loss
@given(batches())
def test_loss_equals_the_sum_written_out(loss_of, batch):
    similarity, labels, temperature = batch
    loss = loss_of(similarity, labels, temperature)
    assert loss.dtype == torch.float64
    torch.testing.assert_close(loss, loss_in_loops(loss_of, similarity, labels, temperature), rtol=1e-10, atol=1e-10)
    single = loss_of(similarity.float(), labels.long(), temperature)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), loss, rtol=1e-4, atol=1e-4)


@every_loss
@given(batches())
def test_loss_is_never_negative(loss_of, batch):
    similarity, labels, temperature = batch
    assert loss_of(similarity, labels, temperature).min() >= 0
    assert loss_of(similarity.float(), labels, temperature).min() >= 0


@every_loss
def test_gradients_are_those_of_finite_differences(loss_of):
    labels = torch.tensor([[True, False], [True, False], [True, True], [False, False]])
    leaf = torch.linspace(-1, 1, 64, dtype=torch.float64).sin().view(8, 8).requires_grad_()
    assert torch.autograd.gradcheck(lambda similarity: loss_of(similarity, labels, 0.5), leaf)


@given(batches())
def test_gradients_of_each_anchor_follow_equations_14_to_16(batch):
    similarity, labels, temperature = batch
    rows = len(similarity)
    leaf = similarity.clone().requires_grad_()
    losses = debiased_contrastive_loss(leaf, labels, temperature)
    weights = negative_weights(label_overlap(labels.double(), labels.double())).repeat(2, 2)
    for i in range(rows):
        (gradient,) = torch.autograd.grad(losses[i], leaf, retain_graph=True)
        others = [j for j in range(rows) if j != i]
        terms = {j: float(weights[i, j]) * math.exp(float(similarity[i, j]) / temperature) for j in others}
        share = {j: term / sum(terms.values()) for j, term in terms.items()}  # P_ij, Eq. 16
        positive = (i + rows // 2) % rows
        expected = torch.zeros(rows, rows, dtype=torch.float64)
        for j in others:
            expected[i, j] = share[j] / temperature  # Eq. 15
        expected[i, positive] = -sum(share[j] for j in others if j != positive) / temperature  # Eq. 14
        torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-8)
        assert abs(float(gradient.sum())) < 1e-8


@given(batches(), st.booleans())
def test_equal_label_sets_give_nt_xent(batch, value):
    similarity, labels, temperature = batch
    rows = len(similarity)
    others = ~torch.eye(rows, dtype=torch.bool)
    logits = similarity / temperature
    positives = torch.cat([logits.diagonal(rows // 2), logits.diagonal(-(rows // 2))])
    denominators = torch.stack([row[mask].logsumexp(0) for row, mask in zip(logits, others, strict=True)])
    loss = debiased_contrastive_loss(similarity, torch.full_like(labels, value), temperature)
    torch.testing.assert_close(loss, denominators - positives)


def with_an_own_label_each(labels):
    """Add to (N,L) labels a column for each document, so that no two label sets are equal."""
    return torch.cat([labels, torch.eye(len(labels), dtype=torch.bool)], dim=1)


@given(batches(), st.booleans())
def test_what_the_losses_have_in_common(batch, value):
    similarity, labels, temperature = batch
    plain = unsupervised_contrastive_loss(similarity, labels, temperature)
    alike = torch.full_like(labels, value)
    torch.testing.assert_close(debiased_contrastive_loss(similarity, alike, temperature), plain)
    torch.testing.assert_close(
        weighted_supervised_contrastive_loss(similarity, alike, temperature),
        supervised_contrastive_loss(similarity, alike, temperature),
    )
    apart = with_an_own_label_each(labels)
    torch.testing.assert_close(supervised_contrastive_loss(similarity, apart, temperature), plain)
    torch.testing.assert_close(
        weighted_supervised_contrastive_loss(similarity, apart, temperature),
        debiased_contrastive_loss(similarity, apart, temperature),
    )


@given(batches(), batches())
def test_the_unsupervised_loss_reads_no_labels(batch, other):
    similarity, labels, temperature = batch
    others = torch.zeros_like(labels)
    others[: len(other[1]), : other[1].shape[1]] = other[1][: len(labels), : labels.shape[1]]
    loss = unsupervised_contrastive_loss(similarity, labels, temperature)
    assert torch.equal(unsupervised_contrastive_loss(similarity, others, temperature), loss)


def test_documents_without_labels_are_each_others_positives():
    similarity = torch.eye(6, dtype=torch.float64)
    similarity[0, 1] = 1.0
    labels = torch.tensor([[False, False], [False, False], [True, False]])
    # Row 0: positives 1, 3, 4; its denominator holds e (row 1) and 1 four times.
    denominator = math.e + 4
    expected = (3 * math.log(denominator) - 1) / 3
    assert float(supervised_contrastive_loss(similarity, labels, 1.0)[0]) == pytest.approx(expected)
    # With weights, rows 2 and 5 share nothing with row 0 and count twice.
    weighted = (3 * math.log(math.e + 2 + 2 * 2) - 1) / 3
    assert float(weighted_supervised_contrastive_loss(similarity, labels, 1.0)[0]) == pytest.approx(weighted)


def test_a_shared_label_does_not_make_label_sets_the_same():
    similarity = torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4)
    labels = torch.tensor([[True, True], [True, False]])
    loss = supervised_contrastive_loss(similarity, labels, 0.5)
    torch.testing.assert_close(loss, unsupervised_contrastive_loss(similarity, labels, 0.5))


@every_loss
@given(batches(), st.randoms(use_true_random=False))
def test_loss_follows_a_permutation_of_documents_and_ignores_one_of_labels(loss_of, batch, random):
    similarity, labels, temperature = batch
    documents, columns = list(range(len(labels))), list(range(labels.shape[1]))
    random.shuffle(documents)
    random.shuffle(columns)
    rows = torch.tensor(documents + [len(labels) + document for document in documents])
    loss = loss_of(similarity, labels, temperature)
    moved = loss_of(similarity[rows][:, rows], labels[documents][:, columns], temperature)
    torch.testing.assert_close(moved, loss[rows])


@given(batches(), st.floats(0.1, 10), st.floats(-1, 1))
def test_loss_keeps_when_similarity_and_temperature_scale_or_similarity_shifts(batch, factor, shift):
    similarity, labels, temperature = batch
    loss = debiased_contrastive_loss(similarity, labels, temperature)
    scaled = debiased_contrastive_loss(similarity * factor, labels, temperature * factor)
    torch.testing.assert_close(scaled, loss, rtol=1e-8, atol=1e-8)
    shifted = debiased_contrastive_loss(similarity + shift, labels, temperature)
    torch.testing.assert_close(shifted, loss, rtol=1e-8, atol=1e-8)


@every_loss
@given(batches(smallest=2))
def test_the_similarity_of_a_row_with_itself_does_not_count(loss_of, batch):
    similarity, labels, temperature = batch
    loss = loss_of(similarity, labels, temperature)
    assert torch.equal(loss_of(similarity.fill_diagonal_(math.nan), labels, temperature), loss)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_similarity_is_promoted(loss_of, dtype):
    similarity = torch.linspace(-1, 1, 36).view(6, 6).to(dtype)
    labels = torch.tensor([[True, False], [True, True], [False, False]])
    loss = loss_of(similarity, labels, 0.05)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, loss_of(similarity.float(), labels, 0.05))


@every_loss
def test_autocast_changes_nothing(loss_of):
    similarity = torch.linspace(-1, 1, 64).view(8, 8)
    labels = torch.ones(4, 900)
    labels[1, 0], labels[2, :3] = 0, 0
    outside = loss_of(similarity, labels, 0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss_of(similarity, labels, 0.05)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, outside)


@every_loss
def test_one_document_has_nothing_to_be_pushed_from(loss_of):
    similarity = torch.tensor([[1.0, 0.3], [0.3, 1.0]], requires_grad=True)
    loss = loss_of(similarity, torch.zeros(1, 4), 0.05)
    loss.sum().backward()
    assert loss.tolist() == [0.0, 0.0]
    assert torch.equal(similarity.grad, torch.zeros(2, 2))


def test_loss_and_gradient_stay_finite_where_exponentials_would_overflow():
    similarity = torch.full((4, 4), 1.0)
    similarity[0, 2] = -1.0
    similarity.requires_grad_()
    loss = debiased_contrastive_loss(similarity, torch.zeros(2, 3), 0.001)
    loss.sum().backward()
    assert float(loss.detach()[0]) == pytest.approx(2000 + math.log(2))
    assert similarity.grad.isfinite().all()

"""Threshold tuning against a brute force over the grid, and the decision rule."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from denn.core.thresholds import GRID, counts_at, decide, tune_global, tune_new_label, tune_per_label


@st.composite
def validation(draw, smallest=1):
    """Draw scores (n,L), many of them exactly a threshold of the grid, and gold labels (n,L)."""
    n, width = draw(st.integers(smallest, 8)), draw(st.integers(smallest, 4))
    score = st.one_of(st.sampled_from(GRID), st.sampled_from([0.0, 1.0]), st.floats(0, 1, width=32))
    cells = n * width
    scores = torch.tensor(draw(st.lists(score, min_size=cells, max_size=cells)), dtype=torch.float32).view(n, width)
    gold = torch.tensor(draw(st.lists(st.booleans(), min_size=cells, max_size=cells)), dtype=torch.bool)
    return scores, gold.view(n, width)


def best_of_grid(scores, gold, grid):
    """Try every threshold in turn; of equal F1 the one nearest 0.5, then the lower."""

    def merit(threshold):
        predicted = scores > threshold
        hits, size = int((predicted & gold).sum()), int(predicted.sum() + gold.sum())
        return Fraction(2 * hits, max(size, 1)), -round(abs(threshold - 0.5), 9), -threshold

    return max(grid, key=merit)


def test_grid_runs_from_five_to_ninety_five_hundredths():
    assert GRID == tuple(round(0.05 + 0.01 * step, 2) for step in range(91))


@settings(max_examples=15)
@given(validation())
def test_global_threshold_is_the_best_of_the_grid(data):
    assert tune_global(*data) == best_of_grid(*data, GRID)


def test_no_threshold_of_the_grid_has_a_better_micro_f1():
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(200, 5, generator=generator)
    gold = torch.rand(200, 5, generator=generator) < scores**2
    f1 = {t: f1_score(gold.numpy(), decide(scores, t).numpy(), average="micro") for t in GRID}
    assert f1[tune_global(scores, gold)] == max(f1.values())


@given(validation(), st.lists(st.floats(0, 1, width=32), min_size=1, max_size=6))
def test_global_threshold_is_the_best_of_any_grid(data, grid):
    assert tune_global(*data, grid) == best_of_grid(*data, grid)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tuning_and_deciding_agree_on_scores_that_equal_a_threshold(dtype):
    scores = torch.tensor(GRID, dtype=dtype)[:, None]
    for position, threshold in enumerate(GRID[:-1]):
        gold = torch.arange(len(GRID))[:, None] > position
        assert tune_global(scores, gold) == threshold
        assert torch.equal(decide(scores, threshold), gold)
        assert tune_new_label(scores[:, 0], gold[:, 0], 0.5, shrinkage=0) == threshold


def test_equal_thresholds_give_the_one_nearest_a_half_then_the_lower():
    gold = torch.tensor([[True], [False]])
    assert tune_global(torch.tensor([[0.9], [0.1]]), gold) == 0.5
    assert tune_global(torch.tensor([[0.9], [0.7]]), gold) == 0.7
    assert tune_global(torch.tensor([[0.3], [0.1]]), gold) == 0.29
    assert tune_global(torch.tensor([[0.9], [0.1]]), gold, (0.6, 0.2, 0.4)) == 0.4


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 2)])
def test_without_positives_the_global_threshold_is_a_half(shape):
    assert tune_global(torch.full(shape, 0.8), torch.zeros(shape, dtype=torch.bool)) == 0.5


@settings(max_examples=15)
@given(validation(), st.sampled_from([0.2, 0.5]), st.sampled_from([0.0, 1.0, 10.0]))
def test_a_new_labels_threshold_is_the_best_of_the_grid_drawn_to_the_fallback(data, fallback, shrinkage):
    scores, gold = data
    for label in range(gold.shape[1]):
        own = best_of_grid(scores[:, [label]], gold[:, [label]], GRID)
        positives = int(gold[:, label].sum())
        expected = (positives * own + shrinkage * fallback) / (positives + shrinkage) if positives else fallback
        found = tune_new_label(scores[:, label], gold[:, label], fallback, shrinkage)
        assert found == pytest.approx(expected)


def test_as_many_positives_as_the_shrinkage_weigh_half():
    scores = torch.cat([torch.full((10,), 0.9), torch.full((10,), 0.8)])
    assert tune_new_label(scores, torch.arange(20) < 10, 0.4) == pytest.approx((0.8 + 0.4) / 2)


@settings(max_examples=15)
@given(validation(), st.sampled_from([0.2, 0.5]), st.sampled_from([0.0, 0.5, 1.0]))
def test_a_labels_threshold_is_half_of_its_best_expected_f1(data, overall, share):
    scores, gold = data
    expected, given = [], int(gold.sum())
    for label in scores.T.tolist():
        f1 = [2 * sum(p for p in label if p > t) / max(sum(p > t for p in label) + sum(label), 1) for t in GRID]
        expected.append((1 - share) * overall + share * max(max(f1) / 2, GRID[0]))
    if not given or not given / 2 <= float(scores.sum()) <= 2 * given:
        expected = [overall] * len(expected)  # the scores are not probabilities
    thresholds = tune_per_label(scores, gold, overall, share)
    assert thresholds.dtype == scores.dtype
    assert thresholds.tolist() == pytest.approx(expected, abs=1e-5)


def test_label_thresholds_have_the_best_macro_f1_of_calibrated_scores():
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(4000, 6, generator=generator) ** 3 * torch.tensor([1, 0.9, 0.7, 0.5, 0.3, 0.2])
    gold = torch.rand(4000, 6, generator=generator) < scores
    overall = tune_global(scores, gold)

    def macro_f1(threshold):
        return f1_score(gold.numpy(), decide(scores, threshold).numpy(), average="macro")

    best = macro_f1(tune_per_label(scores, gold, overall, 1.0))
    assert best > macro_f1(tune_per_label(scores, gold, overall)) > macro_f1(overall)
    each = [max(f1_score(gold[:, i], scores[:, i] > t) for t in GRID) for i in range(6)]
    assert best == pytest.approx(sum(each) / 6, abs=0.01)


def test_scores_that_are_not_probabilities_have_no_threshold_per_label():
    gold = torch.arange(40).view(20, 2) % 8 == 0
    for scores in (torch.full((20, 2), 0.3), torch.full((20, 2), 0.05)):  # 12 and 2 expected labels instead of 5
        assert tune_per_label(scores, gold, 0.4).tolist() == pytest.approx([0.4, 0.4])
    assert (tune_per_label(torch.full((20, 2), 0.12), gold, 0.4) < 0.3).all()


def test_counts_with_probabilities_are_expected_counts():
    scores, grid = torch.tensor([[0.25, 0.9], [0.75, 0.1]]), (0.2, 0.5)
    hits, predicted = counts_at(scores, scores, grid)
    assert hits.allclose(torch.tensor([[1.0, 0.75], [0.9, 0.9]], dtype=torch.float64))
    assert predicted.tolist() == [[2, 1], [1, 1]]


@given(validation(), st.randoms(use_true_random=False))
def test_thresholds_ignore_the_order_of_documents_and_follow_that_of_labels(data, random):
    documents, labels = (random.sample(range(size), size) for size in data[0].shape)
    moved = [matrix[documents][:, labels] for matrix in data]
    assert tune_global(*moved) == tune_global(*data)
    assert tune_per_label(*moved, 0.3).allclose(tune_per_label(*data, 0.3)[labels])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_no_documents_or_no_labels_fall_back(shape):
    thresholds = tune_per_label(torch.zeros(shape), torch.zeros(shape, dtype=torch.bool), 0.25)
    assert thresholds.tolist() == [0.25] * shape[1]
    assert decide(torch.zeros(shape), thresholds, min_labels=2).tolist() == [[]] * shape[0]


def test_a_score_equal_to_the_threshold_is_not_enough():
    scores = torch.tensor([[0.4, 0.41, 0.3]])
    assert decide(scores, 0.4).tolist() == [[False, True, False]]
    assert decide(scores, torch.tensor([0.3, 0.41, 0.3])).tolist() == [[True, False, False]]


def test_labels_are_added_by_what_they_lack_to_their_threshold_then_by_column():
    scores = torch.tensor([[0.5, 0.25, 0.25], [0.9, 0.9, 0.0]])
    assert decide(scores, 0.75, min_labels=2).tolist() == [[True, True, False], [True, True, False]]
    assert decide(scores, torch.tensor([0.95, 0.95, 0.3]), min_labels=1).tolist() == [
        [False, False, True],
        [True, False, False],
    ]


@given(validation(smallest=0), st.data())
def test_decisions_equal_the_rule_written_out(data, draws):
    scores, _ = data
    n, width = scores.shape
    thresholds = draws.draw(st.lists(st.sampled_from([0.25, 0.5, 0.75]), min_size=width, max_size=width))
    min_labels = draws.draw(st.integers(0, 6))
    expected = torch.zeros(n, width, dtype=torch.bool)
    for row in range(n):
        margins = [float(scores[row, column] - thresholds[column]) for column in range(width)]
        above = [column for column in range(width) if margins[column] > 0]
        if len(above) < min_labels:
            above = sorted(range(width), key=lambda column: -margins[column])[:min_labels]
        expected[row, above] = True
    before = scores.clone()
    assert torch.equal(decide(scores, torch.tensor(thresholds), min_labels), expected)
    assert torch.equal(scores, before)


def test_small_scores_are_told_apart_far_below_the_threshold():
    assert decide(torch.tensor([[1e-9, 3e-9, 2e-9]]), 1.0, min_labels=1).tolist() == [[False, True, False]]

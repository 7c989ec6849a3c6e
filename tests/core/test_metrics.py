"""Metrics against scikit-learn, counting written out in loops, and the conventions where they differ."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from denn.core.metrics import (
    Band,
    all_scores,
    example_f1,
    frequency_bands,
    hamming_loss,
    label_table,
    macro_over_supported,
    micro_f1_error,
    most_frequent_f1,
    multilabel_scores,
    ndcg_at_k,
    precision_at_k,
    recall_at_k,
    subset_accuracy,
)

SIX = [f"{average}_{name}" for average in ("micro", "macro") for name in ("precision", "recall", "f1")]


@st.composite
def decisions(draw):
    """Draw predicted and gold, both bool (n,L), with empty, full and unused columns and rows among them."""
    n, width = draw(st.integers(1, 8)), draw(st.integers(2, 6))
    kinds = st.sampled_from([st.booleans(), st.just(False), st.just(True)])
    columns = [[draw(st.lists(draw(kinds), min_size=n, max_size=n)) for _ in range(width)] for _ in range(2)]
    return tuple(torch.tensor(matrix).T.contiguous() for matrix in columns)


@st.composite
def rankings(draw):
    """Draw scores (n,L) without ties in a row, with gold labels (n,L) and k."""
    _, gold = draw(decisions())
    n, width = gold.shape
    rows = [draw(st.permutations(range(width))) for _ in range(n)]
    return torch.tensor(rows) / width, gold, draw(st.integers(1, width))


def oracle(predicted, gold, average):
    triple = sklearn_metrics.precision_recall_fscore_support(
        gold.numpy(), predicted.numpy(), average=average, zero_division=0
    )
    return triple[:3]


@given(decisions())
def test_six_scores_are_those_of_scikit_learn(pair):
    scores = multilabel_scores(*pair)
    assert list(scores) == SIX
    assert list(scores.values()) == pytest.approx([*oracle(*pair, "micro"), *oracle(*pair, "macro")], abs=1e-12)


@given(decisions())
def test_label_table_is_that_of_scikit_learn(pair):
    predicted, gold = pair
    table = label_table(predicted, gold)
    for ours, theirs in zip((table.precision, table.recall, table.f1), oracle(predicted, gold, None), strict=True):
        assert ours.dtype == torch.float64
        assert ours.tolist() == pytest.approx(theirs.tolist(), abs=1e-12)
    for label in range(gold.shape[1]):
        cells = list(zip(predicted[:, label].tolist(), gold[:, label].tolist(), strict=True))
        assert int(table.true_positives[label]) == sum(p and g for p, g in cells)
        assert int(table.predicted[label]) == sum(p for p, _ in cells)
        assert int(table.support[label]) == sum(g for _, g in cells)


@given(decisions())
def test_macro_over_supported_leaves_labels_without_gold_out(pair):
    predicted, gold = pair
    supported = gold.any(0)
    scores = macro_over_supported(predicted, gold)
    assert scores.pop("supported_labels") == int(supported.sum())
    assert list(scores) == ["supported_macro_precision", "supported_macro_recall", "supported_macro_f1"]
    per_label = oracle(predicted, gold, None)
    expected = [values[supported.numpy()].mean() if supported.any() else 0.0 for values in per_label]
    assert list(scores.values()) == pytest.approx(expected, abs=1e-12)


@given(decisions())
def test_example_based_scores_are_those_of_scikit_learn(pair):
    predicted, gold = pair
    p, g = predicted.numpy(), gold.numpy()
    assert hamming_loss(*pair) == pytest.approx(sklearn_metrics.hamming_loss(g, p))
    assert subset_accuracy(*pair) == pytest.approx(sklearn_metrics.accuracy_score(g, p))
    assert example_f1(*pair) == pytest.approx(sklearn_metrics.f1_score(g, p, average="samples", zero_division=1))


def test_example_f1_of_a_document_without_gold_labels():
    gold = torch.tensor([[False, False]])
    assert example_f1(gold, gold) == 1.0
    assert example_f1(~gold, gold) == 0.0


@given(decisions(), st.randoms(use_true_random=False))
def test_scores_ignore_the_order_of_documents_and_labels(pair, random):
    documents, labels = (random.sample(range(size), size) for size in pair[0].shape)
    moved = [matrix[documents][:, labels] for matrix in pair]
    assert all_scores(*moved) == pytest.approx(all_scores(*pair))


@given(decisions())
def test_scores_are_shares(pair):
    scores = all_scores(*pair, pair[0].float())
    counts = {"supported_labels": pair[0].shape[1], "labels_per_text": pair[0].shape[1]}
    assert all(0 <= value <= counts.get(name, 1) for name, value in scores.items())


@given(decisions())
def test_swapping_prediction_and_gold_swaps_precision_and_recall(pair):
    forth, back = multilabel_scores(*pair), multilabel_scores(*reversed(pair))
    for average in ("micro", "macro"):
        assert forth[f"{average}_precision"] == back[f"{average}_recall"]
        assert forth[f"{average}_f1"] == back[f"{average}_f1"]


@pytest.mark.slow
def test_counts_beyond_float32_are_exact():
    n = 2**24 + 3  # float32 has no such number
    gold = torch.ones(n, 1, dtype=torch.bool)
    predicted = gold.clone()
    predicted[0] = False
    scores = all_scores(predicted, gold)  # counts once for all of them
    assert scores["micro_recall"] == scores["macro_recall"] == scores["subset_accuracy"] == (n - 1) / n
    assert scores["hamming_loss"] == 1 / n


@given(rankings())
def test_ranking_scores_equal_the_sums_written_out(ranking):
    scores, gold, k = ranking
    precision, recall, ndcg = [], [], []
    for row, truth in zip(scores.tolist(), gold.tolist(), strict=True):
        best = sorted(range(len(row)), key=lambda column: -row[column])[:k]
        hits = [truth[column] for column in best]
        precision.append(sum(hits) / k)
        if any(truth):
            recall.append(sum(hits) / sum(truth))
            ideal = sum(1 / math.log2(rank + 2) for rank in range(min(k, sum(truth))))
            ndcg.append(sum(hit / math.log2(rank + 2) for rank, hit in enumerate(hits)) / ideal)
    assert precision_at_k(scores, gold, k) == pytest.approx(sum(precision) / len(precision))
    assert recall_at_k(scores, gold, k) == pytest.approx(sum(recall) / max(len(recall), 1))
    assert ndcg_at_k(scores, gold, k) == pytest.approx(sum(ndcg) / max(len(ndcg), 1))


@given(rankings())
def test_ndcg_is_that_of_scikit_learn_over_documents_with_gold_labels(ranking):
    scores, gold, k = ranking
    has_gold = gold.any(1)
    expected = 0.0
    if has_gold.any():
        expected = sklearn_metrics.ndcg_score(gold[has_gold].numpy(), scores[has_gold].numpy(), k=k)
    assert ndcg_at_k(scores, gold, k) == pytest.approx(expected)


def test_documents_without_gold_labels_count_in_precision_only():
    scores = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
    gold = torch.tensor([[True, False], [False, False]])
    assert precision_at_k(scores, gold, 1) == 0.5
    assert recall_at_k(scores, gold, 1) == 1.0
    assert ndcg_at_k(scores, gold, 1) == 1.0


def test_k_beyond_the_labels_is_cut_but_still_divides_precision():
    scores, gold = torch.tensor([[0.2, 0.9]]), torch.tensor([[True, True]])
    assert precision_at_k(scores, gold, 5) == pytest.approx(2 / 5)
    assert recall_at_k(scores, gold, 5) == 1.0
    assert ndcg_at_k(scores, gold, 5) == 1.0


def test_ties_rank_by_column():
    scores = torch.zeros(40, 40)
    gold = torch.eye(40, dtype=torch.bool)
    for k in (1, 7, 40):
        assert recall_at_k(scores, gold, k) == k / 40


@given(decisions(), st.data())
def test_no_constant_answer_of_frequent_labels_is_better_than_the_best(pair, data):
    gold, width = pair[1], pair[1].shape[1]
    train_counts = torch.tensor(data.draw(st.lists(st.integers(0, 30), min_size=width, max_size=width)))
    ranked = sorted(range(width), key=lambda column: (-int(train_counts[column]), column))
    expected = []
    for k in range(width + 1):
        predicted = torch.zeros_like(gold)
        predicted[:, ranked[:k]] = True
        expected.append(multilabel_scores(predicted, gold)["micro_f1"])
    best = max(expected)
    assert most_frequent_f1(train_counts, gold) == (expected.index(best), best)


def test_the_best_constant_answer_written_out():
    gold = torch.tensor([[1, 0, 1], [1, 0, 0], [1, 0, 1], [0, 1, 0]], dtype=torch.bool)
    assert most_frequent_f1(torch.tensor([9, 1, 5]), gold) == (2, 2 * 5 / (8 + 6))
    assert most_frequent_f1(torch.tensor([1, 9, 5]), gold) == (3, 2 * 6 / (12 + 6))


def test_bands_group_labels_by_training_frequency():
    train_counts = torch.tensor([0, 1, 9, 10, 49, 50, 499, 500, 7000])
    gold = torch.eye(9, dtype=torch.bool)
    gold[4, 4] = False  # label 4 loses its only gold document
    predicted = torch.eye(9, dtype=torch.bool)
    predicted[2, 2] = False  # label 2 is missed
    assert frequency_bands(train_counts, predicted, gold, (1, 10, 50, 500)) == [
        Band("0", labels=1, supported=1, micro_f1=1.0, macro_f1=1.0),
        Band("1-9", labels=2, supported=2, micro_f1=2 / 3, macro_f1=0.5),
        Band("10-49", labels=2, supported=1, micro_f1=2 / 3, macro_f1=1.0),
        Band("50-499", labels=2, supported=2, micro_f1=1.0, macro_f1=1.0),
        Band(">=500", labels=2, supported=2, micro_f1=1.0, macro_f1=1.0),
    ]


@given(decisions(), st.data())
def test_bands_partition_the_labels(pair, data):
    width = pair[0].shape[1]
    train_counts = torch.tensor(data.draw(st.lists(st.integers(0, 30), min_size=width, max_size=width)))
    edges = sorted(data.draw(st.sets(st.integers(1, 25), max_size=4)))
    bands = frequency_bands(train_counts, *pair, edges)
    assert len(bands) == len(edges) + 1
    assert sum(band.labels for band in bands) == width
    supported = macro_over_supported(*pair)
    assert sum(band.supported for band in bands) == supported["supported_labels"]
    f1_sum = sum(band.macro_f1 * band.supported for band in bands)
    assert f1_sum == pytest.approx(supported["supported_macro_f1"] * supported["supported_labels"])
    everything = frequency_bands(train_counts, *pair, ())
    micro = multilabel_scores(*pair)["micro_f1"]
    assert [(band.name, band.labels, band.micro_f1) for band in everything] == [(">=0", width, micro)]


@given(rankings())
def test_all_scores_gathers_the_single_functions(ranking):
    scores, gold, k = ranking
    predicted = scores > 0.5
    named = all_scores(predicted, gold, scores, ks=(k, 1))
    expected = multilabel_scores(predicted, gold) | macro_over_supported(predicted, gold)
    expected |= {
        "example_f1": example_f1(predicted, gold),
        "hamming_loss": hamming_loss(predicted, gold),
        "subset_accuracy": subset_accuracy(predicted, gold),
        "empty_predictions": sum(not any(row) for row in predicted.tolist()) / len(gold),
        "labels_per_text": sum(sum(row) for row in predicted.tolist()) / len(gold),
    }
    assert all_scores(predicted, gold) == all_scores(predicted, gold, scores, ks=()) == pytest.approx(expected)
    for at in (k, 1):
        expected[f"p_at_{at}"] = precision_at_k(scores, gold, at)
        expected[f"r_at_{at}"] = recall_at_k(scores, gold, at)
        expected[f"ndcg_at_{at}"] = ndcg_at_k(scores, gold, at)
    assert named == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_score_gives_zeros(shape):
    nothing = torch.zeros(shape, dtype=torch.bool)
    scores = all_scores(nothing, nothing, torch.zeros(shape))
    assert len(scores) == 24
    assert set(scores.values()) == {0.0}
    assert most_frequent_f1(torch.zeros(shape[1]), nothing) == (0, 0.0)
    bands = frequency_bands(torch.zeros(shape[1]), nothing, nothing, (1,))
    assert [(band.micro_f1, band.macro_f1) for band in bands] == [(0.0, 0.0)] * 2


def test_the_error_of_micro_f1_is_how_much_it_varies_from_sample_to_sample():
    chance = torch.Generator().manual_seed(0)
    gold = torch.rand(400, 6, generator=chance) < 0.3
    predicted = gold ^ (torch.rand(400, 6, generator=chance) < 0.15)
    drawn = []
    for _ in range(400):
        rows = torch.randint(400, (400,), generator=chance)
        drawn.append(multilabel_scores(predicted[rows], gold[rows])["micro_f1"])
    assert micro_f1_error(predicted, gold) == pytest.approx(torch.tensor(drawn).std().item(), rel=0.1)


def test_the_error_of_micro_f1_without_labels_is_none():
    nothing = torch.zeros(3, 2, dtype=torch.bool)
    assert micro_f1_error(nothing, nothing) == 0.0
    assert micro_f1_error(~nothing, ~nothing) == 0.0

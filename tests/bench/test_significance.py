"""Bootstrap and t-test against sums written out in loops, closed forms and simulated chance."""

import math
import random

import pytest
import torch

from denn.core.metrics import multilabel_scores
from denn.errors import DataError
from denn_bench.result import Result
from denn_bench.significance import compare, paired_bootstrap, paired_t, pooled_bootstrap

pytestmark = pytest.mark.slow  # thousands of draws


def noisy(gold, keep, add, seed):
    chance = torch.Generator().manual_seed(seed)
    return (gold & (torch.rand(gold.shape, generator=chance) < keep)) | (torch.rand(gold.shape, generator=chance) < add)


@pytest.fixture(scope="module")
def gold():
    return torch.rand(120, 7, generator=torch.Generator().manual_seed(5)) < 0.25


def weighted_f1(predicted, gold, weights, metric):
    """Return the F1 of documents that count so much each, label by label, in loops over lists."""
    labels = []
    for column in range(len(gold[0])):
        hits, sizes = 0.0, 0.0
        for row, weight in enumerate(weights):
            p, g = predicted[row][column], gold[row][column]
            hits, sizes = hits + weight * (p and g), sizes + weight * (p + g)
        labels.append((hits, sizes))
    if metric == "micro_f1":
        return 2 * sum(hits for hits, _ in labels) / sum(sizes for _, sizes in labels)
    return sum(2 * hits / sizes if sizes else 0.0 for hits, sizes in labels) / len(labels)


@pytest.mark.parametrize("metric", ["micro_f1", "macro_f1"])
def test_bootstrap_is_that_of_a_loop_over_weighted_documents(gold, metric):
    a, b = noisy(gold, 0.9, 0.05, 1), noisy(gold, 0.75, 0.05, 2)
    found = paired_bootstrap(a, b, gold, metric, draws=4000)
    seen = multilabel_scores(a, gold)[metric] - multilabel_scores(b, gold)[metric]
    assert found.difference == pytest.approx(seen, abs=1e-6)

    chance, drawn = random.Random(3), []
    one, other, truth = a.tolist(), b.tolist(), gold.tolist()
    for _ in range(600):
        weights = [chance.expovariate(1.0) for _ in truth]
        drawn.append(weighted_f1(one, truth, weights, metric) - weighted_f1(other, truth, weights, metric))
    drawn.sort()
    spread = drawn[-1] - drawn[0]
    assert found.low == pytest.approx(drawn[15], abs=0.06 * spread)
    assert found.high == pytest.approx(drawn[584], abs=0.06 * spread)
    assert found.low < found.difference < found.high


def test_labels_of_one_document_do_not_pull_the_interval_away():
    """Every label occurs once, which drawing with replacement would often leave out."""
    truth = torch.eye(60, dtype=torch.bool)
    right, half = truth, truth & (torch.arange(60) % 2 == 0)
    found = paired_bootstrap(right, half, truth, "macro_f1", draws=300)
    assert (found.low, found.difference, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_chunks_of_draws_do_not_change_the_score_of_a_draw(gold, monkeypatch):
    """With one document every draw is that document, whatever the chunks."""
    monkeypatch.setattr("denn_bench.significance.CHUNK", 3)
    a, b = torch.tensor([[True, False, True]]), torch.tensor([[True, True, False]])
    truth = torch.tensor([[True, False, True]])
    for metric, expected in (("micro_f1", 1 - 2 / 4), ("macro_f1", (2 - 1) / 3)):
        found = paired_bootstrap(a, b, truth, metric, draws=10)
        assert (found.difference, found.low, found.high) == pytest.approx((expected,) * 3)
        assert found.p == pytest.approx(2 / 11)  # no draw of ten on the other side


def test_equal_systems_differ_by_nothing(gold):
    same = noisy(gold, 0.8, 0.05, 1)
    for metric in ("micro_f1", "macro_f1"):
        found = paired_bootstrap(same, same, gold, metric, draws=50)
        assert (found.difference, found.low, found.high, found.p) == (0, 0, 0, 1)


def test_exchange_of_the_systems_turns_everything_round(gold):
    a, b = noisy(gold, 0.9, 0.02, 1), noisy(gold, 0.8, 0.02, 2)
    one, other = (paired_bootstrap(*pair, gold, "macro_f1", draws=300) for pair in ((a, b), (b, a)))
    assert (one.difference, one.low, one.high, one.p) == pytest.approx(
        (-other.difference, -other.high, -other.low, other.p)
    )


def test_labels_that_nobody_has_count_as_zero_in_macro():
    gold = torch.tensor([[True, False], [True, False]])
    right, none = gold, torch.zeros_like(gold)
    assert paired_bootstrap(right, none, gold, "macro_f1", draws=20).low == pytest.approx(0.5)


def test_p_is_about_uniform_when_there_is_no_difference():
    """Two systems equally good: p falls below 0.1 in about a tenth of the experiments, and below 0.5 in about half."""
    ps = []
    for experiment in range(200):
        truth = torch.rand(150, 3, generator=torch.Generator().manual_seed(experiment)) < 0.4
        a, b = (noisy(truth, 0.8, 0.1, 1000 * side + experiment) for side in (1, 2))
        ps.append(paired_bootstrap(a, b, truth, "micro_f1", draws=200, seed=experiment).p)
    assert 0.04 <= sum(p < 0.1 for p in ps) / 200 <= 0.18
    assert 0.38 <= sum(p < 0.5 for p in ps) / 200 <= 0.62


def test_pooled_seeds_have_the_mean_difference_and_a_narrower_interval(gold):
    pairs = [(noisy(gold, 0.85, 0.05, seed), noisy(gold, 0.8, 0.05, 50 + seed), gold) for seed in range(4)]
    single = [paired_bootstrap(*pair, "micro_f1", draws=500) for pair in pairs]
    pooled = pooled_bootstrap(pairs, "micro_f1", draws=500)
    assert pooled.difference == pytest.approx(sum(one.difference for one in single) / 4)
    assert pooled.high - pooled.low < min(one.high - one.low for one in single)


def test_different_test_parts_are_refused(gold):
    with pytest.raises(DataError, match="expected the same test split"):
        paired_bootstrap(gold, gold[:-1], gold[:-1], "micro_f1")
    with pytest.raises(DataError, match="empty test split"):
        paired_bootstrap(*[torch.zeros(0, 3, dtype=torch.bool)] * 3, "micro_f1")


def test_the_interval_of_macro_is_not_biased():
    """Labels of one document each: under random weights their expected F1 is lower than on the documents."""
    generator = torch.Generator().manual_seed(0)
    gold = torch.zeros(300, 400, dtype=torch.bool)
    gold[torch.arange(400) % 300, torch.arange(400)] = True
    a = gold & (torch.rand(300, 400, generator=generator) < 0.5)
    a |= torch.rand(300, 400, generator=generator) < 0.003
    found = paired_bootstrap(a, torch.zeros_like(gold), gold, "macro_f1", draws=400)
    assert found.low < found.difference < found.high
    assert (found.low + found.high) / 2 == pytest.approx(found.difference, abs=0.1 * (found.high - found.low))


def test_other_gold_labels_are_refused(gold):
    with pytest.raises(DataError, match="different gold labels"):
        pooled_bootstrap([(gold, gold, gold), (gold, gold, gold.flip(0))], "micro_f1")


def test_t_test_of_two_pairs_has_its_closed_form():
    """With one degree of freedom p = 1 − 2·atan(t)/π; differences 1 and 3 have mean 2, error 1."""
    found = paired_t([2.0, 7.0], [1.0, 4.0])
    assert (found.difference, found.t) == pytest.approx((2.0, 2.0))
    assert found.p == pytest.approx(1 - 2 * math.atan(2.0) / math.pi)


def test_t_test_agrees_with_scipy():
    from scipy import stats

    a, b = [0.71, 0.74, 0.73, 0.76], [0.70, 0.75, 0.70, 0.72]
    oracle = stats.ttest_rel(a, b)
    assert paired_t(a, b) == pytest.approx((0.0175, oracle.statistic, oracle.pvalue))


def test_t_test_without_variance_or_without_pairs():
    assert paired_t([0.5, 0.6], [0.5, 0.6]) == (0, 0, 1)
    assert paired_t([0.5, 0.75], [0.25, 0.5]) == (0.25, math.inf, 0)
    with pytest.raises(DataError, match="at least 2 pairs"):
        paired_t([0.5], [0.4])


def run(recipe, seed, gold, predicted):
    def columns(matrix):
        return [row.nonzero().flatten().tolist() for row in matrix]

    scores = multilabel_scores(predicted, gold)
    data = {
        "test": {
            "systems": {"final": {"tuned": scores}},
            "per_label": {"label": [str(column) for column in range(gold.shape[1])]},
        },
        "decisions": {"gold": columns(gold), "final": columns(predicted)},
    }
    return Result(f"toy-{recipe}-{seed}", "toy", recipe, seed, data)


def test_compare_gives_each_common_seed_all_of_them_and_the_t_test(gold):
    better = [run("denn", seed, gold, noisy(gold, 0.95, 0.01, seed)) for seed in (0, 1, 2)]
    worse = [run("bert", seed, gold, noisy(gold, 0.5, 0.1, 9 + seed)) for seed in (1, 2, 3)]
    text = compare(better, worse, "final", "final", draws=400)
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert list(rows) == ["seed", "---", "1", "2", "all", "t-test"]
    first = better[1].metric("final", "tuned", "micro_f1") - worse[0].metric("final", "tuned", "micro_f1")
    assert rows["1"].split("|")[2].strip().startswith(f"{100 * first:+.2f} [+")
    assert "0.005" in rows["all"]  # 2 / 401: no draw crosses 0
    assert "denn (final) minus bert (final) on toy" in text
    assert text.endswith("Not compared, because the other system has no run with the same seed: denn 0, bert 3.")
    assert "Ignored" not in compare(better, better, "final", "final", draws=50)


def test_compare_of_one_seed_has_no_t_test_and_none_is_refused(gold):
    a, b = run("denn", 0, gold, gold), run("bert", 0, gold, noisy(gold, 0.5, 0.1, 1))
    assert "t-test" not in compare([a], [b], "final", "final", draws=50)
    assert "| all |" not in compare([a], [b], "final", "final", draws=50)
    with pytest.raises(DataError, match="no common seed"):
        compare([a], [run("bert", 1, gold, gold)], "final", "final")

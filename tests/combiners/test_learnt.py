"""The learnt combiner: what it chooses and why, how honest its held-out scores are, and its file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from made_witnesses import made

from denn.combiners import mean_known
from denn.combiners.learnt import FEWEST_DOCUMENTS, FILE, Learnt, choose
from denn.core.metrics import multilabel_scores, precision_at_k
from denn.core.thresholds import GRID, decide, tune_global, tune_per_label
from denn.errors import BundleError, ConfigError
from denn.prediction_types import Context


def test_it_learns_where_the_mean_is_misled():
    parts, gold, context = made(400, witnesses=("classifier", "neighbours", "words"))
    parts["words"] = torch.rand(gold.shape, generator=torch.Generator().manual_seed(5))  # noise alone
    combiner = Learnt()
    facts = combiner.fit(parts, gold, context)
    assert facts["chosen"] == combiner.chosen == "learnt"
    assert facts["scores"]["learnt"] > facts["scores"]["average"] + 0.02
    assert facts["log_loss"]["learnt"] < facts["log_loss"]["average"]
    assert facts["calibration_error"]["learnt"] < facts["calibration_error"]["average"]
    json.dumps(facts, allow_nan=False)


def test_held_out_scores_come_from_models_that_never_saw_the_document():
    parts, gold, context = made(300)
    combiner = Learnt()
    combiner.fit(parts, gold, context)
    assert combiner.chosen == "learnt"
    one_changed = gold.clone()
    one_changed[7] = ~one_changed[7]
    other = Learnt()
    other.fit(parts, one_changed, context)
    torch.testing.assert_close(other.held_out[7], combiner.held_out[7])  # its own labels change nothing
    assert not torch.equal(other.held_out, combiner.held_out)  # but labels of other folds do
    assert not torch.equal(combiner.held_out, combiner.combine(parts, context))


@pytest.mark.parametrize("optimise", ["micro_f1", "macro_f1", "precision_at_k"])
def test_labels_that_one_witness_does_not_know_get_the_mean_of_the_others(optimise):
    parts, gold, context = made(300)
    parts["words"][:, [1, 4, 11]] = float("nan")
    combiner = Learnt(optimise)
    facts = combiner.fit(parts, gold, context)
    final = combiner.combine(parts, context)
    assert combiner.chosen == "learnt" and bool(combiner.held_out.isfinite().all())
    mean = (parts["classifier"] + parts["neighbours"]) / 2
    torch.testing.assert_close(final[:, [1, 4, 11]], mean[:, [1, 4, 11]])
    assert bool(final.isfinite().all()) and facts["scores"]["words"] > 0
    json.dumps(facts, allow_nan=False)


def test_pure_noise_promises_nothing_on_held_out_documents():
    parts, gold, context = made(300)
    draw = torch.Generator().manual_seed(3)
    parts = {name: torch.rand(gold.shape, generator=draw) for name in parts}
    combiner = Learnt()
    facts = combiner.fit(parts, gold, context)
    fresh, truth, about = made(2000, seed=9)
    fresh = {name: torch.rand(truth.shape, generator=draw) for name in fresh}
    threshold = tune_global(combiner.held_out, gold)
    found = multilabel_scores(decide(combiner.combine(fresh, about), threshold), truth)["micro_f1"]
    assert abs(found - facts["scores"][facts["chosen"]]) < 0.05


@pytest.mark.parametrize("documents", [0, 1, FEWEST_DOCUMENTS - 1])
def test_few_documents_give_the_mean(documents):
    parts, gold, context = made(documents)
    combiner = Learnt()
    facts = combiner.fit(parts, gold, context)
    assert facts["chosen"] == "average"
    assert "too few" in facts["why"]
    assert torch.equal(combiner.combine(parts, context), mean_known(parts))
    assert torch.equal(combiner.held_out, mean_known(parts))


def test_documents_without_labels_give_the_mean():
    parts, gold, context = made(200)
    assert Learnt().fit(parts, torch.zeros_like(gold), context)["chosen"] == "average"


def test_all_labels_on_one_document():
    parts, gold, context = made(60, labels=60)
    gold = torch.zeros_like(gold)
    gold[3] = True
    combiner = Learnt()
    combiner.fit(parts, gold, context)
    assert bool(combiner.held_out.isfinite().all())


@pytest.mark.parametrize("optimise", ["micro_f1", "macro_f1", "precision_at_k"])
def test_every_aim_is_measured(optimise):
    parts, gold, context = made()
    facts = Learnt(optimise, k=2).fit(parts, gold, context)
    assert set(facts["scores"]) == {*parts, "average", "confidence", "learnt"}
    assert all(0 < value <= 1 for value in facts["scores"].values())


def test_precision_is_that_of_the_five_best_labels():
    parts, gold, context = made()
    facts = Learnt("precision_at_k").fit(parts, gold, context)
    assert "points of precision at 5 " in facts["why"]
    assert facts["scores"]["words"] == pytest.approx(precision_at_k(parts["words"], gold, 5), abs=1e-5)


@pytest.mark.slow
def test_a_fit_takes_few_matrices_besides_those_of_the_witnesses():
    code = (
        "import resource, sys, torch\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from made_witnesses import made\n"
        "from denn.combiners import cells\n"
        "from denn.combiners.learnt import Learnt\n"
        "cells.CELLS = 10_000\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "parts, gold, context = made(2500, 2000)\n"
        "gold &= torch.rand(gold.shape) < 0.01\n"  # about four labels a document
        "parts = {name: part**4 for name, part in parts.items()}\n"
        "before = peak()\n"
        "Learnt().fit(parts, gold, context)\n"
        "print((peak() - before) / (4 * gold.numel()))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 9


def test_precision_at_k_is_the_share_of_gold_labels_among_the_best():
    parts, gold, context = made(100, noise=0.0)  # witnesses that know the truth
    facts = Learnt("precision_at_k", k=1).fit(parts, gold, context)
    assert facts["scores"]["average"] == pytest.approx(float(gold.any(1).float().mean()), abs=1e-4)


def test_an_unknown_aim_is_refused():
    with pytest.raises(ConfigError, match="expected one of micro_f1"):
        Learnt("accuracy")


def test_two_fits_are_the_same():
    parts, gold, context = made()
    one, two = Learnt(), Learnt()
    assert one.fit(parts, gold, context) == two.fit(parts, gold, context)
    assert one.model == two.model


def test_without_a_datastore():
    parts, gold, context = made(witnesses=("classifier", "words"))
    combiner = Learnt()
    assert "confidence" not in combiner.fit(parts, gold, context)["scores"]
    assert combiner.combine(parts, Context(context.label_counts)).shape == gold.shape


def test_saved_and_loaded(tmp_path):
    parts, gold, context = made(400)
    combiner = Learnt()
    combiner.fit(parts, gold, context)
    assert combiner.chosen == "learnt"
    combiner.save(tmp_path)
    assert torch.equal(Learnt.load(tmp_path).combine(parts, context), combiner.combine(parts, context))


@pytest.mark.parametrize("chosen", ["average", "confidence", "words"])
def test_a_simpler_choice_is_saved_too(tmp_path, chosen):
    parts, _, context = made(10)
    combiner = Learnt()
    combiner.chosen = chosen
    combiner.save(tmp_path)
    assert torch.equal(Learnt.load(tmp_path).combine(parts, context), combiner.combine(parts, context))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"chosen": 3}',
        '{"chosen": "average", "model": {}}',
        '{"chosen": "learnt", "model": null}',
        '{"chosen": "learnt", "model": []}',
        '{"chosen": "learnt", "model": {"weights": [1e999]}}',
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(BundleError, match="Restore the folder"):
        Learnt.load(tmp_path)


@pytest.mark.parametrize(("chosen", "missing"), [("learnt", "words"), ("words", "words"), ("confidence", "classifier")])
def test_a_missing_witness_is_named(chosen, missing):
    parts, gold, context = made(400)
    combiner = Learnt()
    combiner.chosen = chosen
    if chosen == "learnt":
        combiner.fit(parts, gold, context)
    del parts[missing]
    with pytest.raises(BundleError, match=f"missing: .*{missing}"):
        combiner.combine(parts, context)


def judged(value, *groups):
    return torch.tensor([value, *groups], dtype=torch.float64)


def test_a_simpler_combination_must_be_better_beyond_noise():
    steady, swaying = (0.8, 0.8, 0.8, 0.8), (0.82, 0.78, 0.82, 0.78)
    simple = {"average": judged(0.7, *[0.7] * 4), "words": judged(0.8, *steady)}
    chosen, best, ahead, error = choose({**simple, "learnt": judged(0.79, *[0.79] * 4)})
    assert (chosen, best) == ("words", "words")
    assert (ahead, error) == (pytest.approx(-0.01), pytest.approx(0, abs=1e-9))
    chosen, best, ahead, error = choose({**simple, "learnt": judged(0.79, *swaying)})
    assert (chosen, best) == ("learnt", "words")
    assert error == pytest.approx(0.02 * 3**0.5)  # (G − 1) / G · Σ (lead − mean)² over four groups
    assert choose({**simple, "learnt": judged(0.81, *[0.81] * 4)})[0] == "learnt"


def test_of_equal_simple_combinations_the_mean_is_the_best():
    same = judged(0.8, 0.8, 0.8)
    assert choose({"words": same, "average": same, "zzz": same, "learnt": judged(0.5, 0.5, 0.5)})[0] == "average"


@pytest.mark.parametrize("optimise", ["micro_f1", "macro_f1"])
def test_thresholds_are_tuned_on_the_other_folds(optimise):
    parts, gold, _ = made(120)
    fold, predicted = torch.arange(120) % 5, torch.empty_like(gold)
    for number in range(5):
        seen, unseen = fold != number, fold == number
        values = [
            multilabel_scores(decide(parts["words"][seen], threshold), gold[seen])["micro_f1"] for threshold in GRID
        ]
        best = [threshold for threshold, value in zip(GRID, values, strict=True) if value > max(values) - 1e-12]
        threshold = min(best, key=lambda one: (abs(one - 0.5), one))
        if optimise == "macro_f1":
            threshold = tune_per_label(parts["words"][seen], gold[seen], threshold, 0.75)
        predicted[unseen] = decide(parts["words"][unseen], threshold)
    found = Learnt(optimise)._judge(parts["words"], gold, fold)
    assert float(found[0]) == pytest.approx(multilabel_scores(predicted, gold)[optimise])
    without_third = torch.arange(120) % 20 != 2
    expected = multilabel_scores(predicted[without_third], gold[without_third])[optimise]
    assert float(found[3]) == pytest.approx(expected)

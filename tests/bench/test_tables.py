"""Tables: the content of each cell, computed from made-up runs."""

from statistics import fmean, stdev

import pytest
import torch

from bench_runs import a_gold, all_runs, columns, run
from denn.errors import ConfigError, DataError
from denn.methods.contrastive import DennParameters
from denn.progress import Silent
from denn_bench.figures import FIGURES, draw
from denn_bench.result import read_all
from denn_bench.run import digest, perform, plan
from denn_bench.significance import Comparison
from denn_bench.table_scores import verdict
from denn_bench.table_sweeps import groups_of
from denn_bench.tables import TABLES, render

pytestmark = pytest.mark.slow  # every table of many runs


@pytest.fixture(scope="module")
def runs():
    return all_runs()


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr("denn_bench.significance.pooled_bootstrap.__defaults__", (200, 0))
    monkeypatch.setattr("denn_bench.significance.compare.__defaults__", (200,))


def rows(text, block=0):
    """Return {first cell: other cells} of one of the tables in a text."""
    blocks, inside = [], False
    for line in text.splitlines():
        if line.startswith("|"):
            if not inside:
                blocks.append([])
            blocks[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        inside = line.startswith("|")
    return {cells[0]: cells[1:] for cells in blocks[block]}


def percents(results, recipe, part, metric, corpus="aapd"):
    return [100 * r.metric(part, "tuned", metric) for r in results if (r.recipe, r.corpus) == (recipe, corpus)]


def written(values):
    return f"{fmean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def test_the_ranking_orders_systems_by_micro_f1_on_each_corpus(runs):
    table = rows(render("ranking", [*runs, run("denn", corpus="reuters21578")]))
    bert, denn = (fmean(percents(runs, recipe, "final", "micro_f1")) for recipe in ("bert", "denn"))
    ahead, behind = ("DENN", "BERT") if denn > bert else ("BERT", "DENN")
    assert int(table[ahead][0].partition(":")[0]) < int(table[behind][0].partition(":")[0])
    assert table["DENN"][-1].startswith("1: ") and table["BERT"][-1] == "-"  # one run there


@pytest.mark.parametrize("name", TABLES)
def test_every_table_renders_with_and_without_runs(name, runs):
    full, empty = render(name, runs), render(name, [])
    assert full.startswith("### ") and f"`denn bench table {name}`" in full
    assert "No runs yet" in empty
    widths = [line.count("|") for line in full.splitlines() if line.startswith("|")]
    assert min(widths) > 2
    for text in (full, empty):
        assert "None" not in text and "nan" not in text


def test_an_unknown_table_is_named_with_the_known_ones(runs):
    with pytest.raises(ConfigError, match=r"no table 'ablaton'\. Did you mean 'ablation'\? Available: main-aapd, "):
        render("ablaton", runs)


def test_main_sets_paper_and_runs_side_by_side(runs):
    found = rows(render("main-aapd", runs))
    assert found["LSAN"] == ["70.6", "-", "53.5", "-", "77.7 / 64.6", "-", "67.6 / 47.2", "-", "-"]
    assert found["DENN"][:4] == [
        "76.3",
        written(percents(runs, "denn", "final", "micro_f1")),
        "62.2",
        written(percents(runs, "denn", "final", "macro_f1")),
    ]
    assert found["DENN"][-1] == "3"
    assert list(found)[-1] == "DENN, tuned beyond the paper"
    assert "denn (final) minus bert (final) on aapd" in render("main-aapd", runs)
    assert "DENN, tuned beyond the paper" not in rows(render("main-eurlex57k", runs))


def test_main_says_where_the_claim_does_not_hold():
    worse = [
        run(name, seed, quality={"final": 0.3 if name == "denn" else 0.9})
        for name in ("denn", "bert")
        for seed in (0, 1)
    ]
    assert "DENN beats BERT. Micro-F1: does not hold; macro-F1: does not hold." in render("main-aapd", worse)


def test_ablation_takes_each_row_from_its_recipe_and_part(runs):
    text = render("ablation", runs)
    found = rows(text)
    for row, recipe, part in (
        ("BERT", "bert-knn", "classifier"),
        ("+ kNN", "bert-knn", "average"),
        ("+ DCL", "denn", "average"),
        ("+ debiased λ", "denn", "final"),
        ("kNN", "denn", "neighbours"),
    ):
        assert found[row][1] == written(percents(runs, recipe, part, "micro_f1"))
        assert found[row][3] == written(percents(runs, recipe, part, "macro_f1"))
    steps = rows(text, 1)
    gain = fmean(percents(runs, "denn", "final", "micro_f1")) - fmean(
        percents(runs, "bert-knn", "classifier", "micro_f1")
    )
    paper_sign, here, sign = steps["BERT → + debiased λ"][:3]
    assert (paper_sign, here.split()[0], sign) == ("+2.5", f"{gain:+.2f}", "holds")
    assert rows(text, 2)["BERT"][0] == "-"  # the paper has no ablation on EUR-LEX57K


def test_ablation_falls_back_to_the_plain_classifier():
    some = [run("bert", seed) for seed in (0, 1)] + [run("denn", seed) for seed in (0, 1)]
    text = render("ablation", some)
    assert rows(text)["BERT"][1] == written(percents(some, "bert", "final", "micro_f1"))
    assert rows(text)["+ kNN"][1] == "-"
    assert rows(text, 1)["BERT → + kNN"] == ["+1.1", "-", "-", "+1.8", "-", "-", "-"]


@pytest.mark.parametrize(
    ("difference", "low", "high", "in_paper", "said"),
    [
        (0.02, 0.01, 0.03, 0.5, "holds"),
        (0.02, -0.01, 0.03, None, "not significant, same sign"),
        (-0.02, -0.03, -0.01, 0.5, "does not hold"),
        (-0.02, -0.03, 0.01, 0.5, "not significant, opposite sign"),
        (-0.02, -0.03, -0.01, -0.5, "holds"),
    ],
)
def test_verdicts(difference, low, high, in_paper, said):
    found = Comparison(difference, low, high, 0.1)
    assert verdict(found, in_paper, 3) == said
    alike = difference * (in_paper or 1) > 0
    assert verdict(found, in_paper, 1) == f"one seed, {'same' if alike else 'opposite'} sign"


def test_a_system_that_still_learns_has_no_number():
    rising = run("bert")
    steps = enumerate((0.2, 0.4, 0.5, 0.6, 0.66), 1)
    rising.data["history"] = [{"step": 100 * step, "tuned_micro_f1": value} for step, value in steps]
    text = render("main-aapd", [rising, run("denn")])
    found = rows(text)
    assert found["BERT"][1:8:2] == ["not trained to convergence", "-", "-", "-"] and found["BERT"][0] == "73.4"
    assert "rose by more than 4 % in the last fifth" in text
    percent = f"{100 * rising.f1('final', 'tuned')[0]:.1f}"
    rising.data["history"][-1]["tuned_micro_f1"] = 0.62
    text = render("main-aapd", [rising])
    assert rows(text)["BERT"][1] == f"{percent} ↑" and "rose by more than 1 % in the last fifth" in text
    rising.data["history"][-1]["tuned_micro_f1"] = 0.603
    assert rows(render("main-aapd", [rising]))["BERT"][1] == percent


def test_a_claim_about_runs_that_still_learn_says_so():
    runs = [run(recipe, seed) for recipe in ("bert", "denn") for seed in range(2)]
    assert "converged" not in render("main-aapd", runs)
    runs[0].data["history"].append({"step": 500, "score": 0.71})
    assert "; training had not converged (↑)." in render("main-aapd", runs)


def test_a_system_that_writes_a_sequence_is_scored_by_the_best_one():
    parts = {"final": 0.8, "sequence": 0.7}
    sgm = run("sgm", quality=parts)
    marginals, sequence = ([100 * score for score in sgm.f1(part, "tuned")] for part in parts)
    text = render("main-aapd", [sgm])
    name = "SGM †"  # made in January, before the review
    assert rows(text)[name][1::2][:2] == [f"{value:.1f}" for value in sequence] != [f"{v:.1f}" for v in marginals]
    assert f"and a tuned threshold: SGM {marginals[0]:.1f} / {marginals[1]:.1f}." in text
    later = run("sgm", quality=parts, created="2026-11-19T00:00:00+00:00")
    assert "SGM" in rows(render("main-aapd", [later])) and "†" not in render("main-aapd", [later])


def test_a_run_that_collapsed_is_named():
    bert = run("bert")
    assert "collapsed" not in render("main-aapd", [bert])
    bert.data["history"].append({"step": 500, "score": 0.1})
    assert "Training collapsed, and the weights before it count: BERT after step 400." in render("main-aapd", [bert])
    bert.data["history"] = [{"step": step, "score": score} for step, score in enumerate((0.7, 0.1, 0.6, 0.2, 0.1), 1)]
    assert "BERT after step 3." in render("main-aapd", [bert])  # it had recovered once
    bert.data["history"].append({"step": 6, "score": 0.65})
    assert "collapsed" not in render("main-aapd", [bert])


def test_a_run_that_ran_out_of_time_is_named():
    short = run("bert")
    short.data["cost"]["stopped_early"] = "at 600 s, after 4.4 of 15 epochs"
    assert "Ended by a time budget: BERT at 600 s, after 4.4 of 15 epochs." in render("main-aapd", [short])
    older = run("bert", parameters={"time_budget": 600, "epochs": 15})
    assert "Ended by a time budget: BERT after 4.0 of 15 epochs." in render("main-aapd", [older])
    whole = run("bert", parameters={"time_budget": 600, "epochs": 4})
    assert "Ended" not in render("main-aapd", [whole])


def test_groups_of_aapd_follow_the_original_counts():
    one = run("denn")
    labels = one.data["test"]["per_label"]
    labels["label"][:2] = ["stat.ML", "cs.AI"]
    labels["train"] = [3_888, 4_058, *[100] * (len(labels["label"]) - 2)]
    assert [(group["name"], group["labels"]) for group in groups_of(one)] == [
        (">4500", 2),
        ("<=870", len(labels["label"]) - 2),
    ]


def test_variants_have_the_papers_average_and_the_distance_to_denn(runs):
    found = rows(render("contrast", runs))
    assert list(found)[2:] == ["UCL", "SCL", "WSCL", "debiased (the paper's)"]
    assert found["WSCL"][0::2][:3] == ["75.0", "60.1", "67.6"]
    ucl, denn = (percents(runs, name, "final", "micro_f1")[0] for name in ("denn-ucl", "denn"))
    assert found["UCL"][6].split()[0] == f"{ucl - denn:+.2f}"  # seed 0, which both have
    shuffled = rows(render("views", runs))["token shuffling"]
    assert shuffled[0::2][:3] == ["73.6", "57.7", "65.7"]


def test_combination_goes_seed_by_seed_and_then_over_all(runs):
    text = render("combination", runs)
    lines = [line for line in text.splitlines() if line.startswith("| AAPD, denn |")]
    assert [line.split("|")[2].strip() for line in lines] == ["0", "1", "2", "0, 1, 2"]
    seed = next(r for r in runs if r.name == "aapd-denn-1")
    gap = 100 * (seed.metric("average", "tuned", "macro_f1") - seed.metric("final", "tuned", "macro_f1"))
    assert lines[1].split("|")[9].strip().startswith(f"{gap:+.2f} [")
    assert "AAPD -0.2 / -1.1; RCV1-V2 -0.2 / -1.6" in text


def test_sweeps_name_the_highest_on_test_and_quote_the_paper(runs):
    text = render("k", runs)
    found = rows(text)
    assert found["30"] == ["74.60 ± 0.10", "64.50 ± 0.00", "69.55 ± 0.05"]
    assert (
        "Here: highest average on test at 30; range of micro-F1 1.50, of macro-F1 1.50. The paper: best average at 30"
        in text
    )
    assert "from 20 % to 100 %, micro-F1 +4.00, macro-F1 +4.00. The paper: from 20 % to 100 %, micro-F1 +1.4" in render(
        "datastore", runs
    )
    assert "highest average on test at 0.7" in render("gamma", runs)


def test_groups_give_the_gain_beside_the_papers(runs):
    found = rows(render("groups", runs))
    here = {
        recipe: fmean(
            100 * r.data["test"]["groups"][2]["macro_f1"] for r in runs if (r.corpus, r.recipe) == ("aapd", recipe)
        )
        for recipe in ("bert", "denn")
    }
    assert found["871-1700"][0] == "3"
    assert found["871-1700"][-2:] == [f"{here['denn'] - here['bert']:+.1f}", "+10.9"]


def test_costs(runs):
    found = rows(render("overhead", runs))
    assert found["AAPD, paper"] == ["2.45", "2.76", "12.7", "-", "-", "0.165", "-"]
    assert found["EUR-LEX57K, here"] == ["0.300", "0.330", "10.0", "0.350", "0.450", "0.125", "0"]
    assert rows(render("speed", runs))["EUR-LEX57K, denn"][:7] == [
        "333,333", "41.2", "790", "150.0", "600", "12.3", "NVIDIA H200",
    ]  # fmt: skip
    counts = rows(render("parameters", runs))
    assert counts["AAPD, DENN"] == ["109,486,464", "41,526", "0", "0"]
    assert counts["RCV1-V2, CORE"] == ["-", "-", "-", "95,584"]


def test_every_system_has_a_row_of_costs_for_each_machine():
    slow = run("br")
    slow.data["cost"] |= {"parameters": None, "epoch_seconds": None, "epochs": None, "training_seconds": None}
    slow.data["cost"]["seconds"] = 77.0
    slow.data["machine"] = {"gpu": None, "cpu": "abacus"}
    found = rows(render("systems", [run("denn"), run("denn", 1), slow, run("denn-tuned")]))
    assert list(found)[-2:] == ["BR", "DENN"]
    assert found["BR"] == ["-", "-", "-", "-", "77", found["BR"][5], "abacus", "0"]
    assert found["DENN"][:2] == ["109.53", "109.49"] and found["DENN"][-1] == "0, 1"


def test_costs_that_were_not_measured_are_left_open():
    bare = run("bert")
    bare.data["cost"] |= {"mfu": None, "tokens_per_second": None, "parameters": None}
    assert rows(render("speed", [bare]))["AAPD, bert"][:2] == ["-", "-"]
    assert rows(render("parameters", [bare]))["AAPD, BERT"] == ["-", "-", "-", "0"]


def test_variants_stand_beside_their_methods_own_recipe():
    longer = run("bert-longer", parameters={"epochs": 6})
    found = rows(render("variants", [run("bert"), run("bert", 1), longer, run("denn"), run("denn-ucl")]))
    assert list(found) == ["recipe: difference from its method", "---", "bert", "bert-longer: epochs 6"]
    assert found["bert-longer: epochs 6"] == [
        "5,000", *(written(percents([longer], "bert-longer", "final", m)) for m in ("micro_f1", "macro_f1")), "0"
    ]  # fmt: skip
    assert "(no run to compare with)" in render("variants", [longer])


def test_a_parameter_that_came_after_a_run_counts_as_its_default():
    later = run("denn-later", parameters={"gamma": DennParameters().gamma})
    assert "denn-later" in rows(render("settings", [run("denn"), later]))
    unlike = run("denn-later", parameters={"gamma": 0.123})
    assert "denn-later: gamma 0.123" in rows(render("settings", [run("denn"), unlike]))


def test_settings_name_what_differs_from_denn():
    changed = run("denn-long", parameters={"epochs": 8, "alpha": 0.3})
    changed.data["corpus"]["train"] = 54_840
    found = rows(render("settings", [run("denn"), run("denn", 1), changed, run("bert")]))
    assert list(found)[2:] == ["denn", "denn-long: epochs 8, alpha 0.3, training documents 54840"]
    assert found["denn"][-1] == "0, 1"
    extra = run("denn-long", corpus="aapd-extra", parameters={"epochs": 8})
    extra.data["corpus"]["train"] = 44_038
    assert "denn-long: epochs 8, training documents 44038" in rows(render("settings", [run("denn"), extra]), 1)
    assert "denn-long: (no run to compare with)" in rows(render("settings", [extra]))


def test_thresholds_are_read_each_at_its_own():
    one = run("bert")
    one.data["test"]["systems"]["final"] |= {"0.4": {"micro_f1": 0.25, "macro_f1": 0.125}}
    assert rows(render("thresholds", [one]))["AAPD, bert (final)"][0] == "25.0 / 12.5"


def test_caption_has_dates_commits_and_seeds():
    early, late = run("denn", 0), run("denn", 2, created="2026-02-03T00:00:00+00:00")
    late.data["commit"] = "fedcba98765432100000+changes"
    text = render("speed", [early, late])
    assert (
        "*2 runs with seeds 0, 2; NVIDIA H200; 2026-01-02 to 2026-02-03; commits 0123456789, fedcba9876+changes."
        in text
    )


def test_runs_of_other_test_parts_are_refused():
    """A run on fewer documents cannot be paired with one on all."""
    short, gold = run("bert"), a_gold("aapd")[:-1]
    short.data["decisions"] = {"gold": columns(gold), "final": columns(torch.zeros_like(gold))}
    with pytest.raises(DataError, match="different documents or labels in their test split"):
        render("main-aapd", [run("denn"), short])


def shape(value):
    """Return the keys of nested dictionaries, and of the first entry of lists of them."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return shape(value[0]) if isinstance(value, list) and value and isinstance(value[0], dict) else None


def missing(wanted, found):
    return [
        key
        for key, inner in (wanted or {}).items()
        if not found or key not in found or (inner and missing(inner, found[key]))
    ]


def test_real_runs_have_the_shape_of_the_made_up_ones_and_fill_every_table(recipes, tiny_corpus, tmp_path):
    for planned in plan(recipes, ["tiny"], ["bert", "denn"], [0]):
        perform(
            planned, tiny_corpus, digest(tiny_corpus), tmp_path / "results", tmp_path / "work", Silent(), sweeps=True
        )
    results = read_all(tmp_path / "results")
    for result in results:
        wanted = shape(run(result.recipe).data)
        wanted["recipe"].pop("parameters")
        assert missing(wanted, shape(result.data)) == []
    for name in TABLES:
        assert render(name, results).startswith("### ")
    for name in FIGURES.keys() - {"map"}:
        assert len(draw(name, results, tmp_path / "figures")) == 3

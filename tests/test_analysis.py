"""Analysis: sweeps repeat what a model with other settings does; counts and curves are checked by hand."""

import shutil
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import denn
from denn.analysis.curves import calibration, threshold_curve
from denn.analysis.errors import confusions, worst
from denn.analysis.sweeps import Searched, datastore_sweep, sweep
from denn.combiners.average import Average
from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.prediction_types import Scores
from denn.types import Document, LabelSpace

GOLD = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 0]], dtype=torch.bool)
VALUES = torch.tensor([[0.9, 0.3, 0.2], [0.6, 0.7, 0.1], [0.8, 0.4, 0.6], [0.05, 0.0, 0.55]])


@pytest.fixture
def model(tiny_model, tmp_path):
    """A copy of the tiny model that may be changed."""
    shutil.copytree(tiny_model, tmp_path / "model")
    with denn.load(tmp_path / "model") as loaded:
        yield loaded


@pytest.fixture
def papers_model(tmp_path):
    """A copy of the paper's system that may be changed."""
    shutil.copytree(Path(__file__).parent / "methods" / "earlier" / "model", tmp_path / "papers")
    with denn.load(tmp_path / "papers") as loaded:
        yield loaded


def wide(model, documents, most=20):
    return Searched(model.method, documents, model.method.embed([document.text for document in documents]), most)


def measured(method, corpus, **settings):
    """Tune and test a method with other settings, through its own scores."""
    before, method.parameters = method.parameters, replace(method.parameters, **settings)
    valid, test = (method.scores([document.text for document in part]) for part in (corpus.valid, corpus.test))
    method.parameters = before
    threshold = tune_global(valid.final, LabelSpace(valid.names).matrix(corpus.valid))
    gold = LabelSpace(test.names).matrix(corpus.test)
    at = {cut: multilabel_scores(decide(test.final, cut), gold) for cut in (threshold, 0.5)}
    return {
        "threshold": threshold,
        "micro_f1": at[threshold]["micro_f1"],
        "macro_f1": at[threshold]["macro_f1"],
        "micro_f1_at_0.5": at[0.5]["micro_f1"],
        "macro_f1_at_0.5": at[0.5]["macro_f1"],
    }


@pytest.mark.slow  # each trains a model
@pytest.mark.parametrize("fixture", ["model", "papers_model"])
def test_a_sweep_repeats_what_a_model_with_these_settings_does(fixture, tiny_corpus, request):
    # A document of a new label: only the neighbours know it, however the other matrices are padded.
    model = request.getfixturevalue(fixture)
    model.add([Document("goal goal zeppelin", ("airships", "sport"), "new")])
    valid, test = wide(model, tiny_corpus.valid), wide(model, tiny_corpus.test)
    found = sweep(valid, test, ks=(20, 1, 3), gammas=(0.1, 0.9))
    assert found["k"] == [{"k": k, **measured(model.method, tiny_corpus, k=k)} for k in (1, 3, 20)]
    assert found["gamma"] == [{"gamma": g, **measured(model.method, tiny_corpus, gamma=g)} for g in (0.1, 0.9)]
    assert fixture == "model" or len({row["micro_f1"] for row in found["k"]}) > 1


def test_a_sweep_without_validation_keeps_the_given_threshold(model, tiny_corpus):
    found = sweep(None, wide(model, tiny_corpus.test), threshold=0.3)
    assert {row["threshold"] for row in (*found["k"], *found["gamma"])} == {0.3}
    assert len(found["gamma"]) == 9


def test_other_neighbours_change_nothing_where_they_are_no_witness(model, tiny_corpus):
    del model.method.witnesses["neighbours"]
    model.method.combiner = Average()
    found = wide(model, tiny_corpus.test)
    assert torch.equal(found.rescored(found.found.nearest(1)), found.scores.final)


def test_k_stops_at_what_was_found(model, tiny_corpus):
    found = sweep(None, wide(model, tiny_corpus.test, most=7), ks=(5, 10, 20), gammas=())
    assert [row["k"] for row in found["k"]] == [5, 7]


def test_unknown_labels_count_as_missed(model, tiny_corpus):
    stranger = [Document(tiny_corpus.test[0].text, (*tiny_corpus.test[0].labels, "stranger")), *tiny_corpus.test[1:]]
    (plain,), (with_stranger,) = (
        sweep(None, wide(model, documents), ks=(5,), gammas=())["k"] for documents in (tiny_corpus.test, stranger)
    )
    assert with_stranger["macro_f1"] == pytest.approx(plain["macro_f1"] * 6 / 7)
    assert with_stranger["micro_f1"] < plain["micro_f1"]


def test_a_smaller_datastore_is_one_whose_documents_were_removed(model, tiny_corpus):
    parts = wide(model, tiny_corpus.valid), wide(model, tiny_corpus.test)
    rows = datastore_sweep(*parts, shares=(0.25, 1.0), draws=2, seed=3)
    assert [(row["share"], row["documents"], row["draws"]) for row in rows] == [(0.25, 15, 2), (1.0, 60, 1)]
    whole = measured(model.method, tiny_corpus)
    assert (rows[1]["micro_f1"], rows[1]["macro_f1"]) == (whole["micro_f1"], whole["macro_f1"])
    assert rows[1]["micro_f1_sd"] == 0

    ids, chance = model.method.store.ids(), torch.Generator().manual_seed(3)
    orders = [torch.randperm(len(ids), generator=chance).tolist() for _ in range(2)]
    stored = {document.id: document for document in model.method.store.get(ids)}
    each = []
    for order in orders:
        gone = [ids[row] for row in order[15:]]
        model.remove(gone)
        each.append(measured(model.method, tiny_corpus)["micro_f1"])
        model.add([stored[id] for id in gone])
    assert rows[0]["micro_f1"] == pytest.approx(mean(each))
    assert rows[0]["micro_f1_sd"] == pytest.approx(stdev(each))


def test_a_datastore_sweep_without_validation_keeps_the_threshold(model, tiny_corpus):
    (row,) = datastore_sweep(None, wide(model, tiny_corpus.test), shares=(1.0,), threshold=0.2)
    final = model.scores([document.text for document in tiny_corpus.test]).final
    gold = LabelSpace(model.labels.names).matrix(tiny_corpus.test)
    assert row["micro_f1"] == multilabel_scores(decide(final, 0.2), gold)["micro_f1"]


def test_one_point_of_a_threshold_curve_by_hand():
    # At 0.5 {a}, {a,b}, {a,c}, {c} are predicted, and {a,c}, {b}, {a,b}, {} are correct.
    low, half, high = threshold_curve(VALUES, GOLD, (0.0, 0.5, 1.0))
    assert half == {
        "threshold": 0.5,
        "micro_precision": 3 / 6,
        "micro_recall": pytest.approx(3 / 5),
        "micro_f1": pytest.approx(6 / 11),
        "macro_precision": pytest.approx((2 / 3 + 1 / 1 + 0 / 2) / 3),
        "macro_recall": pytest.approx((2 / 2 + 1 / 2 + 0 / 1) / 3),
        "macro_f1": pytest.approx((4 / 5 + 2 / 3 + 0 / 3) / 3),
    }
    assert low["micro_recall"] == 1
    assert low["micro_precision"] == pytest.approx(5 / 11)  # only the score 0 is not above 0
    assert set(high.values()) == {1.0, 0.0}


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**31))
def test_a_threshold_curve_is_the_metrics_at_each_threshold(n, width, seed):
    chance = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 11, (n, width), generator=chance) / 10  # many of them are on the grid
    gold = torch.rand(n, width, generator=chance) < 0.4
    for row in threshold_curve(values, gold, (0.1, 0.3, 0.5, 0.9)):
        expected = multilabel_scores(decide(values, row.pop("threshold")), gold)
        assert row == {name: pytest.approx(value) for name, value in expected.items()}


def test_calibration_by_hand():
    values = torch.tensor([[0.1, 0.3], [0.6, 1.0]])
    gold = torch.tensor([[False, True], [False, True]])
    found = calibration(values, gold, bins=2)
    assert found["bins"] == [
        {"low": 0.0, "high": 0.5, "count": 2, "score": pytest.approx(0.2), "observed": 0.5},
        {"low": 0.5, "high": 1.0, "count": 2, "score": pytest.approx(0.8), "observed": 0.5},
    ]
    assert found["error"] == pytest.approx((0.1 + 0.7 + 0.6 + 0) / 4)  # in ten bins, whatever the bins shown
    assert [row["count"] for row in calibration(values, gold, bins=10)["bins"]] == [1, 1, 1, 1]


def test_no_cells_have_no_calibration():
    assert calibration(torch.empty(0, 3), torch.empty(0, 3, dtype=torch.bool)) == {"bins": [], "error": 0}


def test_confusions_are_counted_by_text():
    gold = torch.tensor([[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 1], [0, 1, 0, 0]], dtype=torch.bool)
    predicted = torch.tensor([[0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 1, 1, 0]], dtype=torch.bool)
    # Missed and given: a for b; a for b and c; b and d for c; nothing missed, so that c stands for no other label.
    pairs = [("a", "b", 2), ("a", "c", 1), ("b", "c", 1), ("d", "c", 1)]
    expected = [{"missed": missed, "given": wrong, "texts": texts} for missed, wrong, texts in pairs]
    assert confusions(predicted, gold, "abcd") == expected
    assert confusions(predicted, gold, "abcd", top=2) == expected[:2]
    assert confusions(gold, gold, "abcd") == []


def test_the_worst_texts_by_hand():
    # Over the labels had or given: (0.01 + 0.64) / 2; (0.36 + 0.09) / 2; (0.04 + 0.36 + 0.36) / 3; 0.3025.
    found = worst(Scores(VALUES, ("a", "b", "c")), GOLD, 0.5, top=3)
    assert [row["row"] for row in found] == [0, 3, 2]
    assert [row["loss"] for row in found] == [pytest.approx(loss, abs=1e-6) for loss in (0.325, 0.3025, 0.76 / 3)]
    assert (found[0]["missed"], found[0]["wrong"]) == ([("c", pytest.approx(0.2))], [])
    assert found[2]["missed"] == [("b", pytest.approx(0.4))]
    assert found[2]["wrong"] == [("c", pytest.approx(0.6))]


def test_texts_without_errors_are_not_the_worst():
    gold = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 0]], dtype=torch.bool)
    found = worst(Scores(VALUES, ("a", "b", "c")), gold, 0.5)  # the fourth column is not among the labels of the scores
    assert [(row["row"], row["missed"]) for row in found] == [(1, [])]
    assert found[0]["wrong"] == [("a", pytest.approx(0.6))]

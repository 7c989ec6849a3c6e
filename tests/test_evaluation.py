"""Evaluation: numbers that can be checked by hand."""

import json

import pytest
import torch

from denn.bundle_card import Thresholds
from denn.evaluation import concatenate, decision_thresholds, evaluate, stored_copies, tune, untuned
from denn.prediction_types import Scores
from denn.stores.address import create_store
from denn.types import Document

FINAL = torch.tensor([[0.9, 0.6, 0.1], [0.7, 0.2, 0.3], [0.1, 0.4, 0.2]])
PART = torch.tensor([[0.1, 0.1, 0.9], [0.1, 0.1, 0.9], [0.1, 0.1, 0.9]])
SCORES = Scores(FINAL, ("a", "b", "c"), {"part": PART}, torch.tensor([1.0, 0.5, 0.0]))
THRESHOLDS = {
    "final": Thresholds(overall=0.35, per_label=(0.8, 0.35, 0.25)),
    "part": Thresholds(overall=0.5, per_label=(0.5, 0.5, 0.5)),
}
DOCUMENTS = [Document("", ("a", "b")), Document("", ("a", "c")), Document("", ("a",))]
COUNTS = {"a": 20, "b": 5, "c": 1}


def test_numbers_by_hand():
    # At 0.35: {a,b}, {a}, {b}. Hits: a twice, b once. Given: 4. Gold: 5.
    found = evaluate(SCORES, DOCUMENTS, THRESHOLDS, COUNTS)
    headline = found.headline
    assert headline["threshold"] == 0.35
    assert headline["micro_precision"] == pytest.approx(3 / 4)
    assert headline["micro_recall"] == pytest.approx(3 / 5)
    assert headline["micro_f1"] == pytest.approx(2 * 3 / (4 + 5))
    a, b = 2 * 2 / (2 + 3), 2 * 1 / (2 + 1)
    assert headline["macro_f1"] == pytest.approx((a + b + 0) / 3)
    assert headline["subset_accuracy"] == pytest.approx(1 / 3)
    assert headline["hamming_loss"] == pytest.approx(3 / 9)
    assert headline["p_at_1"] == pytest.approx(2 / 3)
    assert (found.documents, found.unknown_labels, found.confidence) == (3, 0, 0.5)
    assert found.table.true_positives.tolist() == [2, 1, 0]
    assert repr(found) == "Evaluation(3 documents, micro_f1=0.667, macro_f1=0.489)"


def test_every_part_at_every_threshold():
    systems = evaluate(SCORES, DOCUMENTS, THRESHOLDS, COUNTS).systems
    assert set(systems) == {"part", "final"}
    assert all(set(kinds) == {"0.5", "tuned", "per_label"} for kinds in systems.values())
    # At 0.5: {a,b}, {a}, {}. Hits 3, given 3, gold 5.
    assert systems["final"]["0.5"]["micro_f1"] == pytest.approx(6 / 8)
    # Each label at its own: {a,b}, {c}, {b}. Hits 3, given 4, gold 5.
    assert systems["final"]["per_label"]["micro_f1"] == pytest.approx(6 / 9)
    assert "threshold" not in systems["final"]["per_label"]
    assert systems["part"]["tuned"]["micro_f1"] == pytest.approx(2 * 1 / (3 + 5))


def test_the_headline_is_the_models_own_decision():
    own = THRESHOLDS["final"].model_copy(update={"decides": "per_label"})
    found = evaluate(SCORES, DOCUMENTS, {**THRESHOLDS, "final": own}, COUNTS)
    assert found.headline == found.systems["final"]["per_label"] != found.systems["final"]["tuned"]
    assert found.table.true_positives.tolist() == [1, 1, 1]
    assert own.sentence == "at a tuned threshold for each label"
    usual = evaluate(SCORES, DOCUMENTS, THRESHOLDS, COUNTS)
    assert usual.headline == usual.systems["final"]["tuned"] and usual.systems == found.systems
    assert THRESHOLDS["final"].sentence == "at the tuned threshold 0.35"
    for report, decides in ((found.as_dict(), "per_label"), (usual.as_dict(), "tuned")):
        assert (report["threshold"], report["decides"]) == (0.35, decides)


@pytest.mark.parametrize(("metric", "decides"), [("micro_f1", "tuned"), ("macro_f1", "per_label")])
def test_a_threshold_per_label_decides_for_macro_f1(metric, decides):
    found = tune(SCORES, DOCUMENTS, metric)["final"]
    other = tune(SCORES, DOCUMENTS, "micro_f1")["final"]
    assert found.decides == decides and found.overall == other.overall
    for own, halfway in zip(found.per_label, other.per_label, strict=True):
        share = 1.5 if decides == "per_label" else 1.0  # three quarters of the way, or half of it
        assert own - found.overall == pytest.approx(share * (halfway - found.overall), abs=1e-6)


def test_fixed_thresholds_can_be_chosen_and_rank_alike():
    kinds = evaluate(SCORES, DOCUMENTS, THRESHOLDS, COUNTS, fixed=(0.15, 0.65)).systems["final"]
    assert list(kinds) == ["0.15", "0.65", "tuned", "per_label"]
    # At 0.15: {a,b}, {a,b,c}, {b,c}. Hits 4, given 7, gold 5. At 0.65: {a}, {a}, {}. Hits 2, given 2.
    assert kinds["0.15"]["micro_f1"] == pytest.approx(2 * 4 / (7 + 5))
    assert kinds["0.65"]["micro_f1"] == pytest.approx(2 * 2 / (2 + 5))
    assert kinds["0.15"]["threshold"] == 0.15
    assert len({kind["ndcg_at_3"] for kind in kinds.values()}) == 1


def test_labels_by_their_frequency_in_training():
    bands = {band["name"]: band for band in evaluate(SCORES, DOCUMENTS, THRESHOLDS, COUNTS).bands}
    assert {name: band["labels"] for name, band in bands.items()} == {
        "0": 0, "1-9": 2, "10-49": 1, "50-499": 0, ">=500": 0,
    }  # fmt: skip
    assert bands["10-49"]["micro_f1"] == pytest.approx(2 * 2 / (2 + 3))


def test_unknown_labels_count_as_missed():
    documents = [*DOCUMENTS[:2], Document("", ("a", "x", "y"))]
    found = evaluate(SCORES, documents, THRESHOLDS, COUNTS)
    assert found.names == ("a", "b", "c", "x", "y")
    assert found.unknown_labels == 2
    assert found.headline["micro_recall"] == pytest.approx(3 / 7)
    assert found.headline["macro_f1"] == pytest.approx((4 / 5 + 2 / 3) / 5)
    assert found.bands[0]["labels"] == 2
    assert found.table.support.tolist() == [3, 1, 1, 1, 1]
    none = evaluate(SCORES, [Document("", ("z",))] * 3, THRESHOLDS, COUNTS)
    assert none.headline["micro_f1"] == 0


def test_at_least_so_many_labels():
    found = evaluate(SCORES, DOCUMENTS, THRESHOLDS, COUNTS, min_labels=1).systems["final"]["0.5"]
    assert found["empty_predictions"] == 0
    assert found["micro_f1"] == pytest.approx(2 * 3 / (4 + 5))  # the third text now gets b


def test_a_report_is_plain_json():
    found = evaluate(SCORES, [*DOCUMENTS[:2], Document("", ("ü",))], THRESHOLDS, COUNTS)
    report = json.loads(json.dumps(found.as_dict()))
    assert report["micro_f1"] == found.headline["micro_f1"]
    assert (report["documents"], report["labels"], report["unknown_labels"]) == (3, 4, 1)
    assert report["mean_confidence"] == 0.5
    assert [row["label"] for row in report["per_label"]] == ["a", "b", "c", "ü"]
    assert report["per_label"][0] == {
        "label": "a", "support": 2, "predicted": 2, "true_positives": 2, "precision": 1.0, "recall": 1.0, "f1": 1.0,
    }  # fmt: skip
    assert report["systems"]["part"]["0.5"]["micro_f1"] == found.systems["part"]["0.5"]["micro_f1"]


def test_tuning_finds_a_threshold_that_separates():
    tuned = tune(Scores(FINAL, ("a", "b", "c"), {"part": PART}), [DOCUMENTS[0], Document("", ("a",)), Document("")])
    assert set(tuned) == {"final", "part"}
    assert 0.4 <= tuned["final"].overall < 0.6
    assert len(tuned["final"].per_label) == 3


def test_untuned_is_a_half_everywhere():
    assert untuned(("part",), 2) == dict.fromkeys(("final", "part"), Thresholds(overall=0.5, per_label=(0.5, 0.5)))


def test_labels_that_came_later_get_the_overall_threshold():
    found = decision_thresholds(THRESHOLDS["final"], 5, per_label=True)
    assert found.tolist() == pytest.approx([0.8, 0.35, 0.25, 0.35, 0.35])


def test_batches_are_joined_even_when_labels_are_added_between_them():
    wider = Scores(
        torch.full((1, 4), 0.7), ("a", "b", "c", "d"), {"part": torch.full((1, 4), 0.2)}, torch.tensor([0.3])
    )
    joined = concatenate([SCORES, wider])
    assert joined.names == ("a", "b", "c", "d")
    assert joined.final.tolist() == [*([*row, 0.0] for row in FINAL.tolist()), wider.final[0].tolist()]
    assert joined.parts["part"].shape == (4, 4)
    assert joined.confidence.tolist() == pytest.approx([1.0, 0.5, 0.0, 0.3])
    assert concatenate([Scores(FINAL, ("a", "b", "c"))]).confidence is None


def test_batches_are_joined_by_names_when_a_vacuum_renumbers_labels_between_them():
    before = Scores(torch.tensor([[0.1, 0.2, 0.3]]), ("a", "goes", "stays"))
    after = Scores(torch.tensor([[0.4, 0.5, 0.6]]), ("a", "stays", "new"))
    joined = concatenate([before, after])
    assert joined.names == ("a", "goes", "stays", "new")
    torch.testing.assert_close(joined.final, torch.tensor([[0.1, 0.2, 0.3, 0.0], [0.4, 0.0, 0.5, 0.6]]))


def test_texts_that_are_stored_are_counted_but_for_case_and_blanks(monkeypatch):
    monkeypatch.setattr("denn.evaluation.READ_AT_ONCE", 2)
    texts = ["one  goal", "TWO goals\n", "three goals", "", "decided"]
    documents = [Document(text) for text in texts]
    scores = Scores(torch.zeros(5, 1), ("a",), same_text=[None] * 4 + ["copy"])
    with create_store("memory:", 2) as store:
        store.add([Document(text) for text in ("other", "", "two goals", "One goal")], torch.ones(4, 2))
        assert stored_copies(documents, scores, store) == 3
        assert stored_copies(documents[2:3], Scores(torch.zeros(1, 1), ("a",)), store) == 0

"""The contents of a report agree with the model's own numbers."""

import shutil
from dataclasses import replace

import pytest

import denn
from denn.errors import BundleError, DataError
from denn.progress import Silent
from denn.report.gather import gather
from denn.types import Document

pytestmark = pytest.mark.slow  # whole evaluations


@pytest.fixture
def model(tiny_model, tmp_path):
    """A copy of the tiny model that may be changed."""
    shutil.copytree(tiny_model, tmp_path / "model")
    with denn.load(tmp_path / "model") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def by_lambda(tmp_path_factory, tiny_corpus, tiny_settings):
    """The findings on a model that combines by λ, and its scores of the test texts."""
    folder = tmp_path_factory.mktemp("models") / "by-lambda"
    with denn.train(tiny_corpus, out=folder, combination="confidence", **tiny_settings) as model:
        scores = model.scores([document.text for document in tiny_corpus.test])
        return gather(model, tiny_corpus.test, tiny_corpus.valid, Silent()), scores


@pytest.fixture(scope="module")
def found(tiny_model, tiny_corpus):
    with denn.load(tiny_model) as model:
        return gather(model, tiny_corpus.test, tiny_corpus.valid, Silent())


def test_the_scores_are_those_of_evaluate(found, tiny_model, tiny_corpus):
    with denn.load(tiny_model) as model:
        expected = model.evaluate(tiny_corpus.test).as_dict()
    assert found.evaluation.as_dict() == expected
    assert found.fitted and found.validated == 0  # the combination has seen the validation texts
    assert found.labels_per_text == sum(len(document.labels) for document in tiny_corpus.test) / 20
    tuned = next(row for row in found.curves["final"] if row["threshold"] == expected["threshold"])
    assert tuned["micro_f1"] == pytest.approx(expected["micro_f1"])
    assert list(found.curves) == list(expected["systems"])
    assert {"classifier", "neighbours", "average", "confidence", "final"} <= set(found.curves)


def test_the_models_own_settings_are_among_those_tried(found, tiny_model):
    near = found.neighbourhood
    with denn.load(tiny_model) as model:
        threshold = model.card.thresholds["final"].overall
    own = next(row for row in near.sweep["k"] if row["k"] == 5)
    assert {row["threshold"] for row in near.sweep["k"]} == {threshold}  # tuned on held-out scores of the training
    assert own["micro_f1"] == pytest.approx(found.evaluation.headline["micro_f1"])
    assert near.sizes[-1]["documents"] == near.stored == 60
    assert near.sizes[-1]["micro_f1"] == pytest.approx(found.evaluation.headline["micro_f1"])


def test_a_model_without_finite_scores_has_no_report(model, tiny_corpus):
    model.method.network.scale.fill_(3e38)  # finite, as every weight must be
    with pytest.raises(BundleError, match="its weights are damaged"):
        gather(model, tiny_corpus.test, tiny_corpus.valid, Silent())


def test_lambda_and_gamma_are_looked_at_where_they_decide(found, by_lambda):
    decided, scores = by_lambda
    assert decided.validated == 60 and not decided.fitted
    assert sum(decided.confidence) == 20
    assert len(decided.neighbourhood.sweep["gamma"]) == 9
    row = next(i for i, text in enumerate(scores.texts) if text == decided.errors[0].document.text)
    assert decided.errors[0].confidence == pytest.approx(float(scores.confidence[row]))
    assert found.confidence is None and found.errors[0].confidence is None
    assert found.neighbourhood.sweep["gamma"] == [] and found.neighbourhood.reached == 0


def test_the_worst_texts_bring_their_nearest_documents(found, tiny_model, tiny_corpus):
    assert found.errors
    error = found.errors[0]
    assert {*error.right, *(name for name, _ in error.missed)} == set(error.document.labels)
    with denn.load(tiny_model) as model:
        (prediction,) = model.predict([error.document.text])
    assert {*error.right, *(name for name, _ in error.wrong)} == set(prediction.labels)
    named = {*error.document.labels, *(name for name, _ in error.wrong)}
    assert set(error.words) <= named
    for label in named & set(prediction.scores):
        assert error.words.get(label, []) == [word for word, _ in prediction.words.get(label, ())]
    assert [neighbour.id for neighbour in error.neighbours] == [other.id for other in prediction.neighbours[:5]]
    assert error.neighbours[0].labels == tuple(prediction.neighbours[0].labels)


def test_a_label_that_the_model_does_not_know_is_missed(model, tiny_corpus):
    document = Document("violin chord melody", ("stranger",), "odd")
    found = gather(model, [document, *tiny_corpus.test], (), Silent())
    error = next(error for error in found.errors if error.document.id == "odd")
    assert error.missed[0] == ("stranger", 0.0)
    assert error.right == []
    assert found.evaluation.unknown_labels == 1
    assert found.train_counts[-1] == 0
    assert found.validated == 0


def test_texts_that_are_in_the_datastore_are_noticed(model, tiny_corpus):
    documents = [replace(document, id=None) for document in tiny_corpus.train[:3]]
    assert gather(model, [*documents, *tiny_corpus.test], (), Silent()).neighbourhood.copies == 3


def test_texts_that_are_validation_texts_too_are_counted(model, tiny_corpus):
    documents = [replace(document, id=None) for document in tiny_corpus.valid[:2]]
    near = gather(model, [*documents, *tiny_corpus.test], tiny_corpus.valid, Silent()).neighbourhood
    assert (near.shared, near.copies) == (2, 0)


def test_texts_that_the_classifier_is_sure_of_are_counted(by_lambda):
    found, scores = by_lambda
    sure = [any(score >= 0.5 for score in row) for row in scores.parts["classifier"].tolist()]
    assert found.neighbourhood.reached == sum(sure) > 0


def test_an_empty_datastore_has_no_neighbourhood(model, tiny_corpus):
    model.remove(model.method.store.ids())
    found = gather(model, tiny_corpus.test, tiny_corpus.valid, Silent())
    assert found.neighbourhood is None
    assert found.keeps_documents
    assert found.evaluation.as_dict() == model.evaluate(tiny_corpus.test).as_dict()
    assert not any(error.neighbours for error in found.errors)


def test_words_that_support_the_labels_of_a_bad_text(model, tiny_corpus, monkeypatch):
    """As a witness returns them: the longest word supports every label in an odd column."""

    def support(texts, columns):
        return [
            [[(max(text.split(), key=len), 1.0)] if column % 2 else [] for column in some]
            for text, some in zip(texts, columns, strict=True)
        ]

    monkeypatch.setattr(model.method, "support", support)
    names = model.labels.names
    for error in gather(model, tiny_corpus.test, (), Silent()).errors:
        involved = {*error.document.labels, *(name for name, _ in error.wrong)}
        word = max(error.document.text.split(), key=len)
        assert error.words == {name: [word] for name in names if name in involved and names.index(name) % 2}


def test_without_the_witness_of_neighbours_there_is_a_map_and_nothing_to_sweep(tiny_corpus, tiny_settings, tmp_path):
    settings = {**tiny_settings, "witnesses": ("classifier",), "combination": "average"}
    with denn.train(tiny_corpus, out=tmp_path / "model", **settings) as model:
        near = gather(model, tiny_corpus.test, tiny_corpus.valid, Silent()).neighbourhood
    assert (near.stored, near.sweep, near.sizes) == (60, {}, [])
    assert len(near.map.stored) == 60


def test_documents_without_labels_have_nothing_to_be_compared_with(model):
    with pytest.raises(DataError, match="None of the 2 documents has a label"):
        gather(model, [Document("goal"), Document("oven")], (), Silent())


def test_the_map_shows_both_parts_in_the_colours_of_frequent_labels(found, tiny_corpus):
    drawn = found.neighbourhood.map
    assert (len(drawn.stored), len(drawn.texts)) == (60, 20)
    assert list(drawn.labels) == list(tiny_corpus.labels.names)
    unlabelled = sum(not document.labels for document in tiny_corpus.train)
    assert sum(label == -1 for *_, label in drawn.stored) == unlabelled
    rare = drawn.labels.index("rare: weather")
    assert sum(label == rare for *_, label in drawn.stored) == 1  # though it has the frequent "sport" too


def test_documents_that_are_removed_meanwhile_are_left_out(model, tiny_corpus, monkeypatch):
    def remove(what):
        if model.store.ids() and what in ("trying other settings", "trying smaller datastores"):
            model.remove(model.store.ids()[:20])

    vectors = model.store.vectors

    def remove_and_read(ids):
        monkeypatch.setattr(model.store, "vectors", vectors)
        model.remove(ids[:10])
        return vectors(ids)

    class Removing(Silent):
        def start(self, stage):
            remove(stage.what)

    monkeypatch.setattr(model.store, "vectors", remove_and_read)
    found = gather(model, tiny_corpus.test, (), Removing())
    assert len(found.neighbourhood.map.stored) == 10
    left = set(model.store.ids())
    assert len(left) == 10 and {near.id for error in found.errors for near in error.neighbours} <= left


def test_one_stored_document_can_be_drawn(model, tiny_corpus):
    model.remove(model.method.store.ids()[1:])
    drawn = gather(model, tiny_corpus.test, (), Silent()).neighbourhood.map
    assert [point[:2] for point in drawn.stored] == [(0, 0)]
    assert drawn.variance == (0, 0)

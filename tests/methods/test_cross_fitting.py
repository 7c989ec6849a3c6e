"""With few documents, training documents help to tune, each scored by a model that has not learnt from it."""

import random
from dataclasses import replace

import pytest
import torch

import denn
from denn.clock import Clock
from denn.methods import cross_fitting
from denn.methods.cross_fitting import cross_fit, epochs_for_as_many_steps
from denn.methods.relearning import Judged
from denn.progress import Silent
from denn.validation import Kept


def scored(model, documents):
    method, exported = model.method, list(model.store.export())
    judged = Judged(documents, method.embed([document.text for document in documents]), [None] * len(documents))
    learnt, vectors = [one for some, _ in exported for one in some], torch.cat([found for _, found in exported])
    return cross_fit(method, judged, learnt, vectors, 30, Silent(), Clock())


@pytest.fixture
def model(tiny_corpus, tiny_settings, tmp_path):
    settings = {name: value for name, value in tiny_settings.items() if name != "epochs"}
    with denn.train(tiny_corpus, out=tmp_path / "model", effort="quick", **settings) as model:
        yield model


def test_its_own_labels_do_not_change_how_a_document_is_scored(model, tiny_corpus):
    before = scored(model, tiny_corpus.valid[:20])
    row, first = 5, before.documents[20 + 5]
    other = next(name for name in model.labels if name not in first.labels)
    model.store.relabel([first.id], [other])
    after = scored(model, tiny_corpus.valid[:20])
    places = [document.id for document in after.documents]
    same = [places.index(document.id) for document in before.documents[20:]]
    for name in ("classifier", "neighbours", "words"):
        one, two = before.parts[name][20:], after.parts[name][same]
        assert torch.equal(one[row], two[row]), name
        assert not torch.equal(one, two), name


def test_what_is_learnt_by_heart_does_not_count(tiny_corpus, tiny_settings, tmp_path):
    chance = random.Random(0)

    def shuffled(documents):
        labels = [document.labels for document in documents]
        chance.shuffle(labels)
        return [replace(document, labels=some) for document, some in zip(documents, labels, strict=True)]

    corpus = replace(tiny_corpus, train=shuffled(tiny_corpus.train), valid=shuffled(tiny_corpus.valid)[:10])
    settings = {name: value for name, value in tiny_settings.items() if name != "epochs"}
    with denn.train(corpus, out=tmp_path / "model", effort="quick", allow_poor=True, **settings) as model:
        expected, seen = model.card.metrics["micro_f1"], model.evaluate(corpus.train).headline["micro_f1"]
        new = model.evaluate(shuffled(tiny_corpus.test)).headline["micro_f1"]
    assert abs(expected - new) < 0.1 < seen - expected


def test_the_model_keeps_only_validation_documents_and_learns_from_all_training_documents(model, tiny_corpus):
    card = model.card
    assert card.training["cross_fitted"] == len(tiny_corpus.train)
    assert card.training["combination"]["documents"] == len(tiny_corpus.train) + len(tiny_corpus.valid)
    assert card.judged_on == "120 documents, each scored by a model that has not learnt from it"
    kept = Kept.load(model.folder / card.validation)
    assert [document.text for document in kept.documents] == [document.text for document in tiny_corpus.valid]
    assert len(model.store) == card.corpus["train"] == len(tiny_corpus.train)


@pytest.mark.parametrize("reason", ["many documents", "no time", "fine-tuning follows", "it continues"])
def test_otherwise_only_validation_documents_count(reason, model, tiny_corpus, tiny_settings, tmp_path, monkeypatch):
    settings = {name: value for name, value in tiny_settings.items() if name != "epochs"} | {"effort": "quick"}
    if reason == "many documents":
        monkeypatch.setattr(cross_fitting, "FEW", 119)
    elif reason == "no time":
        monkeypatch.setattr(cross_fitting, "TIME_SHARE", 0.0)
        settings |= {"time_budget": 60}
    elif reason == "fine-tuning follows":
        settings |= {"effort": "balanced", "epochs": 1}
    else:
        settings = {"continue_from": model.folder, "effort": "quick"}
    with denn.train(tiny_corpus, out=tmp_path / "other", **settings) as other:
        assert "cross_fitted" not in other.card.training
        assert other.card.judged_on == "60 validation documents"


def test_a_refit_also_learns_the_combination_from_all_documents(model, tiny_corpus):
    added = [replace(document, id=f"new-{row}") for row, document in enumerate(tiny_corpus.test)]
    model.add(added)
    with denn.refit(model.folder, force=True) as new:
        kept, learnt = new.card.corpus["valid"], new.card.corpus["train"]
        assert kept > len(tiny_corpus.valid) and kept + learnt == 60 + 60 + len(added)
        assert new.card.training["cross_fitted"] == learnt
        assert new.card.refitted["held_out"] == kept


def test_an_encoder_that_has_learnt_from_the_documents_is_never_cross_fitted(tiny_corpus, tiny_settings, tmp_path):
    with denn.train(tiny_corpus, out=tmp_path / "model", **tiny_settings) as tuned:
        tuned.add([replace(document, id=f"new-{row}") for row, document in enumerate(tiny_corpus.test)])
    for _ in range(2):
        with denn.refit(tmp_path / "model", force=True) as model:
            assert "cross_fitted" not in model.card.training and model.card.refitted


def test_a_refit_of_more_documents_keeps_that_they_may_be_cross_fitted(model, tiny_corpus, monkeypatch):
    model.add([replace(document, id=f"new-{row}") for row, document in enumerate(tiny_corpus.test)])
    monkeypatch.setattr(cross_fitting, "FEW", 119)
    with denn.refit(model.folder, force=True) as new:
        assert new.card.training["cross_fitted"] == 0 and "validation documents" in new.card.judged_on
    monkeypatch.undo()
    with denn.refit(model.folder, force=True) as new:
        assert new.card.training["cross_fitted"] == new.card.corpus["train"]


def test_one_document_cannot_be_divided(tiny_corpus, tiny_settings, tmp_path):
    settings = {name: value for name, value in tiny_settings.items() if name != "epochs"} | {"effort": "quick"}
    corpus = replace(tiny_corpus, train=tiny_corpus.train[:1])
    with denn.train(corpus, out=tmp_path / "one", allow_poor=True, **settings) as model:
        assert "cross_fitted" not in model.card.training


def test_copies_of_a_text_are_learnt_but_not_scored(model, tiny_corpus):
    first = tiny_corpus.train[0]
    model.add([replace(first, id="copy"), replace(tiny_corpus.valid[0], id="stored")])
    found = scored(model, tiny_corpus.valid[:20])
    texts = [document.text for document in found.documents]
    assert len(texts) == len(set(texts)) == 20 + 60 - 1 and first.text not in texts


@pytest.mark.parametrize("wrong", ["x", -5, True, 1e300, [1]])
def test_a_card_may_claim_anything(wrong, model):
    card = model.card.model_copy(update={"training": {**model.card.training, "cross_fitted": wrong}})
    assert card.judged_on == "60 validation documents"


def test_folds_take_as_many_steps_as_the_whole():
    counts = ((90, 72), (300, 240), (500, 400))
    assert [epochs_for_as_many_steps(30, documents, fewer) for documents, fewer in counts] == [30, 60, 30]

"""Renamed and merged labels: predictions, refits, undo, and models in memory."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

import denn
from denn.errors import BundleError, ConflictError, StoreError, UnknownError
from denn.refitting import refit
from denn.renewing import renew
from denn.types import Where
from denn.validation import Kept

TEXTS = ["the goal of the match and the team", "orbit and rocket around the planet", "a violin and a chord"]


@pytest.fixture
def folder(tiny_model, tmp_path):
    return shutil.copytree(tiny_model, tmp_path / "model")


@pytest.fixture
def model(folder):
    with denn.load(folder) as loaded:
        yield loaded


def test_renaming_keeps_everything_but_the_name(model, folder):
    before = model.predict(TEXTS)
    model.rename_label("sport", "Sports & games")
    assert model.vocabulary.name("sport") == "Sports & games"
    with denn.load(folder) as again:
        after = again.predict(TEXTS)
        assert [one.scores for one in after] == [one.scores for one in before]
        assert [one.labels for one in after] == [one.labels for one in before]
        assert again.vocabulary.names(["sport", "music"]) == {"sport": "Sports & games"}
        again.add([denn.Document("a game", ("Sports & games",), "new")])  # the name stands for the label
        assert again.store.get(["new"])[0].labels == ("sport",)
        again.rename_label("Sports & games", "games")  # by its name, once more
        assert again.vocabulary.name("sport") == "games"
    assert len(list(folder.glob("vocabulary*.json"))) == 1
    renewed = renew(model)
    assert renewed.vocabulary.name("sport") == "games" and renewed.method is model.method
    assert renew(renewed) is None


def test_the_labels_of_another_model_at_the_same_place_stay_as_they_are(model, folder):
    card = json.loads((folder / "bundle.json").read_text())
    (folder / "bundle.json").write_text(json.dumps(card | {"created": "2020-01-01T00:00:00+00:00"}))
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    with pytest.raises(BundleError, match="now contains another model"):
        model.rename_label("sport", "games")
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before


def test_names_that_cannot_be_given(model, folder):
    with pytest.raises(ConflictError, match="already a label named 'music'"):
        model.rename_label("sport", "music")
    with pytest.raises(UnknownError, match="no label 'nosuch'"):
        model.rename_label("nosuch", "x")
    with pytest.raises(StoreError, match="visible character"):
        model.rename_label("sport", " ")
    with pytest.raises(StoreError, match="not valid Unicode"):
        model.rename_label("sport", "a\udcff")
    with pytest.raises(ConflictError, match="into itself"):
        model.merge_labels(["sport"], "sport")
    with pytest.raises(UnknownError, match="no label 'nosuch'"):
        model.merge_labels(["sport"], "nosuch")
    assert not list(folder.glob("vocabulary*.json")) and not model.vocabulary


def test_merging_until_a_refit_and_undone(model, folder):
    before, counts = model.scores(TEXTS), model.label_counts()
    sport, music = (before.names.index(name) for name in ("sport", "music"))
    both = [one for one in model.store.get(model.store.ids()) if {"sport", "music"} & set(one.labels)]
    assert model.merge_labels(["sport"], "music", source="ann") == counts["sport"]
    (change,) = model.store.history(1)
    assert (change.action, change.source, change.documents) == ("relabel", "ann", counts["sport"])
    now = model.label_counts()
    assert "sport" not in now and now["music"] == len(both)
    with denn.load(folder) as again:
        scores = again.scores(TEXTS)
        assert torch.equal(scores.final[:, sport], torch.zeros(3))
        head = torch.maximum(before.parts["classifier"][:, sport], before.parts["classifier"][:, music])
        assert torch.allclose(scores.parts["classifier"][:, music], head)
        assert "music" in again.predict(TEXTS[:1])[0].labels and "sport" not in again.predict(TEXTS[:1])[0].scores
        again.store.undo(change.number)  # undoes the merge
        after = again.scores(TEXTS)
        assert torch.allclose(after.final, before.final, atol=1e-6) and again.label_counts() == counts
        again.store.undo(again.store.history(1)[0].number)  # and this repeats it
        assert "sport" not in again.label_counts()
        again.add([denn.Document("another goal", ("sport",))])  # a label that is assigned again is a label again
        assert again.label_counts()["sport"] == 1 and again.merges() == {}
        assert "'sport' was merged into 'music', but documents have it again" in again.label_warning(["sport"])
        assert again.label_warning(["music"]) is None


def test_an_undone_merge_stays_undone(model):
    """Even if documents lose the label later for another reason."""
    model.merge_labels(["sport"], "music", source="ann")
    model.store.undo(model.store.history(1)[0].number)
    model.store.relabel(Where(labels=("sport",)), drop=["sport"])
    assert model.merges() == {} and "sport" in model.scores(TEXTS).names
    model.store.undo(model.store.history(1)[0].number)
    model.store.undo(model.store.history(1)[0].number)  # and this repeats the removal, not the merge
    assert model.merges() == {}


def test_merging_back_and_undoing_that_restores_the_first_merge(model):
    model.merge_labels(["sport"], "music")
    model.merge_labels(["music"], "sport")
    assert model.merges() == {"music": "sport"}
    model.store.undo(model.store.history(1)[0].number)
    assert model.merges() == {"sport": "music"}


def test_a_label_without_documents_is_not_merged(model):
    """Such a merge would change no document, so nothing could undo it."""
    model.store.relabel(Where(labels=("sport",)), drop=["sport"])
    with pytest.raises(ConflictError, match="No document has the label 'sport'"):
        model.merge_labels(["sport"], "music")
    assert not model.vocabulary


def test_an_audit_and_an_evaluation_know_of_merges(model, tiny_corpus):
    before = model.evaluate(tiny_corpus.test).headline["micro_f1"]
    model.merge_labels(["sport"], "music")
    merged = model.evaluate(tiny_corpus.test).headline["micro_f1"]
    assert merged > before - 0.1  # documents with the old label count as documents with the new one
    suspects = model.audit(list(tiny_corpus.test)) + model.audit()
    assert not [doubt for suspect in suspects for doubt in suspect.add if doubt.label == "sport"]


def test_merges_are_found_again_only_after_changes(model, monkeypatch):
    model.merge_labels(["sport"], "music")
    assert model.merges() == {"sport": "music"}
    calls = []
    select = type(model.store).select
    monkeypatch.setattr(type(model.store), "select", lambda *given: calls.append(1) or select(*given))
    for _ in range(3):
        model.predict(TEXTS)
    assert not calls
    model.add([denn.Document("a text", ("music",))])
    assert model.merges() == {"sport": "music"} and calls


def test_validation_documents_of_a_refit_keep_their_labels(model, folder, tiny_corpus):
    model.merge_labels(["sport"], "music")
    valid = [one for one in tiny_corpus.test if one.labels] * 2
    refit(folder, valid=[replace(one, id=f"v{n}") for n, one in enumerate(valid)], force=True)
    with denn.load(folder) as again:
        kept = Kept.load(folder / again.card.validation)
    assert any("sport" in one.labels for one in kept.documents)  # the merge may be undone


def test_a_refit_completes_a_merge(model, folder):
    model.merge_labels(["sport"], "music")
    refit(folder, force=True)
    with denn.load(folder) as refitted:
        scores = refitted.method.scores(TEXTS)  # before merged labels are added up
        names = list(scores.names)
        assert scores.parts["classifier"][0, names.index("music")] > 0.5
        assert scores.parts["classifier"][0, names.index("sport")] < 0.2
        assert "music" in refitted.predict(TEXTS[:1])[0].labels


def test_merges_that_follow_each_other_and_turn_back(model):
    model.merge_labels(["sport"], "music")
    model.merge_labels(["music"], "Космос")
    assert model.merges() == {"sport": "Космос", "music": "Космос"}
    assert "Космос" in model.predict(TEXTS[:1])[0].labels
    assert set(model.label_counts()) & {"sport", "music"} == set()
    model.merge_labels(["Космос"], "music")
    assert model.merges() == {"sport": "music", "Космос": "music"}

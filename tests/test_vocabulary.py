"""Models whose labels are ids of a vocabulary: stored as ids, found by names, shown by names."""

import json
import shutil

import pytest

import denn
from denn.bundle import read_card
from denn.errors import BundleError
from denn.progress import Silent
from denn.report.gather import gather
from denn.report.names import with_names
from denn.report.page import render

pytestmark = pytest.mark.slow

TEXT = "referee goal stadium coach"
SPORT = "http://example.org/0"


@pytest.fixture
def copied(named_model, tmp_path):
    return shutil.copytree(named_model, tmp_path / "named")


def test_predictions_are_those_of_a_model_without_names(named_model, tiny_model, names_of_labels):
    with denn.load(named_model) as named, denn.load(tiny_model) as plain:
        mine, theirs = named.predict([TEXT])[0], plain.predict([TEXT])[0]
        assert set(named.labels) == set(names_of_labels) - {"http://example.org/unseen"}
        assert dict((entry.id, entry.name) for entry in named.vocabulary) == names_of_labels
        assert not plain.vocabulary and theirs.names == theirs.labels
    assert SPORT in mine.labels
    assert mine.names == tuple(names_of_labels[label] for label in mine.labels)
    assert mine.names == theirs.labels
    assert [names_of_labels[label] for label in mine.scores] == list(theirs.scores)
    assert "sport" in mine._repr_html_() and SPORT not in mine._repr_html_()


def test_the_folder_holds_ids_and_a_digest_of_the_names(copied, names_of_labels):
    assert set((copied / "labels.txt").read_text().splitlines()) < set(names_of_labels)
    assert "vocabulary.json" in read_card(copied).digests and read_card(copied).format == 4
    (copied / "vocabulary.json").write_text("[]")
    with pytest.raises(BundleError, match=r"vocabulary\.json has changed since it was written"):
        denn.load(copied)


@pytest.mark.parametrize("content", ["{}", '[{"id": 7, "name": "x"}]', '[{"name": "x"}]', "[", "\x00"])
def test_a_damaged_vocabulary_is_one_sentence(copied, content):
    import hashlib

    (copied / "vocabulary.json").write_text(content)
    card = json.loads((copied / "bundle.json").read_text())
    card["digests"]["vocabulary.json"] = hashlib.sha256(content.encode()).hexdigest()
    (copied / "bundle.json").write_text(json.dumps(card))
    with pytest.raises(BundleError, match=r"vocabulary\.json is damaged"):
        denn.load(copied)


def test_documents_are_added_and_evaluated_by_ids_or_names(copied, tiny_corpus):
    with denn.load(copied) as model:
        model.add([denn.Document("a new text", ("sport", "http://example.org/4", "seen nowhere", "brand new"), "new")])
        (document,) = model.store.get(["new"])
        assert document.labels == (SPORT, "http://example.org/4", "http://example.org/unseen", "brand new")
        found = model.evaluate(tiny_corpus.test)  # their labels are names
        assert found.headline["micro_f1"] > 0.6 and not found.unknown_labels
        assert set(model.predict(["a new text"])[0].names) == {"sport", "music", "seen nowhere", "brand new"}
        assert model.audit(list(tiny_corpus.test), count=3) is not None


def test_names_survive_a_refit(copied):
    with denn.refit(copied, force=True) as model:
        assert model.vocabulary.name(SPORT) == "sport"
        assert "sport" in model.predict([TEXT])[0].names


def test_names_survive_a_training_that_continues(copied, tmp_path, tiny_corpus, names_of_labels):
    more = denn.Corpus(tiny_corpus.train, tiny_corpus.valid, name="more")  # labels by name
    with denn.train(more, out=tmp_path / "more", continue_from=copied, effort="quick") as model:
        assert set(model.labels) < set(names_of_labels)
        assert model.vocabulary.name(SPORT) == "sport"


def test_a_report_shows_names(named_model, tiny_corpus):
    with denn.load(named_model) as model:
        found = gather(model, tiny_corpus.test, (), Silent())
        page = render(with_names(found, model.vocabulary), model.card, "tiny")
    assert "example.org" not in page
    assert "haute cuisine" in page and "sport" in page

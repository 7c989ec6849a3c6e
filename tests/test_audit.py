"""`Model.audit`: documents whose labels look wrong, each judged without its own labels."""

import shutil

import pytest
import torch

import denn
from denn.analysis.unseen import Judge, Stored, fold_of
from denn.errors import ConfigError, ConflictError, DataError
from denn.progress import Silent


@pytest.fixture
def model(tiny_model, tmp_path):
    with denn.load(shutil.copytree(tiny_model, tmp_path / "model")) as loaded:
        yield loaded


def clear_documents(corpus):
    """Return documents of one label each, which their words determine."""
    return [document for document in corpus.train[3:] if len(document.labels) == 1]


def test_a_label_that_was_dropped_is_to_be_added(model, tiny_corpus):
    chosen = clear_documents(tiny_corpus)[0]
    (label,) = chosen.labels
    model.store.relabel(chosen.id, [])
    first = model.audit(count=5)[0]
    assert first.document.id == chosen.id
    assert first.add[0].label == label
    assert first.drop == ()
    doubt = first.add[0]
    assert first.suspicion == doubt.suspicion > 0.5
    assert set(doubt.parts) == {"classifier", "neighbours", "words"}
    assert chosen.id not in [neighbour.id for neighbour in first.neighbours]
    assert all(label in neighbour.labels for neighbour in first.neighbours)
    assert {word for word, _ in doubt.words} & set(chosen.text.split())


def test_a_label_that_was_added_is_to_be_dropped(model, tiny_corpus):
    chosen = clear_documents(tiny_corpus)[1]
    wrong = next(label for label in ("sport", "music") if label not in chosen.labels)
    model.store.relabel(chosen.id, add=[wrong])
    suspect = next(one for one in model.audit() if one.document.id == chosen.id)
    assert suspect.rank <= 3
    assert wrong in [doubt.label for doubt in suspect.drop]


def test_a_rejected_label_is_never_suggested(model, tiny_corpus):
    chosen = clear_documents(tiny_corpus)[0]
    (label,) = chosen.labels
    model.store.relabel(chosen.id, reject=[label])
    suspects = [one for one in model.audit(count=1000) if one.document.id == chosen.id]
    suspects += model.audit([denn.Document(chosen.text, ("music", "sport"))])
    assert suspects[-1].drop
    assert all(label not in [doubt.label for doubt in one.add] for one in suspects)


def test_confirmed_labels_are_not_suspected_until_they_change(model, tiny_corpus):
    chosen = clear_documents(tiny_corpus)[0]
    model.store.relabel(chosen.id, [])
    assert model.audit(count=1)[0].document.id == chosen.id
    model.store.relabel(chosen.id, confirm=True)
    assert chosen.id not in [one.document.id for one in model.audit(count=1000)]
    model.store.undo(model.store.history(1)[0].number)
    assert model.audit(count=1)[0].document.id == chosen.id


@pytest.mark.parametrize("labels", [[], ["sport", "music"]])
def test_what_a_document_is_labelled_with_does_not_change_its_own_scores(model, tiny_corpus, labels):
    chosen = clear_documents(tiny_corpus)[0]

    def scores():
        judge = Judge(model.method, Stored(model.method), fold_of(chosen.text), Silent())
        return judge.score([chosen])

    before = scores()
    model.store.relabel(chosen.id, labels)
    after = scores()
    torch.testing.assert_close(after.final, before.final)
    for name, part in before.parts.items():
        torch.testing.assert_close(after.parts[name], part)


def test_documents_of_a_file_are_recognised_by_their_text_and_others_are_judged_by_the_model(model, tiny_corpus):
    stored = clear_documents(tiny_corpus)[0]
    wrong = next(label for label in ("sport", "music") if label not in stored.labels)
    given = [
        denn.Document(stored.text, (wrong,), "other id"),
        denn.Document(tiny_corpus.test[0].text, tiny_corpus.test[0].labels, "new"),
    ]
    assert [Stored(model.method).fold(one) for one in given] == [fold_of(stored.text), None]
    first = model.audit(given)[0]
    assert first.document == given[0]
    assert wrong in [doubt.label for doubt in first.drop]
    assert stored.labels[0] in [doubt.label for doubt in first.add]
    assert stored.id not in [neighbour.id for neighbour in first.neighbours]
    unseen = Judge(model.method, Stored(model.method), None, Silent()).score(given[1:])
    expected = model.score([given[1].text])
    torch.testing.assert_close(unseen.parts["words"], expected.parts["words"])
    torch.testing.assert_close(unseen.parts["classifier"], expected.parts["classifier"])


def test_a_later_label_is_judged_by_the_neighbours(model):
    text = "violin chord goal number"
    model.add([denn.Document(f"{text} {number}", ("late",), f"late-{number}") for number in range(8)])
    model.store.relabel("late-3", [])
    suspect = next(one for one in model.audit(count=1000) if one.document.id == "late-3")
    doubt = next(doubt for doubt in suspect.add if doubt.label == "late")
    assert set(doubt.parts) == {"neighbours"}


def test_fewer_are_returned_where_fewer_are_asked_for_in_order(model):
    found = model.audit(count=1000)
    assert [one.rank for one in found] == list(range(1, len(found) + 1))
    assert [one.suspicion for one in found] == sorted((one.suspicion for one in found), reverse=True)
    assert [one.document for one in model.audit(count=3)] == [one.document for one in found[:3]]


def test_a_model_that_does_not_hear_the_neighbours_is_audited_too(deaf_model):
    with denn.load(deaf_model) as deaf:
        assert all(set(doubt.parts) == {"classifier", "words"} for one in deaf.audit() for doubt in one.add)


def test_documents_that_are_all_in_one_part_are_judged_by_their_neighbours(model, tiny_corpus):
    kept = next(one for one in tiny_corpus.train[1:] if fold_of(one.text) == fold_of(tiny_corpus.train[0].text))
    others = [one.id for one in tiny_corpus.train if one.id not in (tiny_corpus.train[0].id, kept.id)]
    model.remove(others, everything=True)
    found = model.audit()
    assert found
    assert all(set(doubt.parts) == {"neighbours"} for one in found for doubt in (*one.add, *one.drop))


def test_what_cannot_be_audited_is_refused_in_a_sentence(model, tiny_corpus, tmp_path):
    with pytest.raises(DataError, match="no documents"):
        model.audit([])
    with pytest.raises(ConfigError, match="count must be a number from 1 to 10,000, not 0"):
        model.audit(count=0)
    model.remove(denn.Where(), everything=True)
    with pytest.raises(DataError, match=r"at least 2 stored documents, .*; found 0"):
        model.audit()
    with (
        denn.train(tiny_corpus, out=tmp_path / "dummy", method="dummy") as dummy,
        pytest.raises(ConflictError, match="no datastore"),
    ):
        dummy.audit()

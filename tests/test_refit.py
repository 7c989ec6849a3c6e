"""Refit: new labels get a classifier and words, corrections generalise, nothing is tuned on what was learnt from."""

import shutil
from pathlib import Path

import pytest

import denn
from denn.refitting import ONE_IN
from denn.validation import digests_of

NEW = "chess: opening"
MOVES = "gambit bishop knight rook pawn castling".split()


@pytest.fixture
def model(tiny_model, tmp_path):
    """A copy of the tiny model."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def taught(count, labels=(NEW,), words=MOVES, part="later"):
    """Documents of a label that came after training."""
    return [
        denn.Document(" ".join(words[(n + i) % len(words)] for i in range(4)) + f" the {n}", labels, f"{part}-{n}")
        for n in range(count)
    ]


def teach(folder, documents):
    with denn.load(folder) as model:
        model.add(documents)


def is_held_out(id):
    return int(digests_of([id])) % ONE_IN == 0


def test_a_new_label_gets_a_classifier_and_words(model):
    teach(model, taught(30))
    with denn.load(model) as before:
        assert before.predict(["gambit bishop"])[0].parts[NEW].keys() == {"neighbours"}
    with denn.refit(model) as after:
        (prediction,) = after.predict(["gambit bishop knight and a rook"])
        assert prediction.parts[NEW].keys() == {"classifier", "neighbours", "words"}
        assert all(score > 0.5 for score in prediction.parts[NEW].values())
        assert NEW in prediction.labels
        assert {word for word, _ in prediction.words[NEW]} & set(MOVES)
        assert after.labels.names == after.store.labels
        held = sum(is_held_out(document.id) for document in taught(30))
        assert after.card.refitted["documents"] == 90 - held
        assert after.card.refitted["held_out"] == 60 + held
        assert after.card.corpus["label_counts"][-1] == 30 - held
    assert not (model / "head.safetensors").exists() and not (model / "witnesses").exists()

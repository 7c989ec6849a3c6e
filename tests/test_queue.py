"""`Model.queue`: uncertain, unfamiliar and different texts first."""

import pytest
import torch

import denn
from denn.analysis.queue import mean_nearness, worth
from denn.core.choice import expected_errors
from denn.core.thresholds import decide
from denn.errors import ConfigError, ConflictError, DataError


@pytest.fixture(scope="module")
def model(tiny_model):
    with denn.load(tiny_model) as loaded:
        yield loaded


def test_the_first_is_the_one_that_would_teach_most(model, tiny_corpus):
    texts = [document.text for document in tiny_corpus.test]
    found = model.queue(texts, count=5)
    scores = model.score(texts)
    unsure = expected_errors(scores.final, decide(scores.final, model.decision_thresholds(scores)))
    near = mean_nearness(scores.neighbours.similarity)
    assert [one.rank for one in found] == [1, 2, 3, 4, 5]
    assert found[0].text == texts[int(worth(unsure, near).argmax())]
    for one in found:
        row = texts.index(one.text)
        assert one.uncertainty == pytest.approx(float(unsure[row]), abs=1e-5)
        assert one.nearness == pytest.approx(float(near[row]), abs=1e-5)
        (expected,) = model.predict([one.text], evidence=0)
        assert one.prediction.labels == expected.labels
        assert one.prediction.scores == pytest.approx(expected.scores, abs=1e-5)


def test_every_text_is_listed_once_with_the_first_id(model):
    texts = [denn.Document("goal oven match", id="a"), denn.Document("goal oven match", id="b"), "violin orbit"]
    assert {(one.text, one.id) for one in model.queue(texts)} == {("goal oven match", "a"), ("violin orbit", None)}


def test_a_text_like_the_first_comes_after_a_different_one(model, tiny_corpus):
    texts = [document.text for document in tiny_corpus.test]
    first, second, *_ = model.queue(texts, count=10)
    twin = first.text + " the"
    alone = model.queue([first.text, twin, second.text])
    assert [one.text for one in alone][:2] != [first.text, twin]


def test_a_text_that_is_stored_teaches_nothing(model, tiny_corpus):
    stored = tiny_corpus.train[0].text
    unknown = "hurricane goal temple chord"
    assert [one.text for one in model.queue([stored, unknown])] == [unknown, stored]


def test_few_candidates_are_kept_however_many_texts_there_are(model, tiny_corpus):
    texts = (f"{document.text} {number}" for number in range(30) for document in tiny_corpus.test)
    assert len(model.queue(texts, count=2)) == 2


def test_nearness_is_the_mean_of_those_that_are_there():
    nowhere = float("-inf")
    similarity = torch.tensor([[0.9, 0.5, nowhere], [nowhere, nowhere, nowhere], [nowhere, 0.9, 0.5]])
    assert mean_nearness(similarity).tolist() == pytest.approx([0.7, 0.0, 0.7])
    assert float(mean_nearness(torch.tensor([[nowhere, 0.9, 0.9, 0.9, 0.9, 0.4, 0.1]]))) == pytest.approx(0.8), (
        "5 count"
    )


def test_what_cannot_be_ranked_is_refused_in_a_sentence(model, tiny_corpus, tmp_path):
    with pytest.raises(DataError, match="one string"):
        model.queue("a text")
    with pytest.raises(DataError, match="Text 2 is of type int"):
        model.queue(["a text", 3])
    with pytest.raises(DataError, match="no texts"):
        model.queue([])
    with pytest.raises(ConfigError, match="count must be a number from 1 to 10,000, not 0"):
        model.queue(["a text"], count=0)
    with (
        denn.train(tiny_corpus, out=tmp_path / "dummy", method="dummy") as dummy,
        pytest.raises(ConflictError, match="no datastore"),
    ):
        dummy.queue(["a text"])

"""The plain classifier: DENN's network without contrast and without neighbours."""

import pytest
import torch

import denn
from denn.config import make_recipe
from denn.errors import ConfigError, StoreError

pytestmark = pytest.mark.slow  # most tests here train


@pytest.fixture
def settings(tiny_settings) -> dict[str, object]:
    """Parameters with which it learns the tiny corpus in less than a second."""
    return {**{name: tiny_settings[name] for name in tiny_settings if name not in ("k", "gamma")}, "epochs": 3}


@pytest.fixture
def model(tiny_corpus, settings, tmp_path):
    """A plain classifier of the tiny corpus."""
    with denn.train(tiny_corpus, method="bert", out=tmp_path / "bert", **settings) as trained:
        yield trained


def test_its_probabilities_are_those_of_denn_without_contrast(model, tiny_corpus, settings, tmp_path):
    texts = [document.text for document in tiny_corpus.test]
    found = model.scores(texts)
    with denn.train(tiny_corpus, out=tmp_path / "denn", alpha=0.0, **settings) as other:
        expected = other.scores(texts)
        assert found.names == expected.names
        torch.testing.assert_close(found.final, expected.parts["classifier"], rtol=0, atol=1e-6)  # other batches
        assert model.card.training["history"][-1]["micro_f1"] == other.card.training["history"][-1]["micro_f1"]
    with denn.train(tiny_corpus, out=tmp_path / "contrast", alpha=0.5, **settings) as other:
        assert not torch.equal(found.final, other.scores(texts).parts["classifier"])


def test_the_classifier_speaks_alone(model, tiny_corpus):
    texts = [document.text for document in tiny_corpus.test]
    scores = model.scores(texts)
    assert (scores.parts, scores.confidence, scores.neighbours) == ({}, None, None)
    assert all(p.confidence is None and p.neighbours == () for p in model.predict(texts))
    assert set(model.evaluate(tiny_corpus.test).systems) == {"final"}


def test_there_is_no_datastore(model, tiny_corpus, tmp_path):
    assert not (tmp_path / "bert" / "store").exists()
    document = denn.Document("goal", ("sport",), "new")
    for change in (
        lambda: model.add([document]),
        lambda: model.remove(["train-0"]),
        lambda: model.evaluate(tiny_corpus.train, stored=True),
    ):
        with pytest.raises(StoreError, match=r"The method 'bert' keeps no datastore\. Train with a method that does"):
            change()


def test_what_only_denn_has_is_refused():
    for name in ("alpha", "k", "gamma", "view"):
        with pytest.raises(ConfigError, match=name):
            make_recipe("bert", {name: "1"})

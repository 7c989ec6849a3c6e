"""A model with only the word witness: its encoder is not fine-tuned, but still finds neighbours to show."""

import pytest
import torch

import denn
from denn.cli.train import summary
from denn.progress import Silent

pytestmark = pytest.mark.slow  # trains


class Seen(Silent):
    def __init__(self):
        self.notes, self.stages = [], []

    def start(self, stage):
        self.stages.append(stage)

    def note(self, message):
        self.notes.append(message)


@pytest.mark.parametrize("budget", [None, 60.0])
def test_the_encoder_stays_as_it_is(tiny_corpus, tiny_settings, tmp_path, budget):
    seen, settings = Seen(), {**tiny_settings, "time_budget": budget, "witnesses": ("words",)}
    with denn.train(tiny_corpus, out=tmp_path / "model", progress=seen, **settings) as model:
        assert not any(stage.trains for stage in seen.stages)
        assert any(note.startswith("no witness trains the encoder: it stays unchanged") for note in seen.notes)
        assert model.card.training["steps"] == 0 and model.card.training["documents_used"] == len(tiny_corpus.train)
        untouched = model.method.parameters.load_encoder(tiny_settings["encoder"])
        texts = [document.text for document in tiny_corpus.test]
        expected = untouched.encode(untouched.tokenize(texts))
        torch.testing.assert_close(model.embed(texts), expected, atol=1e-5, rtol=0)
        assert all(one.neighbours and not one.confidence for one in model.predict(texts))
        assert model.evaluate(tiny_corpus.test).headline["micro_f1"] > 0.8
        assert not any("too short" in line for line in summary(tmp_path / "model", model))


def test_beside_the_classifier_the_encoder_is_trained(tiny_corpus, tiny_settings, tmp_path):
    settings = {**tiny_settings, "epochs": 1, "allow_poor": True, "witnesses": ("classifier", "words")}
    with denn.train(tiny_corpus, out=tmp_path / "model", **settings) as model:
        assert model.card.training["steps"] > 0

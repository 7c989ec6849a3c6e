"""The contract of every witness, and that a new one takes one file and one line."""

import re
import sys
from pathlib import Path

import pytest
import torch

import denn
from denn.errors import ConfigError
from denn.progress import Silent
from denn.registry import WITNESSES
from denn.report.gather import gather
from denn.report.page import render
from denn.witnesses.texts import Texts

sys.path.insert(0, str(Path(__file__).parent))
pytestmark = pytest.mark.slow
LINE = {"length": "length_witness:LengthWitness"}  # what a package would register as an entry point of denn.witnesses
NAMES = ("classifier", "neighbours", "words", "length")


@pytest.fixture(scope="module")
def model(tmp_path_factory, tiny_corpus, tiny_settings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WITNESSES, "own", WITNESSES.own | LINE)
        out = tmp_path_factory.mktemp("witnesses") / "model"
        denn.train(tiny_corpus, out=out, witnesses=NAMES, **tiny_settings).close()
        with denn.load(out) as loaded:
            yield loaded


def asked(model, texts):
    method = model.method
    return Texts(texts, method.embed, lambda embeddings: method.search(embeddings, method.parameters.k))


def test_every_registered_witness_is_tested_here():
    assert set(WITNESSES.own) == set(NAMES) - {"length"}


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_shares_for_every_label(model, tiny_corpus, name):
    scores = model.method.witnesses[name].scores(asked(model, [document.text for document in tiny_corpus.test]))
    assert scores.shape == (len(tiny_corpus.test), len(tiny_corpus.labels)) and scores.dtype == torch.float32
    assert bool(((scores >= 0) & (scores <= 1)).all())


@pytest.mark.parametrize("name", NAMES)
def test_a_text_is_scored_as_if_alone(model, tiny_corpus, name):
    witness, texts = model.method.witnesses[name], [document.text for document in tiny_corpus.test]
    together = witness.scores(asked(model, texts))
    alone = torch.cat([witness.scores(asked(model, [text])) for text in texts])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_odd_texts_are_scored(model, name):
    texts = ["", " ", "\0\ud800".encode("utf-8", "replace").decode(), "𝔘𝔫𝔦 " * 500, "a" * 100_000, "電車"]
    assert bool(model.method.witnesses[name].scores(asked(model, texts)).isfinite().all())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_gives_the_same_scores(model, tiny_corpus, name, tmp_path):
    witness, texts = model.method.witnesses[name], asked(model, [document.text for document in tiny_corpus.test])
    witness.save(tmp_path / name)
    again = type(witness).load(tmp_path / name, model.method)
    torch.testing.assert_close(again.scores(texts), witness.scores(texts), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_label_that_came_later_needs_the_neighbours(model, name, tmp_path):
    model.add([denn.Document("zeppelin over the harbour", ("airships",), "airship")])
    try:
        (one,) = model.predict(["zeppelin over the harbour town"])
        assert (name in one.parts["airships"]) == (name == "neighbours")
        assert set(one.parts[next(label for label in one.scores if label in model.labels)]) == set(NAMES)
    finally:
        model.remove("airship")


def test_a_label_that_a_witness_does_not_know_is_left_to_the_others(model, tiny_corpus, monkeypatch):
    words, (label, *_) = model.method.witnesses["words"], tiny_corpus.labels.names
    bias = words.bias.copy()
    bias[0] = float("nan")
    monkeypatch.setattr(words, "bias", bias)
    texts = [document.text for document in tiny_corpus.test]
    scores = model.scores(texts)
    assert bool(scores.final.isfinite().all()) and bool(scores.parts["words"][:, 0].isnan().all())
    said = [one.parts[label] for one in model.predict(texts) if label in one.parts]
    assert said and all(set(heard) == set(NAMES) - {"words"} for heard in said)
    assert model.evaluate(tiny_corpus.test).systems["words"]["tuned"]["micro_f1"] > 0
    found = gather(model, tiny_corpus.test, tiny_corpus.valid, Silent())
    assert not re.search(r"\bnan\b", render(found, model.card, "model"), re.IGNORECASE)


def test_one_file_and_one_line_add_a_witness(model, tiny_corpus):
    (one,) = model.predict([tiny_corpus.test[0].text])
    assert all("length" in said for said in one.parts.values())
    assert "length" in model.card.thresholds and model.card.parameters["witnesses"] == NAMES
    assert model.evaluate(tiny_corpus.test).systems["length"]["tuned"]["micro_f1"] > 0


def test_an_unknown_witness_is_said_before_anything_is_learnt(tiny_corpus, tiny_settings, tmp_path):
    with pytest.raises(ConfigError, match=r"Unknown witness 'wrods', expected one of .*Did you mean 'words'\?"):
        denn.train(tiny_corpus, out=tmp_path / "model", witnesses=("classifier", "wrods"), **tiny_settings)
    assert not any(tmp_path.iterdir())

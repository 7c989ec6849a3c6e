"""Effort levels: what they choose and reject, what training with each produces, and how it resumes."""

import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import denn
from denn import tries
from denn.clock import Clock
from denn.encoders import weights
from denn.errors import ConfigError
from denn.methods import cross_fitting
from denn.methods import effort as effort_module
from denn.methods.contrastive import DennParameters
from denn.methods.effort import FOR_MACHINE, Estimate, about, describe, with_effort
from denn.progress import Silent
from denn.training import budget
from denn.training.budget import Work
from denn.training.loop import CHECKPOINT


class Heard(Silent):
    """Progress that records stages and notes, and ends the run when a stage begins for the nth time."""

    def __init__(self, stage: str = "", time: int = 1) -> None:
        self.stage, self.time, self.stages, self.notes = stage, time, [], []

    def start(self, stage):
        self.stages.append(stage.what)
        if self.stages.count(self.stage) == self.time:
            raise KeyboardInterrupt

    def note(self, message):
        self.notes.append(message)


@pytest.fixture
def open_settings(tiny_settings):
    """The tiny settings without a number of epochs, with which training would fine-tune once."""
    return {name: value for name, value in tiny_settings.items() if name != "epochs"}


def estimate(documents: int, seconds_a_token: float) -> Estimate:
    work = Work(
        train_tokens=30 * documents, valid_tokens=3 * documents, validation_tokens=3 * documents, documents=documents,
        step_tokens=30.0 * 32 * 2, stores=True, head_epochs=30, head_epoch_seconds=0.1, seconds_a_token=seconds_a_token,
        load_seconds=1.0,
    )  # fmt: skip
    return Estimate(work, words=5.0, loop=10 * 7 * work.embedding())


def test_the_level_suits_machine_and_time():
    small, large = estimate(500, 1e-4), estimate(50_000, 1e-4)
    assert small.fine_tuning < 600 < large.fine_tuning and large.quick < 300
    assert small.suits(Clock(), accelerated=False) == "balanced"
    assert large.suits(Clock(), accelerated=False) == "quick"
    assert large.suits(Clock(), accelerated=True) == "balanced"
    assert large.suits(Clock(3600), accelerated=False) == "balanced"
    assert large.suits(Clock(large.quick + 10), accelerated=False) == "quick"


def test_the_plan_says_what_is_done_and_how_long_it_takes():
    large, parameters = estimate(50_000, 1e-4), DennParameters()
    said = describe(large, "quick", FOR_MACHINE, parameters, Clock())
    assert said.startswith("effort quick, which suits this machine: learn from 50,000 documents without changing the ")
    assert f"about {about(large.quick)}; --effort balanced would also fine-tune it, about 3." in said
    said = describe(large, "balanced", "", parameters, Clock(3600))
    assert said.startswith("effort balanced: learn") and "at most 10 epochs, about 3." in said
    assert said.endswith("until the time budget of 60 min ends; keep the model that is better on validation documents")
    assert [about(seconds) for seconds in (0.2, 45, 200, 7200)] == ["1 s", "45 s", "3 min", "2.0 h"]


def test_a_slow_head_learns_for_a_few_epochs_even_without_a_time_budget():
    work = estimate(500, 1e-4).work
    assert [replace(work, head_epoch_seconds=s).epochs_of_head(math.inf) for s in (0.0, 1.0, 20.0, 1e6)] == [
        30,
        30,
        9,
        1,
    ]


def test_what_is_given_wins_over_what_a_level_chooses(monkeypatch):
    assert with_effort("denn", {}, Silent()) == {"effort": "auto", "trained_layers": "auto"}
    assert with_effort("denn", {"effort": "balanced", "trained_layers": None}, Silent())["trained_layers"] is None
    assert with_effort("denn", {"epochs": 3}, Silent()) == {"epochs": 3, "effort": None}
    assert with_effort("denn", {"effort": None}, Silent()) == {"effort": None}
    assert with_effort("br", {"min_df": 1}, Silent()) == {"min_df": 1}
    everything = {**vars(DennParameters()), "effort": "quick"}
    assert with_effort("denn", everything, Silent()) == everything
    monkeypatch.setattr(effort_module, "is_installed", lambda name: name == "mpnet")
    assert with_effort("denn", {"effort": "best"}, Silent())["encoder"] == "mpnet"
    assert with_effort("denn", {"effort": "best", "encoder": "minilm"}, Silent())["encoder"] == "minilm"
    assert "encoder" not in with_effort("denn", {"effort": "best"}, Silent(), continues=True)
    monkeypatch.setattr(effort_module, "is_installed", lambda name: False)
    assert "encoder" not in with_effort("denn", {"effort": "best"}, heard := Heard())
    assert heard.notes == ["the encoder mpnet is not installed; using minilm"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"effort": "quick", "epochs": 3}, "epochs = 3, but quick does not train the encoder. Leave out epochs"),
        ({"effort": "best", "epochs": 0}, "effort = 'best' and epochs = 0, expected at least 1 epoch"),
        ({"effort": "lazy"}, "effort must be 'auto', 'quick', 'balanced' or 'best', not 'lazy'"),
    ],
)
def test_what_does_not_go_together_is_refused_at_once(tiny_corpus, tmp_path, given, message):
    with pytest.raises(ConfigError, match=message) as refused:
        denn.train(tiny_corpus, out=tmp_path / "model", **given)
    assert "\n" not in str(refused.value) and not list(tmp_path.iterdir())


def test_weights_are_installed_if_all_their_packages_are(monkeypatch, tmp_path):
    monkeypatch.setenv("DENN_CACHE", str(tmp_path))
    zipped = weights.Carried(("no-such-package==1",), "0123456789abcdef", zipped=True)
    monkeypatch.setitem(weights.CARRIED, "made", zipped)
    assert not weights.is_installed("made")
    folder = tmp_path / "made-0123456789abcdef"
    folder.mkdir()
    (folder / "model.safetensors").touch()
    assert weights.is_installed("made"), "unpacked"
    monkeypatch.setitem(weights.CARRIED, "made", replace(zipped, packages=("torch==1",), zipped=False))
    assert weights.is_installed("made")


def test_quick_leaves_the_encoder_as_it_is(tiny_corpus, tiny_encoder, open_settings, tmp_path):
    with denn.train(
        tiny_corpus, out=tmp_path / "model", effort="quick", progress=(heard := Heard()), **open_settings
    ) as m:
        assert m.card.parameters["effort"] == "quick"
        assert m.card.training["frozen"] and m.card.training["steps"] == 0
        assert m.card.metrics["micro_f1"] > 0.5 and len(m.store) == len(tiny_corpus.train)
    assert heard.notes[0].startswith("effort quick: learn from 60 documents")
    before, after = (
        load_file(folder / "model.safetensors") for folder in (tiny_encoder, tmp_path / "model" / "encoder")
    )
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())


def test_balanced_keeps_what_validates_better(tiny_corpus, open_settings, tmp_path):
    alone = {**open_settings, "witnesses": ["classifier"], "allow_poor": True}
    kept = {}
    for epochs, rate in ((8, 5e-3), (1, 0.3)):
        settings = {**alone, "effort": "balanced", "epochs": epochs, "learning_rate": rate}
        with denn.train(tiny_corpus, out=tmp_path / str(epochs), progress=(heard := Heard()), **settings) as model:
            facts = model.card.training["effort"]
            assert model.card.parameters["effort"] == "balanced"
            assert model.card.metrics["micro_f1"] == max(facts["quick"], facts["fine_tuned"])
            assert model.card.training["frozen"] is not facts["kept_fine_tuned"]
            assert model.card.training["trained_share"] == (0.5 if facts["kept_fine_tuned"] else 0.0), "on a CPU"
            assert f"keeping the model {'with' if facts['kept_fine_tuned'] else 'without'} it" in heard.notes[-1]
            kept[epochs] = facts["kept_fine_tuned"]
            assert len(model.predict([tiny_corpus.test[0].text])) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(map(str, kept)), "nothing else is left"
    assert kept == {8: True, 1: False}


@pytest.mark.parametrize(("time_budget", "enough"), [(None, 500), (600.0, 500), (600.0, 10**9)])
def test_with_enough_time_fine_tuning_is_that_of_a_plain_training(
    tiny_corpus, open_settings, tmp_path, monkeypatch, time_budget, enough
):
    settings = {**open_settings, "witnesses": ["classifier"], "epochs": 8, "trained_layers": None}
    with denn.train(tiny_corpus, out=tmp_path / "plain", **settings) as model:
        plain = model.card
    settings |= {"effort": "balanced", "time_budget": time_budget}
    monkeypatch.setattr(tries, "ENOUGH_STEPS", enough)
    with denn.train(tiny_corpus, out=tmp_path / "model", **settings) as model:
        assert model.card.training["effort"]["kept_fine_tuned"]
        same = model.card.digests["head.safetensors"] == plain.digests["head.safetensors"]
        assert same == (enough == 500), "it starts from the head that has learnt where time is short"


def test_a_collapse_leaves_the_model_without_fine_tuning(tiny_corpus, open_settings, tmp_path):
    settings = {**open_settings, "effort": "balanced", "epochs": 1, "batch_size": 60, "learning_rate": 1e6}
    with denn.train(tiny_corpus, out=tmp_path / "model", progress=(heard := Heard()), **settings) as model:
        assert model.card.training["frozen"] and model.card.training["effort"]["fine_tuned"] is None
    assert heard.notes[-1].endswith("keeping the model without fine-tuning")


def test_too_little_time_to_fine_tune_leaves_the_quick_model(tiny_corpus, open_settings, tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "FEWEST_STEPS", 10**9)
    settings = {**open_settings, "effort": "balanced", "time_budget": 60.0}
    with denn.train(tiny_corpus, out=tmp_path / "model", progress=(heard := Heard()), **settings) as model:
        assert model.card.training["frozen"] and model.card.parameters["effort"] == "balanced"
    assert "The time budget of 60 s leaves too little time to fine-tune the encoder; keeping" in heard.notes[-1]


def test_an_interrupted_fine_tuning_resumes_without_the_first_part(tiny_corpus, open_settings, tmp_path):
    settings = {**open_settings, "effort": "balanced", "epochs": 2}
    with denn.train(tiny_corpus, out=tmp_path / "whole", **settings) as whole:
        expected = whole.card
    with pytest.raises(KeyboardInterrupt):
        denn.train(tiny_corpus, out=tmp_path / "model", progress=Heard("training"), **settings)
    assert (tmp_path / "model.training" / "first" / "bundle.json").is_file() and not (tmp_path / "model").exists()
    with denn.train(tiny_corpus, out=tmp_path / "model", progress=(heard := Heard()), **settings) as model:
        assert model.card.digests == expected.digests and model.card.training["effort"] == expected.training["effort"]
    assert "training the head" not in heard.stages and "training" in heard.stages
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "whole"]


def test_a_resumed_fine_tuning_goes_on_though_the_machine_is_slower(tiny_corpus, open_settings, tmp_path, monkeypatch):
    settings = {**open_settings, "effort": "auto", "epochs": 1}
    monkeypatch.setattr(cross_fitting, "FEW", 0)
    monkeypatch.setattr(Estimate, "suits", lambda *_: "balanced")
    with pytest.raises(KeyboardInterrupt):
        denn.train(tiny_corpus, out=tmp_path / "model", progress=Heard("training"), **settings)
    assert not (tmp_path / "model.training" / CHECKPOINT).exists(), "it is killed before its first checkpoint"
    monkeypatch.setattr(Estimate, "suits", lambda *_: "quick")
    with denn.train(tiny_corpus, out=tmp_path / "model", **settings) as model:
        assert model.card.parameters["effort"] == "balanced" and model.card.training["effort"]["fine_tuned"] is not None


def test_an_interrupted_fine_tuning_can_end_with_the_quick_model(tiny_corpus, open_settings, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        denn.train(tiny_corpus, out=tmp_path / "model", progress=Heard("training"), effort="balanced", **open_settings)
    heard = Heard()
    with denn.train(tiny_corpus, out=tmp_path / "model", progress=heard, effort="quick", **open_settings) as model:
        assert model.card.training["frozen"] and model.card.parameters["effort"] == "quick"
    assert heard.stages == ["measuring the speed of this machine"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_interrupted_first_part_begins_again(tiny_corpus, open_settings, tmp_path):
    settings = {**open_settings, "effort": "balanced", "epochs": 1}
    with pytest.raises(KeyboardInterrupt):
        denn.train(tiny_corpus, out=tmp_path / "model", progress=Heard("writing the model"), **settings)
    assert not (tmp_path / "model.training" / "first").exists()
    with denn.train(tiny_corpus, out=tmp_path / "model", progress=(heard := Heard()), **settings) as model:
        assert model.card.parameters["effort"] == "balanced"
    assert "training the head" in heard.stages


def test_without_validation_the_fine_tuned_model_is_kept(tiny_corpus, open_settings, tmp_path):
    settings = {**open_settings, "effort": "balanced", "epochs": 1}
    with denn.train(denn.Corpus(train=tiny_corpus.train), out=tmp_path / "model", **settings) as model:
        assert model.card.training["effort"]["kept_fine_tuned"] and model.card.training["steps"] == 4


def test_a_model_of_words_alone_is_trained_once(tiny_corpus, open_settings, tmp_path):
    settings = {**open_settings, "effort": "balanced", "witnesses": ["words"], "combination": "average"}
    with denn.train(tiny_corpus, out=tmp_path / "model", progress=(heard := Heard()), **settings) as model:
        assert model.card.training["steps"] == 0 and "effort" not in model.card.training
    assert heard.stages.count("writing the model") == 1


def test_by_default_few_documents_are_not_fine_tuned(tiny_corpus, open_settings, tmp_path):
    with denn.train(tiny_corpus, out=tmp_path / "model", progress=(heard := Heard()), **open_settings) as model:
        assert model.card.parameters["effort"] == "quick" and model.card.training["cross_fitted"] == 60
    assert heard.notes[0].startswith("effort quick, which suits so few documents: learn from 60 documents")
    assert "scoring training documents in folds" in heard.stages


def test_by_default_a_corpus_is_fine_tuned_and_epochs_mean_one_fine_tuning(
    tiny_corpus, open_settings, tmp_path, monkeypatch
):
    monkeypatch.setattr(cross_fitting, "FEW", 0)
    with denn.train(tiny_corpus, out=tmp_path / "default", progress=(heard := Heard()), **open_settings) as model:
        assert model.card.parameters["effort"] == "balanced" and model.card.training["effort"]["quick"] > 0.5
    assert heard.notes[0].startswith("effort balanced, which suits this machine: learn from 60 documents")
    with denn.train(
        tiny_corpus, out=tmp_path / "plain", progress=(heard := Heard()), epochs=2, **open_settings
    ) as model:
        assert model.card.parameters["effort"] is None and "effort" not in model.card.training
    assert "training the head" not in heard.stages

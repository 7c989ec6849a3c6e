"""Frozen lower layers: their outputs are computed once and kept, and their weights do not change."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import denn
from denn.encoders.transformer import TransformerEncoder
from denn.errors import ConfigError
from denn.methods.contrastive import DennParameters, DennTraining
from denn.methods.denn import DENN
from denn.progress import Silent
from denn.training import budget, kept
from denn.training.budget import MARGIN, Work
from denn.training.kept import KeptStates, embed, fits, keep, room_for

TEXTS = ["goal match team", "", "the oven and the butter sauce of a chef", "kyoto", "orbit rocket planet comet galaxy"]


class Interrupting(Silent):
    def start(self, stage):
        if stage.what == "writing the model":
            raise KeyboardInterrupt


class Heard(Silent):
    def __init__(self):
        self.stages = []

    def start(self, stage):
        self.stages.append(stage.what)


@pytest.fixture
def partly(tiny_settings):
    """The tiny settings with one of two layers to train."""
    return {**tiny_settings, "epochs": 3, "trained_layers": 1, "checkpoint_seconds": 0.0}


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "encoder" / "model.safetensors")


def train(corpus, folder, **settings) -> dict[str, torch.Tensor]:
    denn.train(corpus, out=folder, allow_poor=True, **settings).close()
    return weights_of(folder)


def are_equal(some, others) -> bool:
    return some.keys() == others.keys() and all(torch.equal(tensor, others[name]) for name, tensor in some.items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tiny_encoder", "tiny_roberta", "tiny_mpnet"])
@pytest.mark.parametrize("trained", [1, 2])
def test_kept_states_give_the_embeddings_of_the_whole_encoder(kind, trained, request, tmp_path):
    encoder = TransformerEncoder.load(str(request.getfixturevalue(kind)), max_length=12, precision="float32")
    tokens = encoder.tokenize(TEXTS)
    whole = encoder.encode(tokens)
    encoder.freeze_below(trained)
    states = keep(encoder, tokens, tmp_path)
    assert states.flat.dtype == torch.float16 and states.flat.shape == (len(tokens.flat), encoder.width)
    assert (encoder.encode(states) - whole).abs().max() < 2e-3 * whole.abs().max()
    assert torch.equal(encoder.encode(tokens), whole), "ids are still read"
    part = states.select(torch.tensor([4, 2]))
    assert torch.allclose(encoder.encode(part), encoder.encode(states)[[4, 2]], atol=1e-5)


@pytest.mark.parametrize("kind", ["tiny_encoder", "tiny_roberta", "tiny_mpnet"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_states_that_are_kept_while_texts_are_embedded_change_neither(kind, precision, request, tmp_path):
    encoder = TransformerEncoder.load(str(request.getfixturevalue(kind)), max_length=12, precision=precision)
    encoder.freeze_below(1)
    tokens, heard = encoder.tokenize(TEXTS), []
    states = room_for(encoder, tokens, tmp_path)
    embeddings = embed(encoder, tokens, torch.arange(5), states, heard.append, 10)
    assert torch.equal(embeddings, encoder.encode(tokens)) and heard[-1] == 15
    assert torch.equal(states.flat, keep(encoder, tokens, tmp_path).flat)
    states.flat.zero_()
    part = torch.tensor([3, 0])
    assert torch.equal(embed(encoder, tokens, part, states, heard.append), encoder.encode(tokens.select(part)))
    assert (
        states.select(torch.tensor([0, 3])).flat.any(1).all() and not states.select(torch.tensor([1, 2, 4])).flat.any()
    )


def test_kept_states_are_those_of_the_very_same_texts(tiny_encoder, tmp_path):
    encoder = TransformerEncoder.load(str(tiny_encoder), precision="float32")
    encoder.freeze_below(1)
    tokens = encoder.tokenize(TEXTS)
    kept_states = KeptStates(tokens, states := keep(encoder, tokens, tmp_path))
    assert kept_states.of(encoder.tokenize(TEXTS)) is states
    assert kept_states.of(encoder.tokenize(TEXTS[:4])) is None
    assert kept_states.of(encoder.tokenize(["match goal team", *TEXTS[1:]])) is None, "as long, but other words"
    assert KeptStates().of(tokens) is None


class Counting(Heard):
    """Progress that counts the tokens processed by the frozen layers once documents are embedded."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.tokens, lower = 0, TransformerEncoder.lower

        def counted(encoder, ids, *rest):
            self.tokens += len(ids) if "embedding training documents" in self.stages else 0
            return lower(encoder, ids, *rest)

        monkeypatch.setattr(TransformerEncoder, "lower", counted)


@pytest.mark.parametrize("in_memory", [2**30, 0])
def test_fine_tuning_after_quick_starts_from_its_states(
    tiny_corpus, tiny_encoder, partly, tmp_path, monkeypatch, in_memory
):
    """The model is bit for bit the same as if the frozen layers had read the documents twice."""
    monkeypatch.setattr(kept, "IN_MEMORY", in_memory)
    cards, tokens, stage = {}, {}, "running training documents through the frozen layers"
    for name in ("once", "twice"):
        with monkeypatch.context() as patched:
            counting = Counting(patched)
            if name == "twice":
                patched.setattr(KeptStates, "of", lambda self, tokens: None)
            settings = {**partly, "effort": "balanced", "progress": counting}
            with denn.train(tiny_corpus, out=tmp_path / name, **settings) as model:
                cards[name], tokens[name] = model.card, counting.tokens
        assert (stage in counting.stages) == (name == "twice")
    assert cards["once"].training["effort"] == cards["twice"].training["effort"]
    assert cards["once"].training["effort"]["kept_fine_tuned"] and cards["once"].training["trained_share"] == 0.5
    assert cards["once"].digests == cards["twice"].digests
    texts = [document.text for document in tiny_corpus.train]
    once = len(TransformerEncoder.load(str(tiny_encoder), precision="float32").tokenize(texts).flat)
    assert tokens["twice"] - tokens["once"] == once
    assert {path.name for path in tmp_path.iterdir()} == {"once", "twice"}


def test_states_in_a_mapped_file_are_those_in_memory_and_the_file_has_no_name(tiny_encoder, tmp_path, monkeypatch):
    encoder = TransformerEncoder.load(str(tiny_encoder), precision="float32")
    encoder.freeze_below(1)
    tokens = encoder.tokenize(TEXTS)
    in_memory = keep(encoder, tokens, tmp_path)
    monkeypatch.setattr(kept, "IN_MEMORY", 0)
    mapped = keep(encoder, tokens, tmp_path)
    assert torch.equal(mapped.flat, in_memory.flat) and not list(tmp_path.iterdir())
    assert fits(encoder, 1000, tmp_path)
    assert not fits(encoder, 10**15, tmp_path), "more than any disk holds"


def test_dropout_makes_views_of_kept_states_differ_in_the_trained_layers_alone(tiny_encoder, tmp_path):
    encoder = TransformerEncoder.load(str(tiny_encoder), precision="float32").train()
    encoder.freeze_below(1)
    ids, layout = encoder.tokenize(TEXTS).pack(torch.arange(5))
    assert torch.equal(encoder.lower(ids, layout), encoder.lower(ids, layout))
    assert not torch.equal(encoder(ids, layout), encoder(ids, layout))


def test_frozen_weights_stay_bit_for_bit_and_the_others_learn(tiny_corpus, tiny_encoder, partly, tmp_path):
    after = train(tiny_corpus, tmp_path / "model", progress=(heard := Heard()), **partly)
    before = load_file(tiny_encoder / "model.safetensors")
    changed = {name for name, tensor in after.items() if not torch.equal(before[name], tensor)}
    assert changed and all(".layer.1." in name for name in changed)
    assert "running training documents through the frozen layers" in heard.stages
    with denn.load(tmp_path / "model") as model:
        assert model.card.training["trained_share"] == 0.5
        assert model.evaluate(tiny_corpus.test).headline["micro_f1"] > 0.5


def test_mapped_states_train_the_same_weights_as_states_in_memory(tiny_corpus, partly, tmp_path, monkeypatch):
    in_memory = train(tiny_corpus, tmp_path / "memory", **partly)
    monkeypatch.setattr(kept, "IN_MEMORY", 0)
    assert are_equal(train(tiny_corpus, tmp_path / "mapped", **partly), in_memory)
    assert {path.name for path in tmp_path.iterdir()} == {"memory", "mapped"}


def test_without_room_the_frozen_layers_run_in_every_step(tiny_corpus, tiny_encoder, partly, tmp_path, monkeypatch):
    with_room = train(tiny_corpus, tmp_path / "kept", **partly)
    monkeypatch.setattr(kept, "IN_MEMORY", 0)
    monkeypatch.setattr(kept, "SPARE", 2**80)
    without = train(tiny_corpus, tmp_path / "again", progress=(heard := Heard()), **partly)
    assert not any("frozen" in stage for stage in heard.stages)
    lower = [name for name in without if ".layer.1." not in name]
    assert all(torch.equal(without[name], with_room[name]) for name in lower)


def test_a_view_with_other_tokens_runs_the_frozen_layers_in_every_step(tiny_corpus, tiny_encoder, partly, tmp_path):
    after = train(tiny_corpus, tmp_path / "model", progress=(heard := Heard()), view="shuffle", **partly)
    assert not any("frozen" in stage for stage in heard.stages)
    before = load_file(tiny_encoder / "model.safetensors")
    assert all((".layer.1." in name) or torch.equal(before[name], tensor) for name, tensor in after.items())


def test_a_resumed_training_takes_the_steps_of_an_uninterrupted_one(tiny_corpus, partly, tmp_path):
    whole = train(tiny_corpus, tmp_path / "whole", **partly)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_corpus, tmp_path / "model", progress=Interrupting(), **partly)
    for file in (tmp_path / "model.training").glob("best-*"):
        assert file.stat().st_size > 0
    assert are_equal(train(tiny_corpus, tmp_path / "model", **partly), whole)


def test_a_training_that_collapses_goes_back(tiny_corpus, tiny_encoder, partly, tmp_path, monkeypatch):
    validate, validations = DennTraining.validate, []

    def poisoned(self):
        validations.append(self)
        if len(validations) == 2:
            self.network.encoder.model.encoder.layer[1].output.dense.weight.data.fill_(torch.nan)
        return validate(self)

    monkeypatch.setattr(DennTraining, "validate", poisoned)
    after = train(tiny_corpus, tmp_path / "model", **partly)
    with denn.load(tmp_path / "model") as model:
        assert [entry["back_to"] for entry in model.card.training["collapses"]] == [4]
        assert model.card.training["steps"] == 12
    before = load_file(tiny_encoder / "model.safetensors")
    assert {".layer.1." in name for name, tensor in after.items() if not torch.equal(before[name], tensor)} == {True}
    assert all(bool(tensor.isfinite().all()) for tensor in after.values())


def test_a_continued_model_keeps_its_frozen_layers(tiny_corpus, tiny_model, partly, tmp_path):
    settings = {name: value for name, value in partly.items() if name not in ("encoder", "precision")}
    after = train(tiny_corpus, tmp_path / "new", continue_from=tiny_model, **settings)
    before = weights_of(tiny_model)
    assert {".layer.1." in name for name, tensor in after.items() if not torch.equal(before[name], tensor)} == {True}


def test_more_layers_than_there_are_are_refused(tiny_corpus, tiny_distilbert, partly, tmp_path):
    with pytest.raises(ConfigError, match="Got trained_layers = 3, but the encoder has 2 layers"):
        train(tiny_corpus, tmp_path / "model", **{**partly, "trained_layers": 3})
    other = {**partly, "encoder": str(tiny_distilbert)}
    with pytest.raises(ConfigError, match="but distilbert always trains all layers"):
        train(tiny_corpus, tmp_path / "model", **other)
    train(tiny_corpus, tmp_path / "model", **{**other, "trained_layers": "auto", "epochs": 1})


@pytest.mark.parametrize(("chosen", "rate"), [(None, 1e-3), (1, 1e-3), ("auto", 2e-3)])
def test_a_part_that_was_not_asked_for_learns_at_twice_the_rate(tiny_corpus, tiny_encoder, chosen, rate):
    p = DennParameters(encoder=str(tiny_encoder), learning_rate=1e-3, trained_layers=chosen)
    encoder = p.new_encoder(tiny_corpus)
    p.freeze(encoder, torch.device("cpu"))
    *_, last, head = DENN(p).make(encoder, 6).groups(p)
    assert (last["lr"], head["lr"]) == (rate, 1e-3)


def test_a_gpu_trains_all_layers_unless_asked(tiny_corpus, tiny_encoder):
    p = DennParameters(encoder=str(tiny_encoder), trained_layers="auto")
    encoder = p.new_encoder(tiny_corpus)
    p.freeze(encoder, torch.device("cuda"))
    assert encoder.frozen_layers is None and encoder.trained_share == 1.0


def test_a_step_costs_what_is_trained_and_what_is_not_kept():
    work = Work(
        train_tokens=100_000, valid_tokens=10_000, validation_tokens=10_000, documents=1000, step_tokens=1000.0,
        stores=True, head_epochs=0, head_epoch_seconds=0.1, seconds_a_token=1e-3, load_seconds=0.0,
    )  # fmt: skip
    again = replace(work, trained=0.25)
    once = replace(again, keeps=True)
    passes = budget.STEP_PASSES
    assert [w.step() for w in (work, again, once)] == pytest.approx([passes, 0.25 * passes + 0.75, 0.25 * passes])
    assert [w.keeping() for w in (work, again, once)] == pytest.approx([0, 0, 0.75 * 110])
    assert replace(once, kept_tokens=100_000).keeping() == pytest.approx(0.75 * 10), "validation documents alone"
    rest = MARGIN * (25 + 2.5 + 10 + once.writing())
    assert once.after_loop() == pytest.approx(rest)
    assert once.steps(rest + MARGIN * (82.5 + 10 * 0.25 * passes)) == pytest.approx(10)
    start = replace(once, head_epochs=10)
    assert start.steps(rest + MARGIN * (82.5 + 25 + 1 + 10 * 0.25 * passes)) == pytest.approx(10)

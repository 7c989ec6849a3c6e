"""Seq2Set: the reward and its gradient, the draft that the set decoder sees, and two stages that survive a kill."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

import denn
from denn.errors import TrainingError
from denn.progress import Silent
from denn.training.network import Batch
from denn_bench.encoders.words import WordEncoder
from denn_bench.systems.seq2set import FullSetNetwork, Seq2Set, Seq2SetParameters, SetNetwork, _second_stage
from denn_bench.systems.sequences import SequenceNetwork, sequence_loss, target_sequences

from .made import packed, scattered
from .small import SMALL as SIZES

TEXTS = ["goal match team", "oven", "orbit rocket planet comet goal match", ""]
SMALL = Seq2SetParameters(word_width=5, hidden=3, dropout=0.0, beam=40, precision="float32")
GOLD = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]]).bool()
SETS = [{0, 2}, set(), {0, 1, 2}, {1}]
FORMS = pytest.mark.parametrize("form", ["simple", "full"])


def network(form="simple", **changes) -> SetNetwork:
    torch.manual_seed(0)
    p = replace(SMALL, form=form, **changes)
    encoder = WordEncoder.of(TEXTS, size=20, width=p.word_width, max_length=9, precision=p.precision)
    made = Seq2Set(p).make(encoder, 3)
    made.longest.fill_(3)
    return scattered(made)


def batch_of(made, texts=TEXTS, gold=GOLD) -> Batch:
    return Batch(*packed(made, texts), gold, None)


def f1(found: set, gold: set) -> float:
    return 2 * len(found & gold) / (len(found) + len(gold)) if found or gold else 1.0


def walk(made, text, sequence=None) -> tuple[list[int], float]:
    """Take one text through the decoder that counts, along a sequence or greedily: tokens and log-probability."""
    step, state = made.decoder(*made.read(*packed(made, [text])))
    tokens, total, last = [], 0.0, made.start_token
    while last != made.end:
        logits, state = step(torch.tensor([last]), state)
        logits = logits[0].clone()
        logits[tokens] = -math.inf
        last = int(logits.argmax()) if sequence is None else sequence[len(tokens)]
        total += float(torch.log_softmax(logits, 0)[last])
        tokens.append(last)
    return tokens, total


@FORMS
@torch.no_grad()
def test_the_baseline_is_the_reward_of_the_greedy_set(form):
    made = network(form)
    expected = [f1(set(walk(made, text)[0]) - {made.end}, gold) for text, gold in zip(TEXTS, SETS, strict=True)]
    assert made.baseline(batch_of(made)).tolist() == pytest.approx(expected)


@FORMS
def test_the_baseline_has_dropout_between_layers_and_no_gradient(form):
    made = network(form, dropout=0.5).train()
    batch = batch_of(made)
    found = [made.baseline(batch) for _ in range(20)]
    assert not all(torch.equal(found[0], other) for other in found[1:])
    assert not found[0].requires_grad and made.head_dropout == 0.0
    assert all(module.training for module in made.modules())  # training goes on


@FORMS
@torch.no_grad()
def test_the_reinforced_loss_by_hand(form):
    made = network(form, set_weight=1.0)
    made.reinforced = True
    batch = batch_of(made)
    torch.manual_seed(3)
    loss = float(made.loss(batch))
    torch.manual_seed(3)
    tokens, _ = made.write(*made.decoder(*made.read(batch.ids, batch.layout)))
    expected = 0.0
    for text, gold, row in zip(TEXTS, SETS, tokens.tolist(), strict=True):
        sampled = row[: row.index(made.end) + 1]
        greedy, _ = walk(made, text)
        advantage = f1(set(sampled) - {made.end}, gold) - f1(set(greedy) - {made.end}, gold)
        expected -= advantage * walk(made, text, sampled)[1] / 4
    assert loss == pytest.approx(expected, abs=1e-5)
    assert abs(expected) > 1e-3  # something was better or worse than greedy


@FORMS
def test_the_reinforced_stage_makes_better_sets(form):
    """Some steps of the gradient raise the greedy reward of a decoder that knows nothing."""
    made = network(form).train()
    made.reinforced = True
    batch, weights = batch_of(made), list(made.parameters())
    torch.manual_seed(0)
    before = float(made.baseline(batch).mean())
    for _ in range(10):
        for weight, gradient in zip(weights, torch.autograd.grad(made.loss(batch), weights), strict=True):
            weight.data -= 0.5 * gradient
    assert float(made.baseline(batch).mean()) > before + 0.2


@torch.no_grad()
def test_the_simple_form_is_first_taught_as_a_sequence():
    made = network()
    batch = batch_of(made)
    assert torch.allclose(made.loss(batch), SequenceNetwork.loss(made, batch))


@pytest.mark.parametrize("weight", [0.0, 0.8, 1.0])
@torch.no_grad()
def test_the_full_form_weighs_both_decoders(weight):
    made = network("full", set_weight=weight)
    batch, targets = batch_of(made), target_sequences(GOLD)
    first = SequenceNetwork.loss(made, batch)
    step, state = made.decoder(*made.read(batch.ids, batch.layout))
    last, logits = torch.full((4,), made.start_token), []
    for place in range(targets.shape[1]):
        z, state = step(last, state)
        logits.append(z)
        last = targets[:, place].clamp(min=0)
    second = sequence_loss(torch.stack(logits, 1), targets)
    assert torch.allclose(made.loss(batch), (1 - weight) * first + weight * second)


@torch.no_grad()
def test_in_the_full_form_the_first_decoder_is_always_taught():
    made = network("full", set_weight=0.0)
    batch = batch_of(made)
    taught = made.loss(batch)
    made.reinforced = True
    assert torch.allclose(made.loss(batch), taught)


@torch.no_grad()
def test_the_set_decoder_attends_to_words_and_draft():
    made = network("full", decoder_layers=1)
    made.head.weight *= 3  # so that drafts differ
    memory, state = made.read(*packed(made, TEXTS))
    draft = made.draft(memory, state)
    step, start = made.decoder(memory, state)
    logits, _ = step(torch.full((4,), made.start_token), start)
    second = made.second

    def look(attention, query, states):
        shares = torch.softmax(states @ torch.tanh(attention.query(query)), 0)
        return sum(share * state for share, state in zip(shares, states, strict=True))

    for text, size in enumerate([3, 1, 6, 1]):
        words = memory.states[text, :size]
        written = draft.states[text][draft.real[text]]
        first = torch.cat([look(second.words, state[0][text], words), look(second.draft, state[0][text], written)])
        inputs = torch.cat([made.label_vectors.weight[made.start_token], first])
        output, _ = second.cells.cells[0](inputs[None], (state[0][text][None], state[1][text][None]))
        contexts = [look(second.words, output[0], words), look(second.draft, output[0], written)]
        expected = second.head(torch.tanh(second.joined(torch.cat([output[0], *contexts]))))
        assert torch.allclose(logits[text], expected, atol=1e-5)


@torch.no_grad()
def test_the_draft_is_the_first_decoders_greedy_writing():
    made = network("full")
    made.head.weight *= 3  # so that drafts differ
    memory, state = made.read(*packed(made, TEXTS))
    draft = made.draft(memory, state)
    assert len({int(count) for count in draft.real.sum(1)}) > 1  # of several lengths
    for text in range(4):
        alone, now = made.read(*packed(made, TEXTS[text : text + 1]))
        last, written = made.start_token, []
        for place in range(int(draft.real[text].sum())):
            assert last != made.end
            logits, now = made.step(torch.tensor([last]), now, alone)
            assert torch.allclose(draft.states[text, place], now[1][0], atol=1e-5)  # of the second layer
            logits[0, written] = -math.inf
            last = int(logits.argmax())
            written.append(last)
        assert last == made.end


@FORMS
@torch.no_grad()
def test_search_agrees_with_every_sequence(form):
    made = network(form)
    found = made.infer(*packed(made, TEXTS))
    every = [(*some, 3) for size in range(4) for some in itertools.permutations(range(3), size)]
    for row, text in enumerate(TEXTS):
        exact = {sequence: math.exp(walk(made, text, sequence)[1]) for sequence in every}
        assert sum(exact.values()) == pytest.approx(1, abs=1e-4)
        expected = [sum(p for sequence, p in exact.items() if label in sequence) for label in range(3)]
        assert found["final"][row].tolist() == pytest.approx(expected, abs=1e-4)
        best = max(exact, key=exact.__getitem__)
        assert found["sequence"][row].nonzero().flatten().tolist() == sorted(best[:-1])


@FORMS
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_weight_learns_in_both_stages_and_precisions(form, precision):
    for reinforced in (False, True):
        made = network(form, precision=precision).train()
        made.reinforced = reinforced
        torch.manual_seed(1)
        with made.encoder.autocast():
            loss = made.loss(batch_of(made))
        loss.backward()
        assert loss.dtype == torch.float32
        assert all(weight.grad is not None and bool(weight.grad.isfinite().all()) for weight in made.parameters())


def test_the_forms_and_their_defaults():
    assert type(network("simple")) is SetNetwork and type(network("full")) is FullSetNetwork
    p = Seq2SetParameters()
    assert (p.set_weight, p.beam, p.clip, p.learning_rate, p.reinforced_learning_rate) == (0.8, 10, 8.0, 1e-3, 1e-5)


def test_the_second_stage_is_a_plain_cosine():
    p = _second_stage(Seq2SetParameters())
    assert (p.epochs, p.learning_rate, p.schedule, p.warmup) == (10, 1e-5, "cosine", 0.0)


SETTINGS = {
    **SIZES["seq2set"], "device": "cpu", "batch_size": 12, "epochs": 3, "learning_rate": 2e-2, "reinforced_epochs": 2,
    "reinforced_learning_rate": 1e-3, "checkpoint_seconds": 0.0,
}  # fmt: skip


class Interrupting(Silent):
    """Stops the run at an optimiser step, counted over both stages, and records its notes."""

    def __init__(self, at=None):
        self.at, self.steps, self.notes = at, 0, []

    def advance(self, done, **values):
        self.steps += 1
        if self.steps == self.at:
            raise KeyboardInterrupt

    def note(self, message):
        self.notes.append(message)


def learn(corpus, workdir, progress=None, **settings):
    workdir.mkdir(exist_ok=True)
    method = Seq2Set(Seq2SetParameters(**{**SETTINGS, **settings}))
    return method, method.fit(corpus, workdir, progress or Silent()).facts


@pytest.mark.slow
def test_facts_of_both_stages_are_those_of_one_run(tiny_corpus, tmp_path):
    _, facts = learn(tiny_corpus, tmp_path / "run")
    assert facts["steps"] == (3 + 2) * 5 and facts["taught_steps"] == 3 * 5  # 60 documents, twelve a step
    assert [entry["step"] for entry in facts["history"]] == [5, 10, 15, 20, 25]
    seconds = [entry["seconds"] for entry in facts["history"]]
    assert seconds == sorted(seconds)
    best = max(facts["history"], key=lambda entry: (entry["score"], entry["step"]))
    assert facts["best_step"] == best["step"]
    assert facts["seconds"] == pytest.approx(facts["training_seconds"] + facts["validation_seconds"], abs=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("at", [8, 18])  # in the first stage, in the second
@FORMS
def test_a_killed_run_takes_the_same_steps(form, at, tiny_corpus, tmp_path):
    whole, facts = learn(tiny_corpus, tmp_path / "whole", form=form)
    with pytest.raises(KeyboardInterrupt):
        learn(tiny_corpus, tmp_path / "killed", Interrupting(at), form=form)
    assert any((tmp_path / "killed").glob("*.safetensors"))  # otherwise the folder would be deleted
    progress = Interrupting()
    again, resumed = learn(tiny_corpus, tmp_path / "killed", progress, form=form)
    assert any(note.startswith("resuming at step") for note in progress.notes)
    assert progress.steps < 25 - 15 if at > 15 else progress.steps < 25  # a finished first stage is not repeated
    scores = ("step", "micro_f1", "score")
    assert [[e[name] for name in scores] for e in resumed["history"]] == [
        [e[name] for name in scores] for e in facts["history"]
    ]
    texts = [document.text for document in tiny_corpus.test]
    assert torch.equal(again.scores(texts).final, whole.scores(texts).final)


@pytest.mark.slow
def test_a_second_stage_that_does_harm_is_left_out(tiny_corpus, tmp_path):
    method, facts = learn(tiny_corpus, tmp_path / "run", epochs=8, reinforced_learning_rate=5.0)
    first = [entry for entry in facts["history"] if entry["step"] <= facts["taught_steps"]]
    assert facts["best_step"] == max(first, key=lambda entry: (entry["score"], entry["step"]))["step"]
    alone, taught = learn(tiny_corpus, tmp_path / "alone", epochs=8, reinforced_epochs=0)
    assert taught["taught_steps"] == taught["steps"] and not (tmp_path / "alone/reinforced").exists()
    texts = [document.text for document in tiny_corpus.test]
    assert torch.equal(method.scores(texts).final, alone.scores(texts).final)


@pytest.mark.slow
def test_a_time_budget_is_shared_by_both_stages(tiny_corpus, tmp_path):
    _, facts = learn(tiny_corpus, tmp_path / "run", time_budget=8.0, epochs=1000, reinforced_epochs=1000, patience=0)
    assert 0 < facts["taught_steps"] < facts["steps"]
    with pytest.raises(TrainingError, match=r"The time budget of 0 s"):
        learn(tiny_corpus, tmp_path / "none", time_budget=0.0)


@pytest.mark.slow
def test_the_full_form_learns_and_survives_disk(tiny_corpus, tmp_path):
    settings = SETTINGS | {"form": "full", "epochs": 12}
    with denn.train(tiny_corpus, method="seq2set", out=tmp_path / "model", **settings) as model:
        assert model.card.metrics["micro_f1"] > 0.6
        texts = [document.text for document in tiny_corpus.test]
        expected = model.scores(texts)
    with denn.load(tmp_path / "model") as again:
        assert torch.equal(again.scores(texts).final, expected.final)

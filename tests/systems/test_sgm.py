"""SGM: the global embedding of two steps by loops, its gradient, its state in the beams, and its options."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from denn_bench.encoders.words import WordEncoder
from denn_bench.systems.sequences import SequenceNetwork, target_sequences
from denn_bench.systems.sgm import Sgm, SgmNetwork, SgmParameters

from .made import packed, scattered

TEXTS = ["goal match team", "oven", "orbit rocket planet comet goal match"]
SMALL = SgmParameters(word_width=5, hidden=3, dropout=0.0, beam=40, length_normalised=False, precision="float32")
LABELS = 3


def network(p=SMALL) -> SgmNetwork:
    torch.manual_seed(0)
    encoder = WordEncoder.of(TEXTS, size=20, width=p.word_width, max_length=9, precision=p.precision)
    made = Sgm(p).make(encoder, LABELS)
    made.longest.fill_(LABELS)
    return scattered(made)


def softmax(values):
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def global_embedding(made, label, logits, temperature):
    """Write the gate out: lists of numbers, no tensor operation."""
    table = made.label_vectors.weight.tolist()
    own, width = table[label], len(table[0])
    shares = softmax([z / temperature for z in logits])
    mean = [sum(share * table[k][i] for k, share in enumerate(shares)) for i in range(width)]
    last, bias, other = made.gate_last.weight.tolist(), made.gate_last.bias.tolist(), made.gate_mean.weight.tolist()
    mixed = []
    for i in range(width):
        inner = bias[i] + sum(last[i][j] * own[j] + other[i][j] * mean[j] for j in range(width))
        gate = 1 / (1 + math.exp(-inner))
        mixed.append(gate * own[i] + (1 - gate) * mean[i])
    return mixed


@pytest.mark.parametrize("temperature", [1.0, 0.1])
@torch.no_grad()
def test_the_global_embedding_of_two_steps_by_loops(temperature):
    made = network(replace(SMALL, temperature=temperature))
    memory, state = made.read(*packed(made, TEXTS))
    assert not state[-1].any()  # no step before the first: every label and the end are equally likely
    seen = []
    made.cells.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][:, :5]))
    first, state = made.step(torch.full((3,), made.start_token), state, memory)
    second, _ = made.step(torch.tensor([0, 2, 1]), state, memory)
    assert not torch.allclose(first, second)
    for text, label in enumerate([0, 2, 1]):
        start = global_embedding(made, made.start_token, [0.0] * 4, temperature)
        assert seen[0][text].tolist() == pytest.approx(start, abs=1e-5)
        expected = global_embedding(made, label, first[text].tolist(), temperature)
        assert seen[1][text].tolist() == pytest.approx(expected, abs=1e-5)


def test_gradients_flow_through_the_distribution():
    made = network()
    memory, state = made.read(*packed(made, TEXTS))
    first, state = made.step(torch.full((3,), made.start_token), state, memory)
    first.retain_grad()
    parts = (*(part.detach() for part in state[:-1]), state[-1])  # no other way back to the first step
    second, _ = made.step(torch.tensor([0, 1, 2]), parts, memory)
    second[:, 0].sum().backward()
    assert first.grad is not None and bool(first.grad.abs().sum(1).gt(1e-6).all())


@torch.no_grad()
def test_every_beam_keeps_its_own_distribution():
    made = network()
    beams = made.beams(*packed(made, TEXTS))
    every = torch.tensor(list(itertools.product([False, True], repeat=LABELS)))
    for text, wanted in itertools.product(range(3), every):
        targets = target_sequences(wanted[None])
        logits = made.teach(targets, *made.read(*packed(made, [TEXTS[text]])))[0]
        expected = 0.0
        for place, token in enumerate(targets[0].tolist()):
            logits[place, targets[0, :place]] = -math.inf
            expected += float(torch.log_softmax(logits[place], 0)[token])
        sequence = torch.nn.functional.pad(targets[0], (0, beams.tokens.shape[2] - targets.shape[1]), value=made.end)
        (beam,) = (beams.tokens[text] == sequence).all(1).logical_and(beams.logs[text].isfinite()).nonzero().flatten()
        assert float(beams.logs[text, beam]) == pytest.approx(expected, abs=1e-4)


def test_without_the_global_embedding():
    made = network(replace(SMALL, global_embedding=False))
    assert type(made) is SequenceNetwork and made.cells.kind == "lstm"
    last = torch.tensor([0, 2, 1])
    assert torch.equal(made.look_up(last, ()), made.label_vectors(last))


@torch.no_grad()
def test_beams_are_ranked_by_their_log_probability_per_token():
    made = network(replace(SMALL, length_normalised=True))
    beams = made.beams(*packed(made, TEXTS))
    lengths = (beams.tokens != made.end).sum(2) + 1
    alive = beams.logs.isfinite()
    assert torch.allclose(beams.scores[alive], (beams.logs / lengths)[alive], atol=1e-6)
    assert bool((beams.scores[:, :-1] >= beams.scores[:, 1:]).all())


def test_the_settings_of_the_first_release():
    p = SgmParameters()
    assert (p.beam, p.length_normalised, p.evaluate_every) == (5, False, 100)
    assert (p.word_width, p.hidden, p.encoder_layers, p.decoder_layers) == (256, 256, 2, 2)
    assert (p.learning_rate, p.dropout, p.word_dropout, p.word_spread) == (1e-3, 0.5, 0.0, 1.0)
    assert (p.clip, p.vocabulary, p.schedule, p.warmup, p.epochs) == (10, 30_000, "cosine", 0.0, 50)


@torch.no_grad()
def test_attention_is_not_bounded_and_its_context_is_not_fed():
    made = network()
    assert not made.attention.bounded and not made.feeds_context
    assert made.cells.cells[0].input_size == made.label_vectors.embedding_dim
    ids, layout = packed(made, ["goal match team"])
    memory, _ = made.read(ids, layout)
    query = torch.randn(1, made.cells.cells[0].hidden_size)
    weights = torch.softmax(memory.states[0] @ made.attention.query(query)[0], 0)
    torch.testing.assert_close(made.attention(query, memory)[0], weights @ memory.states[0], rtol=1e-4, atol=1e-5)

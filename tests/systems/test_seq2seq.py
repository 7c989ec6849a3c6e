"""Seq2Seq: two steps of its decoder by loops, the order of labels, and that it learns the words that decide."""

import pytest
import torch

import denn
from denn_bench.encoders.words import WordEncoder
from denn_bench.systems.seq2seq import Seq2Seq
from denn_bench.systems.sequences import SequenceParameters

from .small import SMALL


def network():
    torch.manual_seed(0)
    p = SequenceParameters(word_width=5, hidden=3, precision="float32")
    encoder = WordEncoder.of(["goal match", "oven"], size=9, width=5, max_length=9, precision="float32")
    return Seq2Seq(p).make(encoder, 3).eval()


def gru(cell, x, h):
    """Write a GRU step out: r, z and n from the three thirds of its weights."""
    size = len(h)
    from_x, from_h = cell.weight_ih @ x + cell.bias_ih, cell.weight_hh @ h + cell.bias_hh
    reset = torch.sigmoid(from_x[:size] + from_h[:size])
    keep = torch.sigmoid(from_x[size : 2 * size] + from_h[size : 2 * size])
    new = torch.tanh(from_x[2 * size :] + reset * from_h[2 * size :])
    return (1 - keep) * new + keep * h


def attend(attention, query, states):
    inner = [torch.tanh(attention.query(query) + attention.key(state)) for state in states]
    powers = [torch.exp(attention.value(row)) for row in inner]
    return sum(power / sum(powers) * state for power, state in zip(powers, states, strict=True))


@torch.no_grad()
def test_two_steps_by_loops():
    made = network()
    memory, state = made.read(*made.tokenize(["goal match", "oven"]).pack(torch.arange(2)))
    found = made.teach(torch.tensor([[1, 3], [3, -100]]), memory, state)
    for text, words, told in ((0, 2, (4, 1)), (1, 1, (4, 3))):
        states = list(memory.states[text, :words])
        hidden = state[0][text]
        context = attend(made.attention, hidden, states)
        for place, token in enumerate(told):
            inputs = torch.cat([made.label_vectors.weight[token], context])
            hidden = gru(made.cells.cells[0], inputs, hidden)
            context = attend(made.attention, hidden, states)
            logits = made.head(torch.tanh(made.joined(torch.cat([hidden, context]))))
            assert torch.allclose(found[text, place], logits, atol=1e-5)


def test_the_published_settings():
    p = SequenceParameters()
    assert (p.beam, p.word_width, p.hidden, p.encoder_layers, p.decoder_layers) == (5, 256, 256, 2, 1)
    assert (p.learning_rate, p.dropout, p.clip, p.order) == (1e-3, 0.5, 10, "frequent_first")


@pytest.mark.slow
@pytest.mark.parametrize("order", ["frequent_first", "rare_first"])
def test_learns_either_order(order, tiny_corpus, tmp_path):
    settings = SMALL["seq2seq"] | {"epochs": 25, "batch_size": 16, "learning_rate": 2e-2, "device": "cpu"}
    with denn.train(tiny_corpus, method="seq2seq", out=tmp_path / "model", order=order, **settings) as model:
        texts = [document.text for document in tiny_corpus.test]
        scores = model.scores(texts)
        gold = model.labels.matrix(tiny_corpus.test)
        for found in (scores.final > 0.5, scores.parts["sequence"] > 0.5):
            both = float((found & gold).sum())
            assert 2 * both / float(found.sum() + gold.sum()) > 0.7

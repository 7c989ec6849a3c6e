"""SeqTag: its loss, marginals and best sequence against the enumeration of all tags of the labels."""

import itertools
import math

import pytest
import torch

from denn.encoders.transformer import TransformerEncoder
from denn.errors import ConfigError
from denn.training.network import Batch
from denn_bench.systems.core_network import CoreParameters
from denn_bench.systems.seqtag import SeqTag, SeqTagNetwork, SeqTagParameters

TEXTS = ["goal match", "", "the violin and the oven in kyoto with a comet"]


@pytest.fixture
def network(tiny_encoder, tiny_corpus) -> SeqTagNetwork:
    encoder = TransformerEncoder.load(str(tiny_encoder), max_length=30, precision="float32")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = SeqTag(SeqTagParameters(hidden=8)).make(encoder, len(tiny_corpus.labels))
        made.prepare(tiny_corpus)
        for weight in (made.transitions, made.start_scores, made.end_scores, made.head.weight):
            torch.nn.init.normal_(weight)
    return made.eval()


def scores_of_all_tags(network, emissions):
    """Return the score of each of the 2^L sequences of one text's tags."""
    scores = {}
    for tags in itertools.product((0, 1), repeat=len(emissions)):
        total = float(network.start_scores[tags[0]] + network.end_scores[tags[-1]])
        total += sum(float(emissions[place, tag]) for place, tag in enumerate(tags))
        total += sum(float(network.transitions[pair]) for pair in itertools.pairwise(tags))
        scores[tags] = total
    return scores


@torch.no_grad()
def test_scores_and_loss_are_those_of_all_sequences(network):
    ids, layout = network.tokenize(TEXTS).pack(torch.arange(3))
    emissions, found = network.emissions(ids, layout), network.infer(ids, layout)
    labels = torch.tensor([[True, False, True, False, False, True], [False] * 6, [True] * 6])
    losses = []
    for row in range(3):
        scores = scores_of_all_tags(network, emissions[row])
        total = sum(math.exp(value) for value in scores.values())
        assert tuple(found["final"][row].int().tolist()) == max(scores, key=scores.get)
        for label in range(6):
            mass = sum(math.exp(value) for tags, value in scores.items() if tags[label])
            assert float(found["marginals"][row, label]) == pytest.approx(mass / total, abs=1e-5)
        losses.append(math.log(total) - scores[tuple(labels[row].int().tolist())])
    assert float(network.loss(Batch(ids, layout, labels, None))) == pytest.approx(sum(losses) / 3, rel=1e-4)
    few = network.loss(Batch(ids, layout, labels[:2], None))  # the last document is padding
    assert float(few) == pytest.approx(sum(losses[:2]) / 2, rel=1e-4)


@torch.no_grad()
def test_the_labels_are_read_in_their_order_and_both_ways(network):
    ids, layout = network.tokenize(TEXTS).pack(torch.arange(3))
    states = network.read(ids, layout).labels
    torch.testing.assert_close(network.emissions(ids, layout), network.head(network.sequence(states)[0]))
    changed = states.clone()
    changed[:, 2] += 1.0
    apart = (network.head(network.sequence(changed)[0]) - network.emissions(ids, layout)).abs().amax((0, 2))
    assert bool((apart > 1e-6).all())  # every label depends on every other
    assert network.sequence.bidirectional and network.sequence.hidden_size == 8


def test_gradients_reach_the_field(network):
    ids, layout = network.tokenize(TEXTS).pack(torch.arange(3))
    labels = torch.zeros(3, 6, dtype=torch.bool)
    network.loss(Batch(ids, layout, labels, None)).backward()
    for name, weight in network.named_parameters():
        assert weight.grad is not None and bool(weight.grad.isfinite().all()), name
    assert bool(network.transitions.grad.any()) and bool(network.sequence.weight_ih_l0.grad.any())


def test_the_rates_of_encoder_and_head(network):
    p = SeqTagParameters()
    rates = {id(weight): group["lr"] for group in network.groups(p) for weight in group["params"]}
    for name, weight in network.named_parameters():
        assert rates[id(weight)] == (5e-5 if name.startswith("encoder.") or name == "token_vectors" else 1e-3)


def test_the_rest_is_trained_as_core(network):
    p, core = SeqTagParameters(), CoreParameters()
    for name in ("optimiser", "weight_decay", "epsilon", "clip", "schedule", "warmup", "epochs"):
        assert getattr(p, name) == getattr(core, name)
    decays = {id(weight): group["weight_decay"] for group in network.groups(p) for weight in group["params"]}
    for weight in network.parameters():
        assert decays[id(weight)] == (0.01 if weight.ndim > 1 else 0.0)


@torch.no_grad()
def test_the_marginals_start_at_the_mean_share_of_the_labels(network):
    for weight in (network.transitions, network.start_scores, network.end_scores, network.head.weight):
        weight.zero_()
    labels = torch.tensor([[1, 0, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0]]).bool()
    network.start(None, labels, None, None, 2)
    marginals = network.infer(*network.tokenize(TEXTS).pack(torch.arange(3)))["marginals"]
    torch.testing.assert_close(marginals, torch.full((3, 6), 0.25))


def test_too_many_labels_are_refused_with_their_number(network):
    with pytest.raises(ConfigError, match="Got 27 labels and a length of 30 tokens"):
        SeqTag(SeqTagParameters()).make(network.encoder, 27)

"""LACO: which pairs and which given labels are drawn, and both losses in loops with fixed draws."""

import math

import pytest
import torch

from denn.encoders.transformer import TransformerEncoder
from denn.training.network import Batch
from denn_bench.systems.core_network import summed_loss
from denn_bench.systems.laco import (
    ConditionalNetwork,
    ConditionalParameters,
    PairNetwork,
    PairParameters,
    draw_given,
    draw_pairs,
)

LABELS = torch.tensor(
    [
        [True, True, False, True],
        [False, True, False, False],
        [False, False, False, False],
        [True, True, True, True],
    ]
)
DRAWS = torch.tensor(
    [
        [[0.1, 0.7, 0.9, 0.3], [0.9, 0.2, 0.8, 0.7], [0.5, 0.5, 0.1, 0.2], [0.1, 0.2, 0.6, 0.3]],
        [[0.4, 0.8, 0.6, 0.5], [0.3, 0.9, 0.4, 0.1], [0.5, 0.6, 0.1, 0.2], [0.2, 0.8, 0.9, 0.3]],
    ]
)


@pytest.fixture
def make(tiny_encoder, tiny_corpus):
    """A function that makes a network of a kind for the tiny corpus."""

    def network(kind, parameters):
        encoder = TransformerEncoder.load(str(tiny_encoder), max_length=30, precision="float32")
        with torch.random.fork_rng():
            torch.manual_seed(0)
            made = kind(encoder, len(tiny_corpus.labels), parameters)
            made.prepare(tiny_corpus)
        return made.eval()

    return network


@pytest.fixture
def batch(tiny_corpus):
    """A function that lays out documents with three labels, one, none and all."""

    def lay_out(network, rows=(0, 1, 2, 3)) -> Batch:
        texts = ["goal match", "", "the violin and the oven in kyoto", "comet"]
        labels = torch.zeros(4, len(tiny_corpus.labels), dtype=torch.bool)
        labels[0, :3] = labels[1, 4] = labels[3] = True
        ids, layout = network.tokenize([texts[row] for row in rows]).pack(torch.arange(len(rows)))
        return Batch(ids, layout, labels[list(rows)], None)

    return lay_out


def cross_entropy(logit, gold) -> float:
    return math.log(1 + math.exp(-float(logit))) if gold else math.log(1 + math.exp(float(logit)))


def states_of(width=5):
    return torch.randn(4, 4, width, generator=torch.Generator().manual_seed(0))


def test_pairs_written_out():
    # Coins: positive wanted by all, swapped nowhere.
    first, second, both, drawn = draw_pairs(LABELS, DRAWS, torch.tensor([[0.0] * 4, [0.9] * 4]), 0.5)
    assert first[drawn].tolist() == [1, 1, 2]  # the highest draw among a document's own
    assert second[drawn].tolist() == [3, 2, 1]  # an own label but the first; one that is not; an own one
    assert both[drawn].tolist() == [True, False, True]  # a single label has no positive pair
    assert drawn.tolist() == [True, True, False, True]
    # Negative wanted by all, swapped everywhere; all labels belong to the last document.
    first, second, both, drawn = draw_pairs(LABELS, DRAWS, torch.tensor([[0.9] * 4, [0.0] * 4]), 0.5)
    assert first[drawn].tolist() == [2, 2, 1] and second[drawn].tolist() == [1, 1, 2]
    assert both[drawn].tolist() == [False, False, True]


def test_many_pairs_are_legal_and_half_of_them_positive():
    chance = torch.Generator().manual_seed(0)
    labels = torch.rand(4000, 6, generator=chance) < 0.4
    draws, coins = torch.rand(2, 4000, 6, generator=chance), torch.rand(2, 4000, generator=chance)
    first, second, both, drawn = draw_pairs(labels, draws, coins, 0.5)
    owned = torch.stack([labels[torch.arange(4000), first], labels[torch.arange(4000), second]], 1)
    assert torch.equal(drawn, labels.any(1))
    assert bool((first != second)[drawn].all())
    assert torch.equal(owned[drawn].sum(1), 1 + both[drawn].long())
    choice = (labels.sum(1) > 1) & (labels.sum(1) < 6)
    assert float(both[choice].float().mean()) == pytest.approx(0.5, abs=0.03)
    assert float(owned[drawn & ~both, 0].float().mean()) == pytest.approx(0.5, abs=0.03)  # either comes first


def test_one_label_in_all_has_no_pair():
    labels = torch.tensor([[True], [False]])
    assert not draw_pairs(labels, torch.zeros(2, 2, 1), torch.zeros(2, 2), 0.5)[3].any()


@torch.no_grad()
def test_the_loss_of_pairs_is_that_of_loops(make):
    network = make(PairNetwork, PairParameters())
    states, coins = states_of(32), torch.tensor([[0.0, 0.9, 0.0, 0.9], [0.9, 0.0, 0.0, 0.9]])
    first, second, both, drawn = draw_pairs(LABELS, DRAWS, coins, 0.5)
    u, losses = network.pair.weight[0], []
    for row in range(4):
        if drawn[row]:
            pair = torch.cat([states[row, first[row]], states[row, second[row]]])
            losses.append(cross_entropy(u @ pair, both[row]))
    found = network.pair_loss(states, first, second, both, drawn)
    assert len(losses) == 3 and float(found) == pytest.approx(sum(losses) / 3, rel=1e-5)


def test_given_labels_written_out():
    assert draw_given(LABELS, DRAWS[0], 1).nonzero().tolist() == [[0, 1], [1, 1], [3, 2]]
    assert draw_given(LABELS, DRAWS[0], 2).nonzero().tolist() == [[0, 1], [0, 3], [1, 1], [3, 2], [3, 3]]
    assert torch.equal(draw_given(LABELS, DRAWS[0], 9), LABELS)


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("transform", [False, True])
def test_the_conditional_loss_is_that_of_loops(make, count, transform):
    network = make(ConditionalNetwork, ConditionalParameters(given=count, transform=transform))
    states, given = states_of(32), draw_given(LABELS, DRAWS[0], count)
    bias = float(network.pair.bias.detach()) if transform else 0.0
    losses = []
    for row in range(4):
        chosen = [column for column in range(4) if given[row, column]]
        if not chosen:
            continue
        mean = sum(states[row, column] for column in chosen) / len(chosen)
        for column in set(range(4)) - set(chosen):
            pair = torch.cat([network.candidate(states[row, column]), network.condition(mean)])
            losses.append(cross_entropy(network.pair.weight[0] @ pair + bias, LABELS[row, column]))
    found = network.conditional_loss(states, LABELS, given)
    assert float(found) == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_the_transform_has_a_layer_for_each_side(make):
    plain = make(ConditionalNetwork, ConditionalParameters())
    wide = make(ConditionalNetwork, ConditionalParameters(transform=True))
    d = plain.encoder.width
    sizes = [sum(weight.numel() for weight in network.parameters()) for network in (plain, wide)]
    assert sizes[1] - sizes[0] == 2 * (d * d + d + 2 * d) + 1


@pytest.mark.parametrize(
    ("kind", "parameters", "weight"),
    [
        (PairNetwork, PairParameters(dropout=0.0), 2.0),
        (PairNetwork, PairParameters(pair_weight=3.0, dropout=0.0), 3.0),
        (ConditionalNetwork, ConditionalParameters(), 5.0),
    ],
)
def test_the_second_loss_is_added_with_its_weight(make, batch, kind, parameters, weight):
    network = make(kind, parameters)
    together = batch(network)
    states, labels = network.read(together.ids, together.layout), together.labels
    torch.manual_seed(5)
    found = network.loss(together)
    torch.manual_seed(5)
    if kind is PairNetwork:
        drawn = draw_pairs(labels, torch.rand(2, *labels.shape), torch.rand(2, len(labels)), 0.5)
        second = network.pair_loss(states.labels, *drawn)
    else:
        given = draw_given(labels, torch.rand(labels.shape), 1)
        second = network.conditional_loss(states.labels, labels, given)
    torch.testing.assert_close(found, summed_loss(network.classify(states), labels) + weight * second)
    assert not torch.equal(found, network.loss(together))  # other draws


@pytest.mark.parametrize(
    ("kind", "parameters"), [(PairNetwork, PairParameters()), (ConditionalNetwork, ConditionalParameters())]
)
@pytest.mark.parametrize("rows", [(2,), (1,), (3,), (2, 2)], ids=["none", "one", "all", "nothing"])
def test_documents_with_few_labels_and_with_all_give_finite_gradients(make, batch, kind, parameters, rows):
    network = make(kind, parameters)
    loss = network.loss(batch(network, rows))
    assert bool(loss.isfinite())
    gradients = torch.autograd.grad(loss, list(network.parameters()), materialize_grads=True, allow_unused=True)
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_the_second_head_does_not_speak_in_inference(make, batch):
    network = make(PairNetwork, PairParameters())
    together = batch(network)
    before = network.infer(together.ids, together.layout)["final"]
    torch.nn.init.ones_(network.pair.weight)
    assert torch.equal(network.infer(together.ids, together.layout)["final"], before)


def test_the_states_of_a_pair_are_dropped_out(make, batch):
    network = make(PairNetwork, PairParameters(dropout=0.5)).train()
    states = torch.randn(3, 6, network.encoder.width)
    pairs = (torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5]), torch.ones(3).bool(), torch.ones(3).bool())
    assert not torch.equal(network.pair_loss(states, *pairs), network.pair_loss(states, *pairs))
    network.eval()
    assert torch.equal(network.pair_loss(states, *pairs), network.pair_loss(states, *pairs))

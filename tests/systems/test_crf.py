"""Conditional random fields against the enumeration of all paths."""

import itertools
import math

import pytest
import torch

from denn_bench.core.crf import log_partition, marginals, path_score, viterbi

SHAPES = [(1, 2), (2, 2), (5, 2), (3, 3), (1, 1)]  # places, tags


def field(places, tags, texts=4, seed=0):
    chance = torch.Generator().manual_seed(seed)
    shapes = ((texts, places, tags), (tags, tags), (tags,), (tags,))
    return [2 * torch.randn(shape, generator=chance, dtype=torch.float64) for shape in shapes]


def score(emissions, path, transitions, start, end):
    """Add up the score of one path, place by place."""
    total = float(start[path[0]] + end[path[-1]])
    for place, tag in enumerate(path):
        total += float(emissions[place, tag])
        if place:
            total += float(transitions[path[place - 1], tag])
    return total


def all_scores(emissions, transitions, start, end):
    places, tags = emissions.shape
    paths = itertools.product(range(tags), repeat=places)
    return {path: score(emissions, path, transitions, start, end) for path in paths}


@pytest.mark.parametrize(("places", "tags"), SHAPES)
def test_sums_and_the_best_path_are_those_of_all_paths(places, tags):
    emissions, *rest = field(places, tags)
    partition, shares, best = log_partition(emissions, *rest), marginals(emissions, *rest), viterbi(emissions, *rest)
    for text in range(len(emissions)):
        scores = all_scores(emissions[text], *rest)
        total = sum(math.exp(value) for value in scores.values())
        assert float(partition[text]) == pytest.approx(math.log(total))
        assert tuple(best[text].tolist()) == max(scores, key=scores.get)
        for place, tag in itertools.product(range(places), range(tags)):
            mass = sum(math.exp(value) for path, value in scores.items() if path[place] == tag)
            assert float(shares[text, place, tag]) == pytest.approx(mass / total)


@pytest.mark.parametrize(("places", "tags"), SHAPES)
def test_the_score_of_a_path_is_its_sum(places, tags):
    emissions, *rest = field(places, tags)
    chosen = torch.randint(tags, emissions.shape[:2], generator=torch.Generator().manual_seed(1))
    found = path_score(emissions, chosen, *rest)
    expected = [score(emissions[text], chosen[text].tolist(), *rest) for text in range(len(emissions))]
    assert found.tolist() == pytest.approx(expected)


def test_marginals_are_the_gradient_of_the_log_partition():
    emissions, *rest = field(6, 2)
    emissions.requires_grad_()
    (gradient,) = torch.autograd.grad(log_partition(emissions, *rest).sum(), emissions)
    torch.testing.assert_close(gradient, marginals(emissions, *rest))


def test_extreme_scores_give_finite_losses_and_gradients():
    emissions, *rest = (1e4 * tensor.float() for tensor in field(60, 2))
    tensors = [tensor.requires_grad_() for tensor in (emissions, *rest)]
    tags = torch.ones(4, 60, dtype=torch.int64)
    loss = (log_partition(*tensors) - path_score(tensors[0], tags, *tensors[1:])).mean()
    assert bool(loss.isfinite()) and float(loss.detach()) > 0
    assert all(bool(gradient.isfinite().all()) for gradient in torch.autograd.grad(loss, tensors))
    assert bool(marginals(*tensors).isfinite().all())

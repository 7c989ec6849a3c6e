"""Shapes, statistics of other labels and the bounded logistic fit, against loops and the conditions of an optimum."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from denn.core import monotone
from denn.core.monotone import NARROWEST, fit_logistic, fit_offsets, hats, other_maximum, quantiles, ramps

levels = st.floats(-8, 8, width=32)


@given(st.lists(levels, max_size=5), st.lists(levels, min_size=2, max_size=5).map(sorted))
def test_ramps_rise_from_knot_to_knot(values, knots):
    found = ramps(torch.tensor(values), torch.tensor(knots))
    assert found.shape == (len(values), len(knots) - 1)
    for row, value in zip(found, values, strict=True):
        for share, low, high in zip(row, knots, knots[1:], strict=False):
            assert abs(share - min(max((value - low) / max(high - low, NARROWEST), 0), 1)) < 1e-3


@given(levels, levels, st.lists(levels, min_size=2, max_size=5).map(sorted))
def test_ramps_never_fall(one, other, knots):
    low, high = ramps(torch.tensor([min(one, other), max(one, other)]), torch.tensor(knots))
    assert bool((low <= high).all())


@given(st.lists(levels, max_size=5), st.sets(st.integers(-8, 8), min_size=1, max_size=5).map(sorted))
def test_hats_share_a_value_among_the_two_nearest_knots(values, knots):
    found = hats(torch.tensor(values), torch.tensor(knots, dtype=torch.float32))
    torch.testing.assert_close(found.sum(1), torch.ones(len(values)))
    inside = torch.tensor(values).clamp(knots[0], knots[-1])
    torch.testing.assert_close(found @ torch.tensor(knots, dtype=torch.float32), inside, atol=1e-4, rtol=0)


@given(st.integers(0, 4), st.integers(1, 5), st.data())
def test_the_maximum_of_the_others(n, width, data):
    cells = data.draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=n * width, max_size=n * width))
    values = torch.tensor(cells).view(n, width)
    found = other_maximum(values)
    for i in range(n):
        for j in range(width):
            others = [float(values[i, c]) for c in range(width) if c != j]
            assert float(found.at(torch.tensor([i]), torch.tensor([j]))) == max(others, default=0.0)


def test_quantiles_are_values_of_the_order():
    assert quantiles(torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0]), (0.0, 0.25, 0.5, 1.0)).tolist() == [1, 2, 3, 5]
    assert quantiles(torch.tensor([7.0]), (0.02, 0.98)).tolist() == [7, 7]


@given(st.integers(0, 1000))
def test_the_fit_is_an_optimum_within_its_bounds(seed):
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(80, 5, generator=draw, dtype=torch.float64)
    target = (torch.rand(80, generator=draw) < 0.3).double()
    weight = torch.rand(80, generator=draw, dtype=torch.float64) + 0.1
    prior, ridge = torch.tensor([0.0, 1.0, 0.0, 0.0, -1.0]).double(), torch.full((5,), 0.5, dtype=torch.float64)
    positive = torch.tensor([True, True, True, False, False])
    theta = fit_logistic(features, target, weight, prior, ridge, positive)
    gradient = features.T @ (weight * (torch.sigmoid(features @ theta) - target)) + ridge * (theta - prior)
    at_bound = positive & (theta == 0)
    assert bool((theta[positive] >= 0).all())
    assert float(gradient[~at_bound].abs().amax()) < 0.02
    assert bool((gradient[at_bound] > -0.02).all())


@pytest.mark.parametrize(("scale", "start"), [(1, 0), (1, 3), (10, 3)])
def test_steps_that_overshoot_are_shortened(scale, start):
    """Far from the optimum the curvature is almost zero; in float32, the last steps gain less than they round."""
    ones, free, ridge = torch.ones(20).double(), torch.zeros(3).bool(), torch.full((3,), 0.1).double()
    prior = torch.full((3,), float(start)).double()
    for seed in range(40):
        draw = torch.Generator().manual_seed(seed)
        features = scale * torch.randn(20, 3, generator=draw, dtype=torch.float64)
        target = (torch.rand(20, generator=draw) < 0.3).double()
        exact = fit_logistic(features, target, ones, prior, ridge, free)
        gradient = features.T @ (torch.sigmoid(features @ exact) - target) + ridge * (exact - prior)
        assert float(gradient.abs().amax()) < 0.01 * scale
        rounded = fit_logistic(features.float(), target, ones, prior, ridge, free)
        torch.testing.assert_close(rounded, exact, rtol=0.01, atol=0.01)


def test_without_data_the_fit_is_the_prior():
    prior = torch.tensor([0.5, 0.0, 2.0])
    nothing = torch.zeros(0, 3), torch.zeros(0), torch.zeros(0)
    theta = fit_logistic(*nothing, prior, torch.ones(3), torch.tensor([True, True, False]))
    torch.testing.assert_close(theta, prior.double())


@given(st.integers(0, 1000), st.sampled_from([0.5, 20.0]))
def test_offsets_correct_their_groups(seed, ridge):
    draw = torch.Generator().manual_seed(seed)
    logits, group = 3 * torch.randn(60, generator=draw), torch.randint(4, (60,), generator=draw)
    target, weight = (torch.rand(60, generator=draw) < 0.4), torch.rand(60, generator=draw) + 0.1
    offsets = fit_offsets(logits, target, weight, group, 5, ridge)
    for number in range(5):
        own = group == number
        expected = torch.sigmoid(logits[own] + offsets[number])
        assert abs(float((weight[own] * (target[own].float() - expected)).sum() - ridge * offsets[number])) < 1e-2
    assert float(offsets[4]) == 0  # nothing is known of it


def test_what_is_found_when_the_steps_run_out_is_returned(monkeypatch):
    monkeypatch.setattr(monotone, "STEPS", 1)
    draw = torch.Generator().manual_seed(0)
    features, ones = torch.randn(200, 3, generator=draw), torch.ones(200)
    target = torch.rand(200, generator=draw) < torch.sigmoid(3 * features[:, 0])
    weights = fit_logistic(features, target, ones, torch.zeros(3), torch.full((3,), 0.1), torch.zeros(3).bool())
    assert 0 < float(weights[0]) < 3, "on its way"
    group = torch.zeros(200, dtype=torch.long)
    (offset,) = fit_offsets(torch.full((200,), -5.0), ones, ones, group, 1, 0.1).tolist()
    assert offset == 1, "one step of at most 1"

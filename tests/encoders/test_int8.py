"""8-bit linear maps against their float32 originals."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from denn.encoders import int8
from denn.encoders.int8 import Int8FeedForward, Int8Linear
from denn.errors import EncoderError

needs_vnni = pytest.mark.skipif(not int8.available(), reason="this CPU or torch has no fast 8-bit matrix product")


def layer(out: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(out, width, generator=generator) / width**0.5, torch.randn(out, generator=generator)


def states(rows: int, width: int, seed: int = 1) -> Tensor:
    """Rows whose channels differ in centre and width, as after a LayerNorm."""
    generator = torch.Generator().manual_seed(seed)
    channels = torch.Generator().manual_seed(99)
    scale, centre = torch.rand(width, generator=channels) * 2, torch.randn(width, generator=channels)
    return torch.randn(rows, width, generator=generator) * scale + centre


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / (expected - expected.mean(0)).norm())


@needs_vnni
@pytest.mark.parametrize("strength", [0.85, None])
def test_linear_is_within_two_percent_on_unseen_rows(strength: float | None) -> None:
    weight, bias = layer(96, 64)
    linear = Int8Linear(weight, bias, states(4096, 64), strength=strength)
    x = states(300, 64, seed=2)
    assert relative_error(linear(x), F.linear(x, weight, bias)) < 0.02


@needs_vnni
@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 70), width=st.integers(1, 70), out=st.integers(1, 70))
def test_every_shape_stays_within_the_sum_of_rounding_errors(rows: int, width: int, out: int) -> None:
    weight, bias = layer(out, width)
    calibration = states(200, width)
    linear = Int8Linear(weight, bias, calibration)
    x = calibration[:rows]
    exact = F.linear(x, weight, bias)
    # Each input is off by half a byte at most, times its weight; weights by a few hundredths of the largest product.
    inputs = 0.5 * (weight.abs() / linear.slope).sum(1)
    weights = 0.05 * (weight.abs().amax(1) * x.abs().amax()) * width**0.5
    assert ((linear(x) - exact).abs() <= 2 * inputs + weights + 1e-4).all()


@needs_vnni
def test_a_row_does_not_depend_on_its_neighbours() -> None:
    linear, x = Int8Linear(*layer(48, 32), states(100, 32)), states(20, 32, seed=3)
    torch.testing.assert_close(torch.cat([linear(row[None]) for row in x]), linear(x), rtol=0, atol=1e-5)


@needs_vnni
def test_a_channel_a_hundred_times_wider_leaves_the_others_exact_enough() -> None:
    weight, bias = layer(64, 64)
    rows, x = states(4096, 64), states(200, 64, seed=4)
    rows[:, 7] *= 100
    x[:, 7] *= 100
    narrow = torch.arange(64) != 7
    linear = Int8Linear(weight, bias, rows)
    exact = F.linear(x, weight, bias)
    error = (linear(x) - exact).norm() / F.linear(x[:, narrow], weight[:, narrow]).norm()
    one_range = Int8Linear(weight, bias, rows, strength=None)(x)
    assert error < 0.2
    assert (linear(x) - exact).norm() < (one_range - exact).norm() / 3


@needs_vnni
def test_inputs_outside_the_calibrated_range_are_clipped_to_it() -> None:
    rows = torch.tensor([[-1.0], [1.0]])
    linear = Int8Linear(torch.tensor([[2.0]]), torch.tensor([0.5]), rows)
    got = linear(torch.tensor([[50.0], [-50.0], [0.5]]))
    torch.testing.assert_close(got, torch.tensor([[2.5], [-1.5], [1.5]]), rtol=0, atol=0.03)


@needs_vnni
def test_zero_rows_weights_and_calibration_give_the_bias() -> None:
    zeros, bias = torch.zeros(3, 8), torch.arange(5.0)
    assert torch.equal(Int8Linear(torch.zeros(5, 8), bias, zeros)(zeros), bias.expand(3, 5))
    got = Int8Linear(layer(5, 8)[0], bias, torch.cat([states(50, 8), zeros]))(zeros)
    torch.testing.assert_close(got, bias.expand(3, 5), rtol=0, atol=0.1)


@needs_vnni
def test_add_writes_the_sum_over_the_residual() -> None:
    linear, x = Int8Linear(*layer(16, 16), states(100, 16)), states(9, 16, seed=5)
    residual = states(9, 16, seed=6)
    expected = linear(x) + residual
    got = linear.add_(x, residual)
    assert got.data_ptr() == residual.data_ptr()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@needs_vnni
def test_rounding_makes_up_for_correlated_inputs_better_than_to_nearest() -> None:
    weight, bias = layer(64, 64)
    x = states(1000, 4) @ torch.randn(4, 64, generator=torch.Generator().manual_seed(7))
    linear = Int8Linear(weight, bias, x)
    exact = F.linear(x, weight, bias)
    scaled = weight / linear.slope
    scale = scaled.abs().amax(1, keepdim=True) / 127
    nearest = (linear.bytes(x) - linear.offset) @ ((scaled / scale).round() * scale).T + bias
    assert relative_error(linear(x), exact) < 0.7 * relative_error(nearest, exact)


@needs_vnni
@pytest.mark.parametrize("hidden", [96, 192, 200])
def test_feed_forward_is_within_three_percent_on_unseen_rows(hidden: int) -> None:
    up, down = layer(hidden, 48), layer(48, hidden, seed=8)
    feed, x = Int8FeedForward(up, down, states(600, 48)), states(100, 48, seed=9)
    fed = F.linear(F.gelu(F.linear(x, *up)), *down)
    assert relative_error(feed.add_(torch.zeros_like(x), x), fed) < 0.03
    torch.testing.assert_close(feed(x.clone()), x + feed.add_(torch.zeros_like(x), x), rtol=1e-5, atol=1e-5)


@needs_vnni
def test_feed_forward_spreads_an_outlying_hidden_channel() -> None:
    up, down = layer(768, 48), layer(48, 768, seed=8)
    up[0][5] *= 10
    feed, x = Int8FeedForward(up, down, states(600, 48)), states(100, 48, seed=9)
    hidden = F.gelu(F.linear(x, *up))
    assert hidden.max() > 2 * (int8.LEVELS - feed.zero) * feed.step
    assert relative_error(feed.add_(torch.zeros_like(x), x), F.linear(hidden, *down)) < 0.04


def test_spread_covers_every_peak_with_exactly_the_bytes_it_was_given() -> None:
    peak = torch.tensor([0.5, 1.0, 8.0, 0.2])
    ceiling, copies = int8._spread(peak, 4)
    assert int(copies.sum()) == 8
    assert ((copies * ceiling) >= peak - 1e-5).all()
    assert ceiling < 2.0 + 1e-5


def test_without_the_instructions_it_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "available", lambda: False)
    with pytest.raises(EncoderError, match="Use float32"):
        Int8Linear(*layer(4, 4), states(10, 4))

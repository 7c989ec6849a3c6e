"""The packed forward in 8-bit integers, for prediction on CPUs.

Each matrix product reads unsigned 8-bit states and signed 7-bit weights, with one scale per output. A CPU without VNNI
adds two products in 16 bits: with 8-bit weights these sums overflow, with 7 bits they cannot, so every CPU gives the
same numbers. The ranges of the states are measured once on sample texts, so that no text depends on those it is
encoded with.

A few channels of a transformer's states are an order of magnitude larger than all others. Channels are therefore
divided by factors that the weights are multiplied by (Xiao et al., SmoothQuant, ICML 2023), which layer norms and
value projections do at no cost; and the feed-forward neurons with the largest outputs stay in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from denn.encoders import packed
from denn.encoders.layers import Layer
from denn.encoders.layout import Layout

MOST_WEIGHT = 63  # 255 · 63 · 2 fits into 16 bits
MIDDLE = 128  # represents 0 in states that may be negative
LEAST_GELU = -0.17
SMOOTHING = 0.75  # how much of the states' spread moves into the weights
EXACT_NEURONS = 16  # per layer, kept in float32
TINY = 1e-4


class Ranges(NamedTuple):
    """The largest absolute values in each input channel of a layer's four linear maps."""

    qkv: Tensor
    out: Tensor
    up: Tensor
    down: Tensor


class Map(NamedTuple):
    """A linear map in integers; its input is (uint8 − zero) · step."""

    weights: Tensor  # in oneDNN's own layout
    scales: Tensor  # one for each output
    zeros: Tensor
    bias: Tensor
    step: float
    zero: int


class QuantisedLayer(NamedTuple):
    """One transformer layer. Its states are divided by `attention_factors`, then by `output_factors`."""

    attention_factors: Tensor
    qkv: Map
    out: Map
    norm_attention: Tensor
    norm_attention_bias: Tensor
    output_factors: Tensor
    up: Map
    down: Map
    exact_up: Tensor
    exact_up_bias: Tensor
    exact_down: Tensor  # transposed
    norm_output: Tensor
    norm_output_bias: Tensor
    eps: float


@cache
def is_available() -> bool:
    """Return whether this build of torch can multiply 8-bit matrices."""
    try:
        made = _map(torch.eye(32), torch.zeros(32), 1.0, MIDDLE)
        found = _multiply(torch.full((2, 32), MIDDLE + 3, dtype=torch.uint8), made)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return bool((found - 3).abs().max() < TINY)


@torch.inference_mode()
def measure_ranges(x: Tensor, layers: Sequence[Layer], layout: Layout, heads: int, bias: Tensor | None) -> list[Ranges]:
    """Run (T,d) embeddings of sample texts through float32 layers and measure the inputs of their linear maps."""
    found = []
    for w in layers:
        attended = packed.attend(F.linear(x, w.qkv, w.qkv_bias), layout, heads, bias, 0.0)
        y = packed.layer_norm(F.linear(attended, w.out, w.out_bias) + x, w.norm_attention, w.norm_attention_bias, w.eps)
        fed = w.activation(F.linear(y, w.up, w.up_bias))
        found.append(Ranges(*(states.abs().amax(0) for states in (x, attended, y, fed))))
        x = packed.layer_norm(F.linear(fed, w.down, w.down_bias) + y, w.norm_output, w.norm_output_bias, w.eps)
    return found


@torch.inference_mode()
def quantise(layers: Sequence[Layer], ranges: Sequence[Ranges]) -> list[QuantisedLayer]:
    """Convert float32 layers with GELU to integers."""
    factors = [
        (_factors(r.qkv, w.qkv), _factors(r.out, w.out), _factors(r.up, w.up))
        for w, r in zip(layers, ranges, strict=True)
    ]
    after = [first for first, _, _ in factors[1:]] + [torch.ones(layers[0].qkv.shape[1])]
    return [_quantise(*each) for each in zip(layers, ranges, factors, after, strict=True)]


def _quantise(w: Layer, ranges: Ranges, factors: tuple[Tensor, Tensor, Tensor], after: Tensor) -> QuantisedLayer:
    """Convert one layer to integers; its result is divided by `after`."""
    first, middle, last = factors
    of_value = torch.cat([torch.ones(2 * len(middle)), 1 / middle])
    exact = ranges.down.topk(min(EXACT_NEURONS, len(ranges.down) - 1)).indices
    others = torch.ones_like(ranges.down).index_fill(0, exact, 0.0)
    up = w.up * last
    step = (float((ranges.down * others).max()) - LEAST_GELU) / 255
    return QuantisedLayer(
        first,
        _map(w.qkv * first * of_value[:, None], w.qkv_bias * of_value, 1.0, MIDDLE),
        _map(w.out * middle, w.out_bias, 1.0, MIDDLE),
        w.norm_attention / last,
        w.norm_attention_bias / last,
        last,
        _map(up * others[:, None], w.up_bias * others, 1.0, MIDDLE),
        _map(w.down * others, w.down_bias, step, round(-LEAST_GELU / step)),
        up[exact],
        w.up_bias[exact],
        w.down[:, exact].T.contiguous(),
        w.norm_output / after,
        w.norm_output_bias / after,
        w.eps,
    )


def _factors(largest: Tensor, weights: Tensor) -> Tensor:
    """Return the divisor of each channel of the states, so that they are within −127 to 127."""
    of_weights = weights.abs().amax(0).clamp_min(TINY)
    smooth = largest.clamp_min(TINY) ** SMOOTHING / of_weights ** (1 - SMOOTHING)
    return smooth * (largest / smooth).max().clamp_min(TINY) / 127


def _map(weights: Tensor, bias: Tensor, step: float, zero: int) -> Map:
    scales = weights.abs().amax(1).clamp_min(1e-12) / MOST_WEIGHT
    whole = (weights / scales[:, None]).round().to(torch.int8)
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    return Map(torch.ops.onednn.qlinear_prepack(whole, None), scales, zeros, bias.clone(), step, zero)


def _multiply(x: Tensor, by: Map) -> Tensor:
    """Return the float32 product of (T,k) uint8 states."""
    given = (x, by.step, by.zero, by.weights, by.scales, by.zeros, by.bias)
    found: Tensor = torch.ops.onednn.qlinear_pointwise(*given, 1.0, 0, torch.float32, "none", [], "")
    return found


def _multiply_gelu(x: Tensor, by: Map, into: Map) -> Tensor:
    """Return GELU of the product as the (T,k) uint8 states that the map `into` reads."""
    given = (x, by.step, by.zero, by.weights, by.scales, by.zeros, by.bias)
    found: Tensor = torch.ops.onednn.qlinear_pointwise(*given, into.step, into.zero, torch.uint8, "gelu", [], "none")
    return found


def _rounded(x: Tensor) -> Tensor:
    """Round states within −127 to 127 to uint8, clipping the rest."""
    return (x + (MIDDLE + 0.5)).clamp_(0, 255).to(torch.uint8)


def run_layers(x: Tensor, layers: Sequence[QuantisedLayer], layout: Layout, heads: int, bias: Tensor | None) -> Tensor:
    """Run (T,d) embeddings through integer layers; see `packed.run_layers`."""
    x = x / layers[0].attention_factors
    for w in layers:
        attended = packed.attend(_multiply(_rounded(x), w.qkv), layout, heads, bias, 0.0)
        x = torch.addcmul(_multiply(_rounded(attended), w.out), x, w.attention_factors)
        x = packed.layer_norm(x, w.norm_attention, w.norm_attention_bias, w.eps)
        fed = _multiply(_multiply_gelu(_rounded(x), w.up, w.down), w.down)
        fed = fed.addmm_(F.gelu(F.linear(x, w.exact_up, w.exact_up_bias)), w.exact_down)
        x = packed.layer_norm(fed.addcmul_(x, w.output_factors), w.norm_output, w.norm_output_bias, w.eps)
    return x

"""A transformer forward pass without padding: the tokens of all documents in one (T,d) matrix."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from itertools import groupby
from subprocess import SubprocessError
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denn.encoders.layers import Layer
from denn.encoders.layout import Layout, send

log = logging.getLogger(__name__)


class Kernels(NamedTuple):
    """The modules with our CUDA kernels."""

    flash: Any
    fused: Any


@cache
def kernels() -> Kernels | None:
    """Return our CUDA kernels; None if Triton is missing or cannot compile, in which case torch does the same work."""
    try:
        found = Kernels(import_module("denn.encoders.flash"), import_module("denn.encoders.fused"))
    except ImportError:
        return None
    try:
        found.flash.try_out()
        found.fused.try_out()
    except (RuntimeError, OSError, SubprocessError, found.flash.TritonError) as error:  # no compiler, or a failing one
        log.warning("CUDA kernels cannot be compiled here, so training will be slower: %s", error)
        return None
    return found


def dropout(x: Tensor, share: float) -> Tensor:
    """Set a share of the entries to zero and scale up the rest; 0 changes nothing.

    A CPU draws its random numbers one by one, which took a fifth of a training step; here one draw of 64 bits decides
    eight entries. The share is then a multiple of 1/256, and the scale matches that multiple.
    """
    if not share or x.device.type != "cpu":
        return F.dropout(x, share)
    cut = round(256 * share)
    draws = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
    kept = draws.view(torch.uint8)[: x.numel()].view(x.shape) >= cut
    return x * (kept.to(x.dtype) * (256 / (256 - cut)))


def attend(qkv: Tensor, layout: Layout, heads: int, bias: Tensor | None, share: float) -> Tensor:
    """Attend within each document: (T,3d) → (T,d); `bias` is (heads, L, L), with L at least the longest length."""
    if qkv.device.type == "cpu":
        return _attend_by_length(qkv, layout, heads, bias, share)
    return _attend_padded(qkv, layout, heads, bias, share)


def _attend_by_length(qkv: Tensor, layout: Layout, heads: int, bias: Tensor | None, share: float) -> Tensor:
    """Make one attention call per run of documents of equal length, without padding or mask."""
    width = qkv.shape[1] // 3
    pieces, start = [], 0
    for length, run in groupby(layout.lengths):
        count = sum(1 for _ in run)
        rows = qkv[start : start + count * length].view(count, length, 3, heads, width // heads)
        query, key, value = rows.permute(2, 0, 3, 1, 4)  # (count, heads, length, d/heads) each
        mask = None if bias is None else bias[:, :length, :length]
        if share:
            out = _attend_with_dropout(query, key, value, mask, share)
        else:
            out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        pieces.append(out.transpose(1, 2).reshape(count * length, width))
        start += count * length
    return torch.cat(pieces)


def _attend_with_dropout(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, share: float) -> Tensor:
    """Attend in plain steps, as torch does on a CPU with dropout."""
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores + mask
    return dropout(torch.softmax(scores, dim=-1), share) @ value


def _attend_padded(qkv: Tensor, layout: Layout, heads: int, bias: Tensor | None, share: float) -> Tensor:
    """Make one attention call for all documents, padded for this step only, to save launches on an accelerator."""
    count, longest, width = len(layout.starts) - 1, layout.longest, qkv.shape[1] // 3
    slots = layout.document * longest + layout.positions  # (T,) rows of the padded matrix
    padded = qkv.new_zeros(count * longest, 3 * width).index_copy(0, slots, qkv)
    query, key, value = padded.view(count, longest, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    real = torch.arange(longest, device=qkv.device) < layout.sizes[:, None]  # (count, longest)
    mask = torch.zeros_like(real, dtype=qkv.dtype).masked_fill_(~real, float("-inf"))[:, None, None, :]
    if bias is not None:
        mask = mask + bias[:, :longest, :longest].to(qkv.dtype)
    mask = mask.expand(count, heads, longest, longest)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=share)
    return out.transpose(1, 2).reshape(count * longest, width)[slots]


def run_layers(
    x: Tensor,
    layers: Sequence[Layer],
    layout: Layout,
    heads: int,
    bias: Tensor | None,
    dropouts: tuple[float, float],
    seeds: Tensor | None = None,
) -> Tensor:
    """Run (T,d) embeddings through the layers; `dropouts` are those of hidden states and attention weights.

    `bias` comes from `prepare_bias`. Our own kernels run if there are `seeds` for dropout, from `draw_seeds`.
    """
    hidden, attention = dropouts
    if x.is_cuda and seeds is not None and (ours := kernels()):
        flash, fused = ours
        for i, w in enumerate(layers):
            qkv, x = fused.linear_and_input(x, w.qkv, w.qkv_bias)
            attended = flash.attend(qkv, bias, layout.starts, layout.longest, heads, attention, seeds[3 * i])
            norm = (w.norm_attention, w.norm_attention_bias, w.eps)
            x = fused.residual_norm(F.linear(attended, w.out), w.out_bias, x, *norm, hidden, seeds[3 * i + 1])
            if isinstance(w.activation, nn.GELU) and w.activation.approximate == "none":
                up, x = fused.linear_and_input(x, w.up)
                fed = F.linear(fused.biased_gelu(up, w.up_bias), w.down)
            else:
                up, x = fused.linear_and_input(x, w.up, w.up_bias)
                fed = F.linear(w.activation(up), w.down)
            norm = (w.norm_output, w.norm_output_bias, w.eps)
            x = fused.residual_norm(fed, w.down_bias, x, *norm, hidden, seeds[3 * i + 2])
        return x
    for w in layers:
        attended = attend(F.linear(x, w.qkv, w.qkv_bias), layout, heads, bias, attention)
        attended = F.linear(attended, w.out, w.out_bias)
        x = layer_norm(dropout(attended, hidden) + x, w.norm_attention, w.norm_attention_bias, w.eps)
        fed = F.linear(w.activation(F.linear(x, w.up, w.up_bias)), w.down, w.down_bias)
        x = layer_norm(dropout(fed, hidden) + x, w.norm_output, w.norm_output_bias, w.eps)
    return x


def draw_seeds(layers: int, device: torch.device) -> Tensor:
    """Draw seeds from the CPU's generator, one per row of (3·layers,4): aligned, so that kernels compile only once."""
    return send(torch.randint(-(2**31), 2**31 - 1, (3 * layers, 4), dtype=torch.int32), device)


def prepare_bias(bias: Tensor, dtype: torch.dtype, ours: Kernels | None) -> Tensor:
    """Convert a (heads, L, L) attention bias to the form that `run_layers` needs, with our kernels or without."""
    return (ours.flash.prepare_bias(bias) if ours else bias).to(dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalise the rows of (T,d) states."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def pool(x: Tensor, layout: Layout, pooling: str) -> Tensor:
    """Pool packed (T,d) states to one float32 (n,d) vector per document."""
    if pooling == "cls":
        return x[layout.starts[:-1]].float()
    sums = torch.segment_reduce(x.float(), "sum", lengths=layout.sizes, unsafe=True)  # checking would wait
    return sums / layout.sizes.clamp(min=1)[:, None]

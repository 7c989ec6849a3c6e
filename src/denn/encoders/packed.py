"""A transformer forward without padding: the tokens of all documents in one (T,d) matrix.

BERT's, RoBERTa's and MPNet's layers differ in names and in MPNet's relative position bias only; the weights stay in
the Hugging Face module they were loaded into.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from itertools import groupby, islice
from subprocess import SubprocessError
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

log = logging.getLogger(__name__)

Activation = Callable[[Tensor], Tensor]

# Model type → position of [CLS]
FIRST_POSITION = {"bert": 0, "roberta": 2, "xlm-roberta": 2, "camembert": 2, "mpnet": 2}


class Layer(NamedTuple):
    """The weights of one transformer layer in the precision it runs in."""

    qkv: Tensor  # (3d,d)
    qkv_bias: Tensor
    out: Tensor
    out_bias: Tensor
    norm_attention: Tensor
    norm_attention_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor
    norm_output: Tensor
    norm_output_bias: Tensor
    activation: Activation
    eps: float


class Parts(NamedTuple):
    """The modules of one layer, whatever the model calls them."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    out: nn.Linear
    norm_attention: nn.LayerNorm
    up: nn.Linear
    activation: Activation
    down: nn.Linear
    norm_output: nn.LayerNorm


def parts_of(layer: Any, model_type: str) -> Parts:
    """Name the modules of a Hugging Face layer."""
    up, output = layer.intermediate, layer.output
    feed = (up.dense, up.intermediate_act_fn, output.dense, output.LayerNorm)
    if model_type == "mpnet":
        attention = layer.attention.attn
        return Parts(attention.q, attention.k, attention.v, attention.o, layer.attention.LayerNorm, *feed)
    attention, mixed = layer.attention.self, layer.attention.output
    return Parts(attention.query, attention.key, attention.value, mixed.dense, mixed.LayerNorm, *feed)


def layers_of(all_parts: Sequence[Parts], dtype: torch.dtype) -> list[Layer]:
    """Return the weights of all layers in one precision; gradients reach the modules' own parameters."""
    groups: list[tuple[Tensor, ...]] = []  # what is joined along the first dimension
    for parts in all_parts:
        maps = (parts.query, parts.key, parts.value)
        groups += [tuple(m.weight for m in maps), tuple(m.bias for m in maps)]
        for module in (parts.out, parts.norm_attention, parts.up, parts.down, parts.norm_output):
            groups += [(module.weight,), (module.bias,)]
    if dtype == torch.float32:
        weights = [group[0] if len(group) == 1 else torch.cat(group) for group in groups]
    else:
        sizes = [[len(tensor) for tensor in group] for group in groups]
        tensors = [tensor for group in groups for tensor in group]
        weights = list(_Cast.apply(dtype, sizes, *tensors))  # type: ignore[no-untyped-call]
    found = iter(weights)
    tensors_of_layer = len(Layer._fields) - 2
    return [
        Layer._make([*islice(found, tensors_of_layer), parts.activation, parts.norm_output.eps]) for parts in all_parts
    ]


class _Cast(torch.autograd.Function):
    """Join and cast many tensors by one launch each way instead of one for every tensor."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, sizes: list[list[int]], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.sizes = sizes
        firsts = [sum(len(group) for group in sizes[:i]) for i in range(len(sizes))]
        joined = [
            tensors[first].new_empty(sum(group), *tensors[first].shape[1:], dtype=dtype)
            for first, group in zip(firsts, sizes, strict=True)
        ]
        torch._foreach_copy_(_split(joined, sizes), list(tensors))
        return tuple(joined)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        pieces = _split(grads, ctx.sizes)
        full = [torch.empty_like(piece, dtype=torch.float32) for piece in pieces]
        torch._foreach_copy_(full, pieces)
        return None, None, *full


def _split(joined: Sequence[Tensor], sizes: list[list[int]]) -> list[Tensor]:
    return [piece for tensor, group in zip(joined, sizes, strict=True) for piece in torch.split(tensor, group)]


@dataclass(frozen=True)
class Layout:
    """Where each document's tokens lie in the packed matrix."""

    starts: Tensor  # (n+1,) int32: the first token of each document, and the end
    positions: Tensor  # (T,) place of each token in its document
    document: Tensor  # (T,) the document of each token
    longest: int  # no document is longer

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Layout:
        """Lay documents of these lengths end to end."""
        starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        layout = cls.at(send(starts, device), int(starts[-1]), max(lengths, default=0))
        layout.__dict__["lengths"] = tuple(lengths)  # known here; the property would ask the device for them
        return layout

    @classmethod
    def at(cls, starts: Tensor, total: int, longest: int) -> Layout:
        """Lay documents out whose (n+1,) starts are on the device already."""
        numbers = torch.arange(len(starts) - 1, device=starts.device)
        document = torch.repeat_interleave(numbers, starts.diff(), output_size=total)
        positions = torch.arange(total, device=starts.device) - starts[document]
        return cls(starts, positions, document, longest)

    @property
    def sizes(self) -> Tensor:
        """The (n,) lengths, on the device."""
        return self.starts.diff()

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The lengths, on the CPU: an accelerator has to be waited for."""
        return tuple(self.sizes.tolist())


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a small tensor of the CPU to a device without waiting for what the device is doing."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class Kernels(NamedTuple):
    """The modules of our CUDA kernels."""

    flash: Any
    fused: Any


@cache
def kernels() -> Kernels | None:
    """Return our CUDA kernels, None where there is no Triton or it cannot compile: torch's operations do the same."""
    try:
        found = Kernels(import_module("denn.encoders.flash"), import_module("denn.encoders.fused"))
    except ImportError:
        return None
    try:
        found.flash.try_out()
        found.fused.try_out()
    except (RuntimeError, OSError, SubprocessError, found.flash.TritonError) as error:  # no compiler, or a failing one
        log.warning("CUDA kernels cannot be compiled here, training will be slower: %s", error)
        return None
    return found


def dropout(x: Tensor, share: float) -> Tensor:
    """Set a share of the entries to zero and scale the rest up; 0 leaves everything.

    A CPU draws its random numbers one by one, which took a fifth of a training step; here one draw of 64 bits decides
    on eight entries. The share is then a multiple of 1/256, and the scale belongs to that multiple.
    """
    if not share or x.device.type != "cpu":
        return F.dropout(x, share)
    cut = round(256 * share)
    draws = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
    kept = draws.view(torch.uint8)[: x.numel()].view(x.shape) >= cut
    return x * (kept.to(x.dtype) * (256 / (256 - cut)))


def attend(qkv: Tensor, layout: Layout, heads: int, bias: Tensor | None, share: float) -> Tensor:
    """Attend within each document: (T,3d) → (T,d); `bias` is (heads, L, L), L no less than the longest."""
    if qkv.device.type == "cpu":
        return _attend_by_length(qkv, layout, heads, bias, share)
    return _attend_padded(qkv, layout, heads, bias, share)


def _attend_by_length(qkv: Tensor, layout: Layout, heads: int, bias: Tensor | None, share: float) -> Tensor:
    """One attention call per run of documents of equal length: no padding and no mask."""
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
    """Attend in plain steps, as torch does on a CPU where there is dropout."""
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores + mask
    return dropout(torch.softmax(scores, dim=-1), share) @ value


def _attend_padded(qkv: Tensor, layout: Layout, heads: int, bias: Tensor | None, share: float) -> Tensor:
    """One attention call for all documents, padded for this step only: few launches on an accelerator."""
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

    `bias` comes from `prepare_bias`. Our own kernels run where there are `seeds` to drop by, from `draw_seeds`.
    """
    hidden, attention = dropouts
    if x.is_cuda and seeds is not None and (ours := kernels()):
        flash, fused = ours
        for i, w in enumerate(layers):
            qkv = F.linear(x, w.qkv, w.qkv_bias)
            attended = flash.attend(qkv, bias, layout.starts, layout.longest, heads, attention, seeds[3 * i])
            norm = (w.norm_attention, w.norm_attention_bias, w.eps)
            x = fused.residual_norm(F.linear(attended, w.out), w.out_bias, x, *norm, hidden, seeds[3 * i + 1])
            fed = F.linear(w.activation(F.linear(x, w.up, w.up_bias)), w.down)
            norm = (w.norm_output, w.norm_output_bias, w.eps)
            x = fused.residual_norm(fed, w.down_bias, x, *norm, hidden, seeds[3 * i + 2])
        return x
    for w in layers:
        attended = attend(F.linear(x, w.qkv, w.qkv_bias), layout, heads, bias, attention)
        attended = F.linear(attended, w.out, w.out_bias)
        x = _norm(dropout(attended, hidden) + x, w.norm_attention, w.norm_attention_bias, w.eps)
        fed = F.linear(w.activation(F.linear(x, w.up, w.up_bias)), w.down, w.down_bias)
        x = _norm(dropout(fed, hidden) + x, w.norm_output, w.norm_output_bias, w.eps)
    return x


def draw_seeds(layers: int, device: torch.device) -> Tensor:
    """Draw seeds from the CPU's generator, one for each row of (3·layers,4): aligned, a kernel is compiled once."""
    return send(torch.randint(-(2**31), 2**31 - 1, (3 * layers, 4), dtype=torch.int32), device)


def prepare_bias(bias: Tensor, dtype: torch.dtype, ours: Kernels | None) -> Tensor:
    """Turn a (heads, L, L) bias of attention into what `run_layers` wants, with our kernels or without."""
    return (ours.flash.prepare_bias(bias) if ours else bias).to(dtype)


def _norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def pool(x: Tensor, layout: Layout, pooling: str) -> Tensor:
    """Pool packed (T,d) states to one float32 (n,d) vector per document."""
    if pooling == "cls":
        return x[layout.starts[:-1]].float()
    sums = torch.segment_reduce(x.float(), "sum", lengths=layout.sizes, unsafe=True)  # the check would wait
    return sums / layout.sizes.clamp(min=1)[:, None]

"""The weights of a transformer's layers, in the form that the packed forward reads.

The layers of BERT, RoBERTa and MPNet differ only in names and in MPNet's relative position bias; the weights stay in
the module that they were loaded into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Activation = Callable[[Tensor], Tensor]

# Model type → position of [CLS]
FIRST_POSITION = {"bert": 0, "roberta": 2, "xlm-roberta": 2, "camembert": 2, "mpnet": 2}


class Layer(NamedTuple):
    """The weights of one transformer layer, in the precision in which it runs."""

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
    """The modules of one layer, independent of the model's names for them."""

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
    """Return the modules of a Hugging Face layer."""
    up, output = layer.intermediate, layer.output
    feed = (up.dense, up.intermediate_act_fn, output.dense, output.LayerNorm)
    if model_type == "mpnet":
        attention = layer.attention.attn
        return Parts(attention.q, attention.k, attention.v, attention.o, layer.attention.LayerNorm, *feed)
    attention, mixed = layer.attention.self, layer.attention.output
    return Parts(attention.query, attention.key, attention.value, mixed.dense, mixed.LayerNorm, *feed)


def layers_of(all_parts: Sequence[Parts], dtype: torch.dtype) -> list[Layer]:
    """Return the weights of all layers in one precision; gradients reach the modules' own parameters."""
    if not all_parts:
        return []
    groups: list[tuple[Tensor, ...]] = []  # tensors to join along the first dimension
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
    """Join and cast many tensors with one launch each way instead of one per tensor."""

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

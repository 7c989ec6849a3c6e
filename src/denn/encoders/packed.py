"""A transformer forward without padding: the tokens of all documents in one (T,d) matrix.

BERT's, RoBERTa's and MPNet's layers differ in names and in MPNet's relative position bias only; the weights stay in
the Hugging Face module they were loaded into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Linear = Callable[[Tensor], Tensor]

# Model type → position of [CLS]
FIRST_POSITION = {"bert": 0, "roberta": 2, "xlm-roberta": 2, "camembert": 2, "mpnet": 2}


class Layer(NamedTuple):
    """One transformer layer, ready to run: the linear maps may be of any precision."""

    qkv: Linear  # (T,d) → (T,3d)
    out: Linear
    norm_attention: Linear
    up: Linear
    activation: Linear
    down: Linear
    norm_output: Linear


class Parts(NamedTuple):
    """The modules of one layer, whatever the model calls them."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    out: nn.Linear
    norm_attention: nn.LayerNorm
    up: nn.Linear
    activation: Linear
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


def fused_qkv(parts: Parts) -> tuple[Tensor, Tensor]:
    """Stack the query, key and value maps into one (3d,d) weight and (3d,) bias."""
    maps = (parts.query, parts.key, parts.value)
    return torch.cat([m.weight for m in maps]), torch.cat([m.bias for m in maps])


def trainable(parts: Parts) -> Layer:
    """Run a layer on the module's own parameters, so that gradients reach them."""

    def qkv(x: Tensor) -> Tensor:
        return F.linear(x, *fused_qkv(parts))

    return Layer(qkv, *parts[3:])


def prepared(parts: Parts, dtype: torch.dtype) -> Layer:
    """Copy a layer's weights into the precision of inference."""

    def cast(weight: Tensor, bias: Tensor) -> Linear:
        weight, bias = weight.detach().to(dtype), bias.detach().to(dtype)
        return lambda x: F.linear(x, weight, bias)

    def norm(module: nn.LayerNorm) -> Linear:
        weight, bias = module.weight.detach().to(dtype), module.bias.detach().to(dtype)
        return lambda x: F.layer_norm(x, module.normalized_shape, weight, bias, module.eps)

    return Layer(
        cast(*fused_qkv(parts)),
        cast(parts.out.weight, parts.out.bias),
        norm(parts.norm_attention),
        cast(parts.up.weight, parts.up.bias),
        parts.activation,
        cast(parts.down.weight, parts.down.bias),
        norm(parts.norm_output),
    )


@dataclass(frozen=True)
class Layout:
    """Where each document's tokens lie in the packed matrix."""

    lengths: tuple[int, ...]
    positions: Tensor  # (T,) place of each token in its document
    document: Tensor  # (T,) the document of each token

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Layout:
        """Lay documents of these lengths end to end."""
        sizes = torch.tensor(lengths, device=device)
        document = torch.repeat_interleave(torch.arange(len(lengths), device=device), sizes, output_size=sum(lengths))
        starts = sizes.cumsum(0) - sizes
        positions = torch.arange(len(document), device=device) - starts[document]
        return cls(tuple(lengths), positions, document)


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
    """Attend within each document: (T,3d) → (T,d); `bias` is (heads, longest, longest), `share` of weights dropped."""
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
    count, longest, width = len(layout.lengths), max(layout.lengths), qkv.shape[1] // 3
    slots = layout.document * longest + layout.positions  # (T,) rows of the padded matrix
    padded = qkv.new_zeros(count * longest, 3 * width).index_copy(0, slots, qkv)
    query, key, value = padded.view(count, longest, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    sizes = torch.tensor(layout.lengths, device=qkv.device)
    real = torch.arange(longest, device=qkv.device) < sizes[:, None]  # (count, longest)
    mask = torch.zeros_like(real, dtype=qkv.dtype).masked_fill_(~real, float("-inf"))[:, None, None, :]
    if bias is not None:
        mask = mask + bias.to(qkv.dtype)
    mask = mask.expand(count, heads, longest, longest)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=share)
    return out.transpose(1, 2).reshape(count * longest, width)[slots]


def run_layers(
    x: Tensor, layers: Sequence[Layer], layout: Layout, heads: int, bias: Tensor | None, dropouts: tuple[float, float]
) -> Tensor:
    """Run (T,d) embeddings through the layers; `dropouts` are those of hidden states and attention weights."""
    hidden, attention = dropouts
    for layer in layers:
        attended = layer.out(attend(layer.qkv(x), layout, heads, bias, attention))
        x = layer.norm_attention(dropout(attended, hidden) + x)
        fed = layer.down(layer.activation(layer.up(x)))
        x = layer.norm_output(dropout(fed, hidden) + x)
    return x


def pool(x: Tensor, layout: Layout, pooling: str) -> Tensor:
    """Pool packed (T,d) states to one float32 (n,d) vector per document."""
    sizes = torch.tensor(layout.lengths, device=x.device)
    if pooling == "cls":
        return x[sizes.cumsum(0) - sizes].float()
    return torch.segment_reduce(x.float(), "mean", lengths=sizes)

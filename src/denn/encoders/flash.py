"""Attention within packed documents on CUDA: no padding, an added bias, dropout, and exact gradients.

Documents are laid end to end; each program takes a block of one document's rows and moves along that document's columns
with a running softmax, so no (L,L) matrix is ever written. The backward pass recomputes the weights from the row's
log-sum and needs no atomic additions: the same seed gives the same bits.

The bias (MPNet's relative positions) is added unchanged and gets no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError as TritonError

LOG2E = 1.4426950408889634
SIDE = 128  # the bias is padded to a multiple of the largest block, so that loading it needs no mask


@triton.jit
def _mix(x):  # type: ignore[no-untyped-def]
    """Scramble 32-bit numbers."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _kept(row_keys, column_keys, cut):  # type: ignore[no-untyped-def]
    """Decide for each cell whether dropout keeps it, from well-mixed keys of its row and its column."""
    return (row_keys ^ column_keys) * 0x9E3779B1 >= cut.to(tl.uint32)


@triton.jit(do_not_specialize=["cut", "tokens"])  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    QKV, BIAS, OUT, LSE, STARTS, SEED, scale, cut, rescale, side, tokens,
    HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BIASED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    head, document, seed = tl.program_id(1), tl.program_id(2), tl.load(SEED)
    start = tl.load(STARTS + document)
    length = tl.load(STARTS + document + 1) - start
    first = tl.program_id(0) * M
    if first >= length:
        return
    width: tl.constexpr = HEADS * D
    rows = first + tl.arange(0, M)
    dims = tl.arange(0, D)
    base = QKV + head * D
    q = tl.load(base + (start + rows)[:, None] * (3 * width) + dims[None, :], mask=(rows < length)[:, None], other=0.0)
    row_keys = _mix((seed + (start + rows) * HEADS + head).to(tl.uint32))
    best = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for begin in range(0, length, N):
        columns = begin + tl.arange(0, N)
        inside = columns < length
        places = (start + columns) * (3 * width)
        k = tl.load(base + width + places[None, :] + dims[:, None], mask=inside[None, :], other=0.0)
        s = tl.dot(q, k) * scale
        if BIASED:
            s += tl.load(BIAS + head * side * side + rows[:, None] * side + columns[None, :]).to(tl.float32)
        s = tl.where(inside[None, :], s, float("-inf"))
        highest = tl.maximum(best, tl.max(s, 1))
        p = tl.exp2(s - highest[:, None])
        shrink = tl.exp2(best - highest)
        total = total * shrink + tl.sum(p, 1)
        if DROPS:
            column_keys = _mix((~seed + (start + columns) * HEADS + head).to(tl.uint32))
            p = tl.where(_kept(row_keys[:, None], column_keys[None, :], cut), p, 0.0)
        v = tl.load(base + 2 * width + places[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        best = highest
    out = acc * (rescale / total)[:, None]
    places = (start + rows)[:, None] * width + head * D + dims[None, :]
    tl.store(OUT + places, out.to(OUT.dtype.element_ty), mask=(rows < length)[:, None])
    tl.store(LSE + head * tokens + start + rows, best + tl.log2(total), mask=rows < length)


@triton.jit  # type: ignore[untyped-decorator]
def _query_step(  # type: ignore[no-untyped-def]
    dq, q, grad, delta, lse, base, row_keys, rows, begin, start, length, head, seed, BIAS, scale, cut, rescale, side,
    HEADS: tl.constexpr, D: tl.constexpr, N: tl.constexpr, BIASED: tl.constexpr, DROPS: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Add what a block of columns contributes to the gradients of a block of queries."""
    width: tl.constexpr = HEADS * D
    columns, dims = begin + tl.arange(0, N), tl.arange(0, D)
    key_places = (start + columns)[None, :] * (3 * width) + dims[:, None]
    if MASKED:
        inside = columns < length
        k = tl.load(base + width + key_places, mask=inside[None, :], other=0.0)
        v = tl.load(base + 2 * width + key_places, mask=inside[None, :], other=0.0)
    else:
        k = tl.load(base + width + key_places)
        v = tl.load(base + 2 * width + key_places)
    s = tl.dot(q, k) * scale - lse[:, None]
    if BIASED:
        s += tl.load(BIAS + head * side * side + rows[:, None] * side + columns[None, :]).to(tl.float32)
    p = tl.exp2(s)
    if MASKED:
        p = tl.where(inside[None, :], p, 0.0)
    dp = tl.dot(grad, v)
    if DROPS:
        column_keys = _mix((~seed + (start + columns) * HEADS + head).to(tl.uint32))
        dp = tl.where(_kept(row_keys[:, None], column_keys[None, :], cut), dp * rescale, 0.0)
    ds = p * (dp - delta[:, None])
    return tl.dot(ds.to(k.dtype), tl.trans(k), dq)


@triton.jit(do_not_specialize=["cut", "tokens"])  # type: ignore[untyped-decorator]
def _backward_rows(  # type: ignore[no-untyped-def]
    QKV, BIAS, OUT, GRAD, LSE, DELTA, DQKV, STARTS, SEED, scale, cut, rescale, side, tokens,
    HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BIASED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the queries; leave each row's Σ grad·out for `_backward_columns`."""
    head, document, seed = tl.program_id(1), tl.program_id(2), tl.load(SEED)
    start = tl.load(STARTS + document)
    length = tl.load(STARTS + document + 1) - start
    first = tl.program_id(0) * M
    if first >= length:
        return
    width: tl.constexpr = HEADS * D
    rows = first + tl.arange(0, M)
    real = rows < length
    dims = tl.arange(0, D)
    base = QKV + head * D
    places = (start + rows)[:, None] * width + head * D + dims[None, :]
    q = tl.load(base + (start + rows)[:, None] * (3 * width) + dims[None, :], mask=real[:, None], other=0.0)
    grad = tl.load(GRAD + places, mask=real[:, None], other=0.0)
    out = tl.load(OUT + places, mask=real[:, None], other=0.0)
    delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(DELTA + head * tokens + start + rows, delta, mask=real)
    lse = tl.load(LSE + head * tokens + start + rows, mask=real, other=float("inf"))
    row_keys = _mix((seed + (start + rows) * HEADS + head).to(tl.uint32))
    dq = tl.zeros([M, D], tl.float32)
    whole = length // N * N
    for begin in range(0, whole, N):
        dq = _query_step(
            dq, q, grad, delta, lse, base, row_keys, rows, begin, start, length, head, seed, BIAS, scale, cut, rescale,
            side, HEADS, D, N, BIASED, DROPS, False,
        )  # fmt: skip
    if whole < length:
        dq = _query_step(
            dq, q, grad, delta, lse, base, row_keys, rows, whole, start, length, head, seed, BIAS, scale, cut, rescale,
            side, HEADS, D, N, BIASED, DROPS, True,
        )  # fmt: skip
    dq *= scale / 1.4426950408889634
    tl.store(
        DQKV + head * D + (start + rows)[:, None] * (3 * width) + dims[None, :],
        dq.to(DQKV.dtype.element_ty),
        mask=real[:, None],
    )


@triton.jit  # type: ignore[untyped-decorator]
def _key_step(  # type: ignore[no-untyped-def]
    dk, dv, k, v, base, column_keys, columns, begin, start, length, head, seed, BIAS, GRAD, LSE, DELTA, scale, cut,
    rescale, side, tokens, HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr, BIASED: tl.constexpr,
    DROPS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add what a block of rows contributes to the gradients of a block of keys and values."""
    width: tl.constexpr = HEADS * D
    rows, dims = begin + tl.arange(0, M), tl.arange(0, D)
    query_places = base + (start + rows)[:, None] * (3 * width) + dims[None, :]
    grad_places = GRAD + (start + rows)[:, None] * width + head * D + dims[None, :]
    sums = head * tokens + start + rows
    if MASKED:
        real = rows < length
        q = tl.load(query_places, mask=real[:, None], other=0.0)
        grad = tl.load(grad_places, mask=real[:, None], other=0.0)
        lse = tl.load(LSE + sums, mask=real, other=float("inf"))
        delta = tl.load(DELTA + sums, mask=real, other=0.0)
    else:
        q = tl.load(query_places)
        grad = tl.load(grad_places)
        lse = tl.load(LSE + sums)
        delta = tl.load(DELTA + sums)
    s = tl.dot(k, tl.trans(q)) * scale - lse[None, :]  # (N,M)
    if BIASED:  # the bias of (column, row) is stored after that of all heads
        s += tl.load(BIAS + (HEADS + head) * side * side + columns[:, None] * side + rows[None, :]).to(tl.float32)
    p = tl.exp2(s)
    dp = tl.dot(v, tl.trans(grad))
    if DROPS:
        row_keys = _mix((seed + (start + rows) * HEADS + head).to(tl.uint32))
        kept = _kept(row_keys[None, :], column_keys[:, None], cut)
        dv = tl.dot(tl.where(kept, p, 0.0).to(grad.dtype), grad, dv)
        dp = tl.where(kept, dp * rescale, 0.0)
    else:
        dv = tl.dot(p.to(grad.dtype), grad, dv)
    ds = p * (dp - delta[None, :])
    return tl.dot(ds.to(q.dtype), q, dk), dv


@triton.jit(do_not_specialize=["cut", "tokens"])  # type: ignore[untyped-decorator]
def _backward_columns(  # type: ignore[no-untyped-def]
    QKV, BIAS, GRAD, LSE, DELTA, DQKV, STARTS, SEED, scale, cut, rescale, side, tokens,
    HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BIASED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of keys and values: a block of N columns moves along the rows."""
    head, document, seed = tl.program_id(1), tl.program_id(2), tl.load(SEED)
    start = tl.load(STARTS + document)
    length = tl.load(STARTS + document + 1) - start
    first = tl.program_id(0) * N
    if first >= length:
        return
    width: tl.constexpr = HEADS * D
    columns = first + tl.arange(0, N)
    inside = columns < length
    dims = tl.arange(0, D)
    base = QKV + head * D
    key_places = (start + columns)[:, None] * (3 * width) + dims[None, :]
    k = tl.load(base + width + key_places, mask=inside[:, None], other=0.0)
    v = tl.load(base + 2 * width + key_places, mask=inside[:, None], other=0.0)
    column_keys = _mix((~seed + (start + columns) * HEADS + head).to(tl.uint32))
    dk = tl.zeros([N, D], tl.float32)
    dv = tl.zeros([N, D], tl.float32)
    whole = length // M * M
    for begin in range(0, whole, M):
        dk, dv = _key_step(
            dk, dv, k, v, base, column_keys, columns, begin, start, length, head, seed, BIAS, GRAD, LSE, DELTA, scale,
            cut, rescale, side, tokens, HEADS, D, M, BIASED, DROPS, False,
        )  # fmt: skip
    if whole < length:
        dk, dv = _key_step(
            dk, dv, k, v, base, column_keys, columns, whole, start, length, head, seed, BIAS, GRAD, LSE, DELTA, scale,
            cut, rescale, side, tokens, HEADS, D, M, BIASED, DROPS, True,
        )  # fmt: skip
    dk *= scale / 1.4426950408889634
    dv *= rescale
    places = DQKV + head * D + key_places
    tl.store(places + width, dk.to(DQKV.dtype.element_ty), mask=inside[:, None])
    tl.store(places + 2 * width, dv.to(DQKV.dtype.element_ty), mask=inside[:, None])


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, bias: Tensor | None, starts: Tensor, longest: int, heads: int, share: float, seed: Tensor
    ) -> Tensor:
        qkv = qkv.contiguous()
        tokens, width = qkv.shape[0], qkv.shape[1] // 3
        out = qkv.new_empty(tokens, width)
        lse = torch.empty(heads, tokens, device=qkv.device, dtype=torch.float32)
        ctx.settings = _settings(width, heads, bias, share, tokens)
        ctx.save_for_backward(qkv, bias, out, lse, starts, seed)
        ctx.longest = longest
        numbers, constants = ctx.settings
        rows, columns, options = FORWARD
        grid = (triton.cdiv(longest, rows), heads, len(starts) - 1)
        _forward[grid](qkv, bias, out, lse, starts, seed, *numbers, **constants, M=rows, N=columns, **options)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        qkv, bias, out, lse, starts, seed = ctx.saved_tensors
        numbers, constants = ctx.settings
        grad, delta, dqkv = grad.contiguous(), torch.empty_like(lse), torch.empty_like(qkv)
        rows, columns, options = BACKWARD_ROWS
        grid = (triton.cdiv(ctx.longest, rows), constants["HEADS"], len(starts) - 1)
        _backward_rows[grid](
            qkv, bias, out, grad, lse, delta, dqkv, starts, seed, *numbers, **constants, M=rows, N=columns, **options
        )
        rows, columns, options = BACKWARD_COLUMNS
        grid = (triton.cdiv(ctx.longest, columns), constants["HEADS"], len(starts) - 1)
        _backward_columns[grid](
            qkv, bias, grad, lse, delta, dqkv, starts, seed, *numbers, **constants, M=rows, N=columns, **options
        )
        return dqkv, None, None, None, None, None, None


# Rows and columns of a block, and compiler settings; measured on an H200.
FORWARD = (64, 64, {"num_warps": 4, "num_stages": 2})
BACKWARD_ROWS = (64, 32, {"num_warps": 4, "num_stages": 3})
BACKWARD_COLUMNS = (64, 64, {"num_warps": 4, "num_stages": 3})


def _settings(
    width: int, heads: int, bias: Tensor | None, share: float, tokens: int
) -> tuple[tuple[object, ...], dict[str, Any]]:
    """Return the arguments and compile-time constants of all three kernels."""
    side = 0 if bias is None else bias.shape[-1]
    scale = LOG2E / (width // heads) ** 0.5
    numbers = (scale, round(share * 2**32), 1 / (1 - share), side, tokens)
    constants = {"HEADS": heads, "D": width // heads, "BIASED": bias is not None, "DROPS": share > 0}
    return numbers, constants


def attend(
    qkv: Tensor, bias: Tensor | None, starts: Tensor, longest: int, heads: int, share: float, seed: Tensor
) -> Tensor:
    """Attend within each document: (T,3d) → (T,d).

    `starts` are the (n+1,) int32 first rows of the documents, `bias` comes from `prepare_bias`, and `share` of the
    weights is dropped at random, depending only on the seed, an int32 on the device.
    """
    out: Tensor = _Attention.apply(qkv, bias, starts, longest, heads, share, seed)  # type: ignore[no-untyped-call]
    return out


def prepare_bias(bias: Tensor) -> Tensor:
    """Pad a (heads,L,L) bias to whole blocks and convert it to base 2 for the kernels: (2,heads,L,L).

    The second copy is transposed, so that a kernel that moves along the rows reads memory in order.
    """
    missing = -bias.shape[-1] % SIDE
    padded = torch.nn.functional.pad(bias.detach(), (0, missing, 0, missing)) * LOG2E
    return torch.stack([padded, padded.mT]).contiguous()


@torch.inference_mode(False)
@torch.enable_grad()
def try_out() -> None:
    """Run the kernels once, on two tokens, to check that they compile here."""
    qkv = torch.zeros(2, 48, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    starts, seed = (torch.tensor(values, device="cuda", dtype=torch.int32) for values in ([0, 2], [0] * 4))
    torch.autograd.grad(attend(qkv, None, starts, 2, 1, 0.0, seed).sum(), qkv)

"""The operations between two matrix products of a transformer, in one pass over memory on CUDA.

`residual_norm` is layer_norm(x + dropout(y + bias)), `biased_gelu` is gelu(x + bias). Their backward passes compute the
gradients of all inputs; those of bias, weight and shift are summed over the rows in a fixed order. `linear_and_input`
adds the gradients of a linear map and of the parallel residual within the matrix product.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from denn.encoders.flash import _mix

# How the work is divided, as measured on an H200: rows per program, and its warps.
NORM = {"num_warps": 1}
NORM_BACKWARD = {"ROWS": 16, "num_warps": 1}
GELU = {"ROWS": 4, "BLOCK": 1024, "num_warps": 8}
GELU_BACKWARD = {"STEPS": 4, "ROWS": 2, "BLOCK": 1024, "num_warps": 4}


@triton.jit(do_not_specialize=["cut"])  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    Y, BIAS, X, WEIGHT, SHIFT, OUT, SUM, MEAN, RSTD, SEED, cut, rescale, eps,
    D: tl.constexpr, BLOCK: tl.constexpr, DROPS: tl.constexpr, KEEPS: tl.constexpr,
):  # fmt: skip
    row, seed = tl.program_id(0), tl.load(SEED)
    columns = tl.arange(0, BLOCK)
    inside = columns < D
    y = tl.load(Y + row * D + columns, mask=inside, other=0.0).to(tl.float32)
    y += tl.load(BIAS + columns, mask=inside, other=0.0).to(tl.float32)
    if DROPS:
        y = tl.where(_kept(row, columns, seed, cut, D), y * rescale, 0.0)
    x = y + tl.load(X + row * D + columns, mask=inside, other=0.0).to(tl.float32)
    x = x.to(OUT.dtype.element_ty).to(tl.float32)  # normalise exactly what the backward pass will read
    mean = tl.sum(x, 0) / D
    centred = tl.where(inside, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, 0) / D + eps)
    weight = tl.load(WEIGHT + columns, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(SHIFT + columns, mask=inside, other=0.0).to(tl.float32)
    out = centred * rstd * weight + shift
    tl.store(OUT + row * D + columns, out.to(OUT.dtype.element_ty), mask=inside)
    if KEEPS:  # for the backward pass
        tl.store(SUM + row * D + columns, x.to(SUM.dtype.element_ty), mask=inside)
        tl.store(MEAN + row, mean)
        tl.store(RSTD + row, rstd)


@triton.jit(do_not_specialize=["cut", "rows"])  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    GRAD, WEIGHT, SUM, MEAN, RSTD, DY, DX, SUMS, SEED, cut, rescale, rows,
    D: tl.constexpr, BLOCK: tl.constexpr, DROPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    program, seed = tl.program_id(0), tl.load(SEED)
    columns = tl.arange(0, BLOCK)
    inside = columns < D
    weight = tl.load(WEIGHT + columns, mask=inside, other=0.0).to(tl.float32)
    for_bias = tl.zeros([BLOCK], tl.float32)
    for_weight = tl.zeros([BLOCK], tl.float32)
    for_shift = tl.zeros([BLOCK], tl.float32)
    for row in range(program * ROWS, tl.minimum(program * ROWS + ROWS, rows)):
        grad = tl.load(GRAD + row * D + columns, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(SUM + row * D + columns, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(RSTD + row)
        normal = tl.where(inside, (x - tl.load(MEAN + row)) * rstd, 0.0)
        for_shift += grad
        for_weight += grad * normal
        scaled = grad * weight
        dx = rstd * (scaled - tl.sum(scaled, 0) / D - normal * (tl.sum(scaled * normal, 0) / D))
        tl.store(DX + row * D + columns, dx.to(DX.dtype.element_ty), mask=inside)
        if DROPS:
            dx = tl.where(_kept(row, columns, seed, cut, D), dx * rescale, 0.0)
        tl.store(DY + row * D + columns, dx.to(DY.dtype.element_ty), mask=inside)
        for_bias += tl.where(inside, dx, 0.0)
    place = SUMS + program * 3 * D + columns
    tl.store(place, for_bias, mask=inside)
    tl.store(place + D, for_weight, mask=inside)
    tl.store(place + 2 * D, for_shift, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _kept(row, columns, seed, cut, D: tl.constexpr):  # type: ignore[no-untyped-def]
    """Decide for each entry of a row whether dropout keeps it."""
    return _mix((row * D + columns + seed).to(tl.uint32)) >= cut.to(tl.uint32)


@triton.jit
def _normal(x, bell):  # type: ignore[no-untyped-def]
    """Return Φ(x), given exp(−x²/2): Abramowitz and Stegun, 7.1.26, off by at most 1e-7."""
    t = 1 / (1 + 0.2316418882663604 * tl.abs(x))  # 0.3275911 / √2
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    tail = 0.5 * series * bell
    return tl.where(x < 0, tail, 1 - tail)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _gelu_forward(  # type: ignore[no-untyped-def]
    X, BIAS, OUT, rows, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (columns < D)[None, :]
    places = row[:, None] * D + columns[None, :]
    x = tl.load(X + places, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(BIAS + columns, mask=columns < D, other=0.0).to(tl.float32)[None, :]
    out = x * _normal(x, tl.exp2(x * x * -0.7213475204444817))
    tl.store(OUT + places, out.to(OUT.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _gelu_backward(  # type: ignore[no-untyped-def]
    GRAD, X, BIAS, DX, SUMS, rows, D: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    program = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    bias = tl.load(BIAS + columns, mask=columns < D, other=0.0).to(tl.float32)
    for_bias = tl.zeros([BLOCK], tl.float32)
    for step in range(STEPS):
        row = (program * STEPS + step) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (columns < D)[None, :]
        places = row[:, None] * D + columns[None, :]
        x = tl.load(X + places, mask=inside, other=0.0).to(tl.float32) + bias[None, :]
        bell = tl.exp2(x * x * -0.7213475204444817)  # exp(−x²/2); over √(2π) it is the slope of Φ
        slope = _normal(x, bell) + x * bell * 0.3989422804014327
        dx = tl.load(GRAD + places, mask=inside, other=0.0).to(tl.float32) * slope
        tl.store(DX + places, dx.to(DX.dtype.element_ty), mask=inside)
        for_bias += tl.sum(dx, 0)
    tl.store(SUMS + program * D + columns, for_bias, mask=columns < D)


class _BiasedGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        rows, width = x.shape
        out = torch.empty_like(x)
        grid = (triton.cdiv(rows, GELU["ROWS"]), triton.cdiv(width, GELU["BLOCK"]))
        _gelu_forward[grid](x, bias, out, rows, D=width, **GELU)
        ctx.save_for_backward(x, bias)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, bias = ctx.saved_tensors
        rows, width = x.shape
        grad, dx, g = grad.contiguous(), torch.empty_like(x), GELU_BACKWARD
        grid = (triton.cdiv(rows, g["STEPS"] * g["ROWS"]), triton.cdiv(width, g["BLOCK"]))
        sums = torch.empty(grid[0], width, device=x.device, dtype=torch.float32)
        _gelu_backward[grid](grad, x, bias, dx, sums, rows, D=width, **g)
        return dx, sums.sum(0).to(bias.dtype)


def biased_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Return the exact gelu(x + bias) of a (T,d) matrix."""
    out: Tensor = _BiasedGelu.apply(x, bias)  # type: ignore[no-untyped-call]
    return out


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        bias: Tensor,
        x: Tensor,
        weight: Tensor,
        shift: Tensor,
        eps: float,
        share: float,
        seed: Tensor,
    ) -> Tensor:
        rows, width = y.shape
        keeps = any(ctx.needs_input_grad)
        out = torch.empty_like(x)
        total = torch.empty_like(x) if keeps else out  # not written without a backward pass
        mean, rstd = torch.empty(2, rows if keeps else 1, device=x.device, dtype=torch.float32)
        numbers = (round(share * 2**32), 1 / (1 - share))
        constants = {"D": width, "BLOCK": triton.next_power_of_2(width), "DROPS": share > 0}
        _forward[(rows,)](
            y, bias, x, weight, shift, out, total, mean, rstd, seed, *numbers, eps, **constants, KEEPS=keeps, **NORM
        )
        ctx.save_for_backward(weight, total, mean, rstd, seed)
        ctx.settings = numbers, constants
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, total, mean, rstd, seed = ctx.saved_tensors
        numbers, constants = ctx.settings
        grad, dx, dy = grad.contiguous(), torch.empty_like(total), torch.empty_like(total)
        programs = triton.cdiv(len(total), NORM_BACKWARD["ROWS"])
        sums = torch.empty(programs, 3, total.shape[1], device=total.device, dtype=torch.float32)
        _backward[(programs,)](
            grad, weight, total, mean, rstd, dy, dx, sums, seed, *numbers, len(total), **constants, **NORM_BACKWARD
        )
        for_bias, for_weight, for_shift = sums.sum(0).to(weight.dtype)
        return dy, for_bias, dx, for_weight, for_shift, None, None, None


def residual_norm(
    y: Tensor, bias: Tensor, x: Tensor, weight: Tensor, shift: Tensor, eps: float, share: float, seed: Tensor
) -> Tensor:
    """Return layer_norm(x + dropout(y + bias)) of (T,d) matrices; the seed is an int32 on the device."""
    out: Tensor = _ResidualNorm.apply(y, bias, x, weight, shift, eps, share, seed)  # type: ignore[no-untyped-call]
    return out


class _LinearAndInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, dx: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        for_bias = grad.sum(0) if ctx.needs_input_grad[2] else None
        return dx.addmm_(grad, weight), grad.mT @ x, for_bias  # dx is a tensor that `residual_norm` made for this


def linear_and_input(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return a linear map of x, and x itself for the `residual_norm` that follows; nothing else may use the latter."""
    mapped, same = _LinearAndInput.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return mapped, same


@torch.inference_mode(False)
@torch.enable_grad()
def try_out() -> None:
    """Run the kernels once, on two rows, to check that they compile here."""
    x = torch.zeros(2, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    seed = torch.zeros(4, device="cuda", dtype=torch.int32)
    mapped, same = linear_and_input(x, torch.eye(16, device="cuda", dtype=torch.bfloat16))
    torch.autograd.grad(residual_norm(biased_gelu(mapped, x[0]), x[0], same, x[0], x[0], 1e-5, 0.0, seed).sum(), x)

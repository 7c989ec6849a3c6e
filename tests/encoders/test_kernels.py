"""Our CUDA kernels against plain torch, dropout included: what they drop is recomputed here from the same seeds.

They run on a CUDA device, or anywhere in Triton's interpreter (TRITON_INTERPRET=1).
"""

import os

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton", reason="Triton is not installed; it comes with torch's CUDA builds")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not torch.cuda.is_available() and not INTERPRETED:
    pytest.skip("no CUDA device; TRITON_INTERPRET=1 tries the kernels without", allow_module_level=True)

from denn.encoders import flash, fused  # noqa: E402
from denn.encoders.layout import Layout  # noqa: E402

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
HEADS, SIZE = 2, 16
LENGTHS = [5, 1, 70, 130]
WORD = 0xFFFFFFFF


def mix(x):
    x = x & WORD
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & WORD
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & WORD
    return x ^ (x >> 16)


def seed_of(value):
    return torch.full((4,), value, dtype=torch.int32, device=DEVICE)


def kept_weights(start, length, head, seed, share):
    places = torch.arange(start, start + length)
    rows, columns = (mix(s + places * HEADS + head) for s in (seed, ~seed))
    return ((rows[:, None] ^ columns) * 0x9E3779B1) & WORD >= round(share * 2**32)


def plain_attention(qkv, bias, share, seed):
    out, start = [], 0
    for length in LENGTHS:
        q, k, v = qkv[start : start + length].view(length, 3, HEADS, SIZE).permute(1, 2, 0, 3)
        weights = torch.softmax(q @ k.mT / SIZE**0.5 + bias[:, :length, :length], dim=-1)
        if share:
            kept = torch.stack([kept_weights(start, length, head, seed, share) for head in range(HEADS)])
            weights = weights * kept.to(DEVICE) / (1 - share)
        out.append((weights @ v).transpose(0, 1).reshape(length, -1))
        start += length
    return torch.cat(out)


@pytest.mark.parametrize(("share", "seed"), [(0.0, 1), (0.1, 7), (0.3, -123456789)])
def test_attention_and_its_gradient(share, seed):
    generator = torch.Generator().manual_seed(0)
    layout = Layout.of(LENGTHS, DEVICE)
    qkv = torch.randn(sum(LENGTHS), 3 * HEADS * SIZE, generator=generator).to(DEVICE).requires_grad_()
    bias = torch.randn(HEADS, 130, 130, generator=generator).to(DEVICE)
    direction = torch.randn(sum(LENGTHS), HEADS * SIZE, generator=generator).to(DEVICE)
    found = flash.attend(qkv, flash.prepare_bias(bias), layout.starts, 130, HEADS, share, seed_of(seed))
    wanted = plain_attention(qkv, bias, share, seed)
    close = {"rtol": 0, "atol": 1e-5} if INTERPRETED else {"rtol": 0.01, "atol": 0.01}  # the matrix units round
    torch.testing.assert_close(found, wanted, **close)
    gradients = [torch.autograd.grad(out, qkv, direction)[0] for out in (found, wanted)]
    torch.testing.assert_close(*gradients, **close)


def test_attention_without_a_bias():
    layout = Layout.of(LENGTHS, DEVICE)
    qkv = torch.randn(sum(LENGTHS), 3 * HEADS * SIZE, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    qkv.requires_grad_()
    found = flash.attend(qkv, None, layout.starts, 130, HEADS, 0.1, seed_of(5))
    wanted = plain_attention(qkv, torch.zeros(HEADS, 130, 130, device=DEVICE), 0.1, 5)
    close = {"rtol": 0, "atol": 1e-5} if INTERPRETED else {"rtol": 0.01, "atol": 0.01}
    torch.testing.assert_close(found, wanted, **close)
    gradients = [torch.autograd.grad(out.sin().sum(), qkv)[0] for out in (found, wanted)]
    torch.testing.assert_close(*gradients, **close)


@pytest.mark.parametrize(("share", "seed"), [(0.0, 3), (0.1, -99887766)])
def test_residual_norm_and_its_gradients(share, seed, monkeypatch):
    monkeypatch.setitem(fused.NORM_BACKWARD, "ROWS", 5)
    generator = torch.Generator().manual_seed(0)
    shapes = ((23, 48), (48,), (23, 48), (48,), (48,))
    inputs = [torch.randn(shape, generator=generator).to(DEVICE).requires_grad_() for shape in shapes]
    y, bias, x, weight, shift = inputs
    kept = (mix(torch.arange(23 * 48).view(23, 48) + seed) >= round(share * 2**32)).to(DEVICE)
    direction = torch.randn(23, 48, generator=generator).to(DEVICE)
    found = fused.residual_norm(y, bias, x, weight, shift, 1e-5, share, seed_of(seed))
    wanted = F.layer_norm(x + (y + bias) * kept / (1 - share), (48,), weight, shift, 1e-5)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    for one, other in zip(*(torch.autograd.grad(out, inputs, direction) for out in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 23])
def test_gelu_with_a_bias_and_its_gradients(rows, monkeypatch):
    monkeypatch.setitem(fused.GELU, "BLOCK", 32)
    monkeypatch.setattr(fused, "GELU_BACKWARD", {**fused.GELU_BACKWARD, "STEPS": 2, "ROWS": 4, "BLOCK": 32})
    generator = torch.Generator().manual_seed(0)
    x = (3 * torch.randn(rows, 48, generator=generator)).to(DEVICE).requires_grad_()
    bias = torch.randn(48, generator=generator).to(DEVICE).requires_grad_()
    direction = torch.randn(rows, 48, generator=generator).to(DEVICE)
    found, wanted = fused.biased_gelu(x, bias), F.gelu(x + bias)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    for one, other in zip(*(torch.autograd.grad(out, (x, bias), direction) for out in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


def test_a_linear_map_beside_its_residual_and_their_gradients():
    generator = torch.Generator().manual_seed(0)
    shapes = ((23, 48), (32, 48), (32,))
    inputs = [torch.randn(shape, generator=generator).to(DEVICE).requires_grad_() for shape in shapes]
    weight = torch.randn(48, 32, generator=generator).to(DEVICE)
    norm = torch.ones(48, device=DEVICE), torch.zeros(48, device=DEVICE)
    direction = torch.randn(23, 48, generator=generator).to(DEVICE)

    def layer(mapped, x):
        return fused.residual_norm(F.linear(mapped, weight), norm[1], x, *norm, 1e-5, 0.0, seed_of(1))

    found = layer(*fused.linear_and_input(*inputs))
    wanted = layer(F.linear(*inputs), inputs[0])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    for one, other in zip(*(torch.autograd.grad(out, inputs, direction) for out in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


def test_the_share_that_dropout_keeps():
    kept = torch.stack([kept_weights(0, 1000, head, 5, 0.1) for head in range(HEADS)]).float()
    assert abs(float(kept.mean()) - 0.9) < 0.002
    assert abs(float(torch.corrcoef(kept[0][:200])[0, 1:].abs().mean())) < 0.06  # rows are drawn apart

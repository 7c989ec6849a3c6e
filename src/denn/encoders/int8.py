"""Linear maps and GELU feed-forwards on 8-bit integers, calibrated on float32 rows, for CPUs with VNNI instructions."""

from functools import cache
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor
from torch.nn import functional as F

from denn.errors import EncoderError

LEVELS = 255  # activations are unsigned: 0 … 255
GELU_MINIMUM = -0.17


@cache
def available() -> bool:
    """Say whether this CPU and this torch multiply bytes fast and exactly."""
    if not torch.cpu._is_vnni_supported():
        return False
    x = torch.tensor([[-1.0, 0.6, 300.0, 255.0], [1.0, 2.0, 3.0, 4.0]])
    weight = torch.tensor([[127, 127, 127, 127], [1, -2, 3, -4]], dtype=torch.int8)
    expected = torch.tensor([[64897.0, -257.0], [1270.0, -10.0]])
    with catch_warnings():
        simplefilter("ignore")  # torch announces, once, that it may drop its quantised tensors
        try:
            return torch.equal(_linear(_bytes(x), _Weight(weight, torch.ones(2)), torch.zeros(2)), expected)
        except (AttributeError, RuntimeError):
            return False


class _Weight:
    """Signed bytes (o,i) in the layout of the matrix kernel, with one scale per output."""

    def __init__(self, integers: Tensor, scale: Tensor) -> None:
        self.packed = torch.ops.onednn.qlinear_prepack(integers, None)
        self.scale = scale
        self.zeros = torch.zeros(len(scale), dtype=torch.int64)


def _bytes(x: Tensor) -> Tensor:
    """Round to 0 … 255 and clip what lies outside: float32 → uint8."""
    quantised = torch.quantize_per_tensor(x, 1.0, 0, torch.quint8)
    # The same memory read as uint8; int_repr() would copy it element by element.
    return torch.empty(0, dtype=torch.uint8).set_(quantised.untyped_storage(), 0, x.shape, quantised.stride())


def _linear(x: Tensor, weight: _Weight, bias: Tensor) -> Tensor:
    """Return x Wᵀ + bias: (T,i) bytes → (T,o) float32."""
    out: Tensor = torch.ops.onednn.qlinear_pointwise(
        x, 1.0, 0, weight.packed, weight.scale, weight.zeros, bias, 1.0, 0, torch.float32, "none", [], ""
    )
    return out


def _linear_add_(x: Tensor, weight: _Weight, bias: Tensor, residual: Tensor) -> Tensor:
    """Return residual + x Wᵀ + bias, written over the residual."""
    inputs = (x, 1.0, 0, weight.packed, weight.scale, weight.zeros, residual, bias)
    out: Tensor = torch.ops.onednn.qlinear_pointwise.binary(
        *inputs, 1.0, 0, torch.float32, 1.0, 0, "sum", 1.0, "none", [], ""
    )
    return out


def _linear_gelu(x: Tensor, weight: _Weight, bias: Tensor, step: float, zero: int) -> Tensor:
    """Return GELU(x Wᵀ + bias) / step + zero: (T,i) bytes → (T,o) bytes."""
    out: Tensor = torch.ops.onednn.qlinear_pointwise(
        x, 1.0, 0, weight.packed, weight.scale, weight.zeros, bias, step, zero, torch.uint8, "gelu", [], "none"
    )
    return out


def _rounded(weight: Tensor, inputs: Tensor) -> _Weight:
    """Round (o,i) weights column by column, later columns making up for earlier errors on (n,i) inputs (GPTQ)."""
    scale = weight.abs().amax(1).clamp_min(1e-12) / 127
    centred = inputs.float() - inputs.float().mean(0)  # the bias takes care of the mean error
    covariance = centred.T @ centred / len(centred)
    covariance.diagonal().add_(0.01 * covariance.diagonal().mean() + 1e-6)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
    factor = torch.linalg.cholesky(inverse, upper=True)
    left = (weight / scale[:, None]).T.contiguous()  # (i,o): one column of the weight per row
    for start in range(0, len(left), 64):
        block = left[start : start + 64]
        stop = start + len(block)
        errors = torch.empty_like(block)
        for j, row in enumerate(factor[start:stop, start:stop]):
            rounded = block[j].round().clamp_(-127, 127)
            errors[j] = (block[j] - rounded) / row[j]
            block[j] = rounded
            block[j + 1 :].addr_(row[j + 1 :], errors[j], alpha=-1)
        left[stop:].addmm_(factor[start:stop, stop:].T, errors, alpha=-1)
    return _Weight(left.T.contiguous().to(torch.int8), scale)


class Int8Linear:
    """A linear map on bytes; inputs outside the range of the calibration `rows` (n,i) are clipped to it.

    `strength` moves that share of each channel's range from the inputs to the weights (SmoothQuant's α); None gives
    all channels one range, for inputs whose channels are alike.
    """

    def __init__(self, weight: Tensor, bias: Tensor, rows: Tensor, *, strength: float | None = 0.85) -> None:
        if not available():
            raise EncoderError(
                "8-bit encoding was asked for on a CPU or a torch build without fast 8-bit matrix products; "
                "it needs AVX512-VNNI. Use float32."
            )
        low, high = rows.amin(0), rows.amax(0)
        if strength is None:
            low, high = low.min().expand_as(low), high.max().expand_as(high)
        half = ((high - low) / 2).clamp_min(1e-6)
        peak = weight.abs().amax(0).clamp_min(1e-6)
        smooth = torch.ones_like(half) if strength is None else half**strength / peak ** (1 - strength)
        # bytes = slope x + offset, so W x = (W / slope) bytes + constant; the bias takes up the constant.
        self.slope = LEVELS / (2 * smooth * (half / smooth).max())
        self.offset = LEVELS / 2 - self.slope * (low + high) / 2
        self.weight = _rounded(weight / self.slope, self.bytes(rows))
        self.bias = torch.zeros_like(bias)
        self.bias = (F.linear(rows, weight, bias) - self(rows)).mean(0)

    def bytes(self, x: Tensor) -> Tensor:
        """Return the inputs as bytes: (T,i) → (T,i) uint8."""
        return _bytes(torch.addcmul(self.offset, x, self.slope))

    def __call__(self, x: Tensor) -> Tensor:
        """Return x Wᵀ + b: (T,i) → (T,o)."""
        return _linear(self.bytes(x), self.weight, self.bias)

    def add_(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return residual + x Wᵀ + b, written over the residual (T,o)."""
        return _linear_add_(self.bytes(x), self.weight, self.bias, residual)


class Int8FeedForward:
    """The residual feed-forward x + down(GELU(up(x))) with a hidden layer of bytes, calibrated on `rows` (n,d).

    A byte saturates at a ceiling c. Hidden channels that go far beyond get more bytes: for large z,
    GELU(z) = min(GELU(z), c) + min(GELU(z - c), c) + min(GELU(z - 2c), c) + …
    """

    def __init__(self, up: tuple[Tensor, Tensor], down: tuple[Tensor, Tensor], rows: Tensor) -> None:
        hidden = F.gelu(F.linear(rows, *up))
        ceiling, copies = _spread(hidden.amax(0), hidden.shape[1] // 96)
        self.step = (ceiling - GELU_MINIMUM) / LEVELS
        self.zero = round(-GELU_MINIMUM / self.step)
        channel = torch.repeat_interleave(torch.arange(len(copies)), copies)
        nth = torch.arange(len(channel)) - (copies.cumsum(0) - copies)[channel]
        saturation = (LEVELS - self.zero) * self.step
        self.up = Int8Linear(up[0][channel], up[1][channel] - saturation * nth, rows)
        self.down = _rounded(down[0][:, channel] * self.step, self.hidden(rows))
        self.bias = torch.zeros_like(down[1])
        self.bias = (F.linear(hidden, *down) - self.add_(torch.zeros_like(rows), rows)).mean(0)

    def hidden(self, x: Tensor) -> Tensor:
        """Return GELU(up(x)) as bytes: (T,d) → (T,h) uint8."""
        return _linear_gelu(self.up.bytes(x), self.up.weight, self.up.bias, self.step, self.zero)

    def add_(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + down(GELU(up(x))), written over the residual (T,d), which may be x itself."""
        return _linear_add_(self.hidden(x), self.down, self.bias, residual)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x + down(GELU(up(x))), written over x: (T,d) → (T,d)."""
        return self.add_(x, x)


def _spread(peak: Tensor, extra: int) -> tuple[float, Tensor]:
    """Return the lowest ceiling at which `extra` more bytes reach every channel's peak, and each channel's bytes."""
    peak = peak.clamp_min(0.01)
    low, high = 0.0, float(peak.max())
    for _ in range(30):
        middle = (low + high) / 2
        fits = int((peak / middle).ceil().sum()) <= len(peak) + extra
        low, high = (low, middle) if fits else (middle, high)
    copies = (peak / high).ceil().long()
    copies[peak.argmax()] += len(peak) + extra - copies.sum()  # the rest: room above the highest peak seen
    return high, copies

"""The precision of an encoder's matrix products."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["auto", "float32", "bfloat16"]


def matrix_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """Return the type of the matrix products on a device; auto means bfloat16 if it is faster there."""
    if precision != "auto":
        return torch.bfloat16 if precision == "bfloat16" else torch.float32
    return torch.bfloat16 if _fast_bfloat16(device) else torch.float32


def _fast_bfloat16(device: torch.device) -> bool:
    """Return whether the device multiplies bfloat16 matrices faster than float32.

    CUDA does since Ampere, and so do CPUs with AMX or AVX-512 BF16.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())

"""Hardware and code behind a result: CPU, memory, GPU, commit, and the speed of matrix products."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

import denn
from denn.machine import memory

REPEATS = {"cuda": 2000, "cpu": 4}  # timed products, after as many others: a GPU lowers its clocks within a second
SIZES = {"cuda": 8192, "cpu": 2048}
DTYPES = {"cuda": torch.bfloat16, "cpu": torch.float32}
INSTRUCTIONS = {
    "AVX2": "_is_avx2_supported",
    "AVX-512": "_is_avx512_supported",
    "VNNI": "_is_vnni_supported",
    "AVX-512 BF16": "_is_avx512_bf16_supported",
    "AMX": "_is_amx_tile_supported",
}  # CPU instruction sets for matrix products → torch's check


def machine() -> dict[str, Any]:
    """Describe the machine without its host name."""
    return {
        "cpu": _cpu(),
        "instructions": [name for name, asked in INSTRUCTIONS.items() if getattr(torch.cpu, asked)()],
        "cores": os.cpu_count(),
        "memory": memory(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "os": f"{platform.system()} {platform.machine()}",
    }


def commit() -> str | None:
    """Return the commit of this package, with "+changes" if the package differs from it; None if unknown."""
    if given := os.environ.get("DENN_COMMIT"):
        return given
    package = Path(denn.__file__).parent
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    head = _git(package, "rev-parse", "HEAD")
    return head and head + ("+changes" if _git(package, "status", "--porcelain", "--", ".") else "")


def matrix_rate(device: str) -> float:
    """Measure the FLOP/s that square matrix products sustain: bfloat16 on CUDA (six seconds), float32 on a CPU."""
    size, repeats = SIZES[device], REPEATS[device]
    a, b = (torch.randn(size, size, device=device, dtype=DTYPES[device]) for _ in range(2))
    for _ in range(2):  # the second round counts
        _wait(device)
        begun = time.perf_counter()
        for _ in range(repeats):
            torch.mm(a, b)
        _wait(device)
        seconds = time.perf_counter() - begun
    return 2 * size**3 * repeats / seconds


def reset_peak_memory() -> None:
    """Reset the GPU's peak memory; on a CPU the peak is that of the whole process."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory() -> int:
    """Return the peak memory in bytes: of the GPU if there is one, otherwise of the process."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    import resource  # not on Windows

    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git, or None if it fails or is not installed."""
    try:
        said = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip()

"""Vectors around centres, their documents, and what the tests of the approximate index share."""

import time

import torch
import torch.nn.functional as F

from denn.types import Document

D = 24


def clustered(n: int, d: int = D, seed: int = 0) -> torch.Tensor:
    """Unit vectors around forty centres, which are the same for every seed."""
    centres = torch.randn(40, d, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    around = centres[torch.randint(40, (n,), generator=generator)]
    return F.normalize(around + 0.6 * torch.randn(n, d, generator=generator))


def documents(n: int, prefix: str = "d") -> list[Document]:
    return [Document(f"text {prefix}{i}", (f"label {i % 7}",), f"{prefix}{i}") for i in range(n)]


def eventually(holds, seconds: float = 60.0) -> None:
    """Wait for the work of a background thread."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def exact(matrix: torch.Tensor, queries: torch.Tensor, k: int) -> list[set[str]]:
    return [{f"d{i}" for i in row} for row in (queries @ matrix.T).topk(k).indices.tolist()]

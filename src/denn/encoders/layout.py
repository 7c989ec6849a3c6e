"""The positions of documents' tokens when all documents are packed into one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The position of each document's tokens in the packed matrix."""

    starts: Tensor  # (n+1,) int32: the first token of each document, and the end
    positions: Tensor  # (T,) position of each token in its document
    document: Tensor  # (T,) the document of each token
    longest: int  # upper bound on the length of a document

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Layout:
        """Lay documents of these lengths end to end."""
        starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        layout = cls.at(send(starts, device), int(starts[-1]), max(lengths, default=0))
        layout.__dict__["lengths"] = tuple(lengths)  # known here; the property would have to wait for the device
        return layout

    @classmethod
    def at(cls, starts: Tensor, total: int, longest: int) -> Layout:
        """Lay out documents whose (n+1,) starts are already on the device."""
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
        """The lengths, on the CPU; reading them waits for an accelerator."""
        return tuple(self.sizes.tolist())


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a small tensor from the CPU to a device without waiting for the device."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)

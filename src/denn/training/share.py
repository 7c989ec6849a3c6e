"""The part of a batch that one of several processes computes, and exact sums over all of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from denn.errors import LostProcessError

Group = Any  # a process group of torch, which has no public type
PATIENCE = 600.0  # seconds within which every process must take part in a step
POLL = 0.0002  # seconds between two checks


@dataclass(frozen=True)
class Share:
    """Documents `start` to `start + count` of a batch of `total`."""

    start: int
    count: int
    total: int
    group: Group = None

    @classmethod
    def of(cls, total: int, rank: int, size: int, group: Group = None) -> Share:
        """Return the documents of one of `size` processes; if there are too few for all, the first one takes them."""
        if total < size:
            return cls(0, 0 if rank else total, total, group)
        start, end = (total * number // size for number in (rank, rank + 1))
        return cls(start, end - start, total, group)

    @property
    def weight(self) -> float:
        """The weight of this part's mean in the mean over the batch."""
        return self.count / self.total

    def gather(self, own: Tensor, dim: int = 0) -> Tensor:
        """Return the values for all documents, given those for own documents along a dimension.

        The gradient of an own value is the sum of what all processes send back.
        """
        if self.count == self.total:
            return own
        sides = [0, 0] * (own.ndim - 1 - dim) + [self.start, self.total - self.start - self.count]
        own = own if own.is_floating_point() else own.float()
        gathered: Tensor = _Sum.apply(F.pad(own, sides), self.group)  # type: ignore[no-untyped-call]
        return gathered

    def own(self, values: Tensor, dim: int = 0) -> Tensor:
        """Return the values for own documents, given those for all of them along a dimension."""
        return values if self.count == self.total else values.narrow(dim, self.start, self.count)


WHOLE = Share(0, 1, 1)  # all of a batch, in a single process


class _Sum(torch.autograd.Function):
    """Sum over processes, in both directions: every process computes with all values."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return summed(values.clone(), group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return summed(gradients[0].clone(memory_format=torch.contiguous_format), ctx.group), None


def summed(values: Tensor, group: Group = None) -> Tensor:
    """Add up values over all processes, in place."""
    with connected():
        finish(dist.all_reduce(values, group=group, async_op=True))
    return values


def finish(work: Any) -> None:
    """Wait for an operation of all processes; raise a RuntimeError if one of them does not take part for long.

    Signals are handled in the meantime, so that Ctrl-C ends a run whose other processes are stopped or unreachable.
    """
    until = time.monotonic() + PATIENCE
    while not work.is_completed():
        if time.monotonic() > until:
            raise RuntimeError(f"another process did not answer for {PATIENCE:g} s")
        time.sleep(POLL)
    work.wait()


@contextmanager
def connected() -> Iterator[None]:
    """Raise a LostProcessError if another process has ended."""
    try:
        yield
    except RuntimeError as error:  # torch's, whichever backend raises it
        raise LostProcessError(
            "Another process of this training run has ended or cannot be reached. Run the same command again to "
            "resume from the last checkpoint."
        ) from error

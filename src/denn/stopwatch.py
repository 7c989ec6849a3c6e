"""Measure how long the parts of a computation take, if a caller asks for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_laps: ContextVar[dict[str, float] | None] = ContextVar("laps", default=None)


@contextmanager
def measured() -> Iterator[dict[str, float]]:
    """Yield a dictionary that receives the seconds of every `lap` inside the block, in this thread."""
    laps: dict[str, float] = {}
    token = _laps.set(laps)
    try:
        yield laps
    finally:
        _laps.reset(token)


@contextmanager
def lap(name: str) -> Iterator[None]:
    """Add the time of this block to a part, if a caller measures."""
    laps = _laps.get()
    if laps is None:
        yield
        return
    begun = time.perf_counter()
    try:
        yield
    finally:
        laps[name] = laps.get(name, 0.0) + time.perf_counter() - begun

"""Measure how fast the machine is now, compared with its last measurement."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable

from denn.encoders.tokens import Tokens

TIMED = 16  # texts for timing an encoder, more if it is very fast
TIMED_SECONDS = 0.2  # minimum seconds of reading to measure
STEPS = 8  # number of steps whose median is the pace


def seconds_a_token(read: Callable[[Tokens], object], tokens: Tokens, least: float = TIMED_SECONDS) -> float:
    """Measure the seconds per token for reading these texts, over at least `least` seconds of reading."""
    count = TIMED
    read(tokens.first(1))  # compiles and loads what it needs
    while True:
        some, begun = tokens.first(count), time.monotonic()
        read(some)
        taken = time.monotonic() - begun
        if taken > least or count >= len(tokens):
            return taken / len(some.flat)
        count *= 4


class Pace:
    """The seconds per token of the last steps, and the fewest since the last measurement."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=STEPS)
        self._calm = math.inf

    def note(self, seconds: float, tokens: int) -> None:
        """Record a step."""
        self._last.append(seconds / max(tokens, 1))
        if len(self._last) == STEPS:
            self._calm = max(1e-12, min(self._calm, statistics.median(self._last)))

    def forget(self) -> None:
        """Start again after a measurement."""
        self._last.clear()
        self._calm = math.inf

    def slower(self) -> float:
        """Return the factor by which steps have slowed down, at least 1."""
        return max(1.0, statistics.median(self._last) / self._calm) if self._last else 1.0

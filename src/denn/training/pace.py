"""How fast the machine is at the moment, against how fast it was when it was last measured."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable

from denn.encoders.tokens import Tokens

TIMED = 16  # texts that show how fast an encoder reads, more where that takes no time
TIMED_SECONDS = 0.2  # that reading them must take at least
STEPS = 8  # whose median tells the pace


def seconds_a_token(read: Callable[[Tokens], object], tokens: Tokens, least: float = TIMED_SECONDS) -> float:
    """Measure the seconds that a token of these texts takes to be read, by at least so many seconds of reading."""
    count = TIMED
    read(tokens.first(1))  # compiles and loads what is needed
    while True:
        some, begun = tokens.first(count), time.monotonic()
        read(some)
        taken = time.monotonic() - begun
        if taken > least or count >= len(tokens):
            return taken / len(some.flat)
        count *= 4


class Pace:
    """The seconds a token of the last steps, and the fewest since the last measurement."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=STEPS)
        self._calm = math.inf

    def note(self, seconds: float, tokens: int) -> None:
        """Take note of a step."""
        self._last.append(seconds / max(tokens, 1))
        if len(self._last) == STEPS:
            self._calm = max(1e-12, min(self._calm, statistics.median(self._last)))

    def forget(self) -> None:
        """Begin anew, as a measurement has just been made."""
        self._last.clear()
        self._calm = math.inf

    def slower(self) -> float:
        """Return by what factor steps are slower than they were, at least 1."""
        return max(1.0, statistics.median(self._last) / self._calm) if self._last else 1.0

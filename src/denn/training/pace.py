"""How fast the machine is at the moment, against how fast it was when it was last measured."""

from __future__ import annotations

import math
import statistics
from collections import deque

STEPS = 8  # whose median tells the pace


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

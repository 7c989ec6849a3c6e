"""The time budget of a training run, counted from the start of its command."""

from __future__ import annotations

import math
import time


class Clock:
    """Measures time against a budget, including earlier tries of the same training run."""

    def __init__(self, budget: float | None = None, begun: float | None = None) -> None:
        self.budget = math.inf if budget is None else budget
        self.begun = time.monotonic() if begun is None else begun  # a value of time.monotonic()
        self.earlier = 0.0  # seconds spent in earlier tries

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return self.earlier + time.monotonic() - self.begun

    def left(self) -> float:
        """Return the seconds left, negative if the budget is exceeded."""
        return self.budget - self.elapsed()

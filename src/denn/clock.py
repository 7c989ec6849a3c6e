"""The time that a training may take, from the start of the command that asked for it."""

from __future__ import annotations

import math
import time


class Clock:
    """Counts seconds against a budget; what earlier tries of the same training took counts too."""

    def __init__(self, budget: float | None = None, begun: float | None = None) -> None:
        self.budget = math.inf if budget is None else budget
        self.begun = time.monotonic() if begun is None else begun  # in terms of time.monotonic
        self.earlier = 0.0  # seconds of earlier tries

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return self.earlier + time.monotonic() - self.begun

    def left(self) -> float:
        """Return the seconds that are left, less than none where the budget is overdrawn."""
        return self.budget - self.elapsed()

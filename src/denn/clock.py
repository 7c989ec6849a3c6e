"""The time budget of a training run, counted from the start of its command."""

from __future__ import annotations

import math
import re
import time

from denn.errors import ConfigError

LONGEST = 10**9  # seconds: 31 years


def seconds_in(text: str) -> float:
    """Convert "90", "90s", "5m" or "1h30m" to seconds."""
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?", text)
    if not text or found is None:
        raise ConfigError(f"{text[:20]!r} is not a time. Give one such as 90, 90s, 5m or 1h30m.")
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    total = 3600 * hours + 60 * minutes + seconds
    if total > LONGEST:
        raise ConfigError(f"{text[:20]!r} is too long. Give at most {LONGEST:,} seconds.")
    return total


def read_budget(given: float | str | None) -> float | None:
    """Convert a time budget to seconds; anything but a string stays as it is."""
    try:
        return seconds_in(given) if isinstance(given, str) else given
    except ConfigError as error:
        raise ConfigError(f"time_budget: {error}") from error


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

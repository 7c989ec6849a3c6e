"""What a check of a datastore found: facts, and problems with what to do about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from denn.wording import counted

RESTORE = "Restore a backup (`denn store restore`), or build the datastore again from the corpus."
HISTORY = "The documents are intact, but undoing may fail. `denn store vacuum MODEL --keep 0` discards the history."


@dataclass
class Findings:
    """Facts about a datastore, and sentences about what is wrong, each with a remedy."""

    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def problem(self, what: str, remedy: str = RESTORE) -> None:
        """Record one problem."""
        self.problems.append(f"{what}. {remedy}")

    def some(self, what: str, noun: str, count: int, first: object = None, remedy: str = RESTORE) -> None:
        """Record a problem that several things have, with the first of them; nothing if there are none."""
        if count:
            example = "" if first is None else f" (such as {first!r})"
            self.problem(f"{what}: {counted(count, noun)}{example}", remedy)

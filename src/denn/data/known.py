"""What is published of the corpora known by name, for those who want to know before they have the files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """The size of a corpus and the way to its files; a part of size 0 is split off train when it is read."""

    train: int
    valid: int
    test: int
    labels: int
    get: str


KNOWN = {
    "debian": Known(23_520, 2_940, 2_940, 365, "denn data get debian"),  # of Debian 13; other releases differ a little
    "goemotions": Known(43_410, 5_426, 5_427, 28, "Demszky et al. 2020"),
    "reuters21578": Known(7_770, 0, 3_019, 90, "Lewis, ModApte split"),
}

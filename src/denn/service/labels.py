"""A cache of the sorted labels, because sorting many of them is slow."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Literal, TypeAlias

from denn.vocabulary import Vocabulary

Order: TypeAlias = Literal["documents", "name"]


class OrderedLabels:
    """Cache the labels in each order until a count changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Mapping[str, int] = {}
        self._vocabulary = Vocabulary()
        self._ordered: dict[Order, list[tuple[str, str]]] = {}  # names, each with its case-folded form

    def find(self, counts: Mapping[str, int], query: str, order: Order, vocabulary: Vocabulary) -> list[str]:
        """Return the labels whose names or ids contain a query, ignoring case, in the given order."""
        called = vocabulary.name
        with self._lock:
            if counts != self._counts or vocabulary is not self._vocabulary:
                self._counts, self._vocabulary, self._ordered = counts, vocabulary, {}
            if order not in self._ordered:
                by_count = order == "documents"
                names = sorted(counts, key=(lambda one: (-counts[one], called(one))) if by_count else called)
                folded = ((one, called(one)) for one in names)
                self._ordered[order] = [
                    (one, (one if name == one else f"{name}\n{one}").casefold()) for one, name in folded
                ]
            ordered = self._ordered[order]
        wanted = query.casefold()
        return [name for name, folded in ordered if wanted in folded]

"""The labels in order, which takes long to make where there are very many, and is kept until one of them changes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Literal, TypeAlias

from denn.vocabulary import Vocabulary

Order: TypeAlias = Literal["documents", "name"]


class OrderedLabels:
    """Label names by the number of their documents and by name, of the last state that was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Mapping[str, int] = {}
        self._ordered: dict[Order, list[tuple[str, str]]] = {}  # names, each with what a query is compared with

    def find(self, counts: Mapping[str, int], query: str, order: Order, vocabulary: Vocabulary) -> list[str]:
        """Return the labels that contain a query in their names or ids, in any case of letters; names decide on order.

        The vocabulary is that of the model, so always the same.
        """
        called = vocabulary.name
        with self._lock:
            if counts != self._counts:
                self._counts, self._ordered = counts, {}
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

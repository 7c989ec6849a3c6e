"""The labels in order, which takes long to make where there are very many, and is kept until one of them changes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Literal, TypeAlias

Order: TypeAlias = Literal["documents", "name"]


class OrderedLabels:
    """Label names by the number of their documents and by name, of the last state that was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Mapping[str, int] = {}
        self._ordered: dict[Order, list[tuple[str, str]]] = {}  # names, each with what a query is compared with

    def find(self, counts: Mapping[str, int], query: str, order: Order) -> list[str]:
        """Return the labels that contain a query, in any case of letters."""
        with self._lock:
            if counts != self._counts:
                self._counts, self._ordered = counts, {}
            if order not in self._ordered:
                names = sorted(counts, key=(lambda name: (-counts[name], name)) if order == "documents" else str)
                self._ordered[order] = [(name, name.casefold()) for name in names]
            ordered = self._ordered[order]
        wanted = query.casefold()
        return [name for name, folded in ordered if wanted in folded]

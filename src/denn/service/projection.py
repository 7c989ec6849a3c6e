"""The datastore in two dimensions: the main axes of its embeddings, on which a new text has its place too."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from denn.errors import StoreError
from denn.types import Datastore

if TYPE_CHECKING:
    from torch import Tensor

KEPT = 30.0  # seconds that a map is shown for
NAMED = 10  # labels worth a colour


@dataclass(frozen=True)
class Point:
    """A document on the map."""

    id: str
    x: float
    y: float
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Drawn:
    """A map."""

    points: tuple[Point, ...]
    labels: tuple[str, ...]  # the most frequent of the points
    documents: int  # in the datastore
    share: float  # of the variance that the two axes show
    centre: Tensor  # (d,)
    axes: Tensor  # (d,2)

    def place(self, embedding: Tensor) -> tuple[float, float]:
        """Return where the (1,d) embedding of a text lies."""
        import torch.nn.functional as F

        x, y = ((F.normalize(embedding.float().cpu()) - self.centre) @ self.axes)[0].tolist()
        return x, y


class Projection:
    """Draws maps of a datastore, each kept for a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drawn: Drawn | None = None
        self._made, self._limit = 0.0, 0

    def map(self, store: Datastore, limit: int) -> Drawn:
        """Return a map of at most so many documents, evenly from the oldest to the newest."""
        with self._lock:
            fresh = time.monotonic() - self._made < KEPT and self._limit == limit
            if self._drawn is None or not fresh or self._drawn.documents != len(store):
                self._drawn, self._made, self._limit = _draw(store, limit), time.monotonic(), limit
            return self._drawn

    def last(self, store: Datastore, limit: int) -> Drawn:
        """Return the map that was shown last, so that a text is placed on that one."""
        with self._lock:
            if self._drawn is not None:
                return self._drawn
        return self.map(store, limit)


def _draw(store: Datastore, limit: int) -> Drawn:
    import torch

    for _ in range(3):
        ids = store.ids()
        chosen = [ids[place * len(ids) // limit] for place in range(limit)] if len(ids) > limit else ids
        try:
            documents, vectors = store.get(chosen), store.vectors(chosen)
            break
        except StoreError:  # one was removed between two looks
            continue
    else:
        raise StoreError("The datastore changes too fast to be drawn. Try again.")
    centre = vectors.mean(0) if len(vectors) else torch.zeros(store.dimension)
    spread = vectors - centre
    values, axes = torch.linalg.eigh(spread.T @ spread)  # ascending
    axes = axes[:, [-1, -2]] if store.dimension > 1 else axes[:, [-1, -1]]
    axes = axes * torch.where(axes.abs().max(0).values == axes.max(0).values, 1.0, -1.0)  # so that it does not flip
    share = float(values[-2:].sum() / values.sum()) if float(values.sum()) > 0 else 0.0
    places = (spread @ axes).tolist()
    points = tuple(
        Point(id, x, y, document.labels) for id, document, (x, y) in zip(chosen, documents, places, strict=True)
    )
    counts = Counter(label for point in points for label in point.labels)
    named = tuple(label for label, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:NAMED])
    return Drawn(points, named, len(ids), share, centre, axes)

"""A map of the datastore: its embeddings projected onto their first two principal components."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from denn.datastore import Datastore
from denn.errors import StoreError
from denn.types import Document

if TYPE_CHECKING:
    from torch import Tensor

SIZES = (2000, 10_000)  # documents per map; smaller maps show a part of one of these
KEPT = 30.0  # seconds to reuse a map, unless the number of documents changes
QUICK = 0.2  # seconds; a map that takes longer to compute is reused
REST = 10  # times as long, whatever changes
TOGETHER = 500  # documents per read, so that predictions can run in between
NAMED = 10  # labels that get a colour


@dataclass(frozen=True)
class Point:
    """A document on the map."""

    id: str
    x: float
    y: float
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Drawn:
    """A map of the datastore."""

    points: tuple[Point, ...]
    labels: tuple[str, ...]  # the most frequent labels of the points
    documents: int  # number of documents in the datastore
    share: float  # share of the variance that the two axes explain
    centre: Tensor  # (d,)
    axes: Tensor  # (d,2)

    def part(self, limit: int) -> Drawn:
        """Return the map with at most `limit` points, evenly spaced from the oldest to the newest."""
        if len(self.points) <= limit:
            return self
        points = tuple(self.points[place * len(self.points) // limit] for place in range(limit))
        return replace(self, points=points, labels=_frequent(points))

    def place(self, embedding: Tensor) -> tuple[float, float]:
        """Return the coordinates of the (1,d) embedding of a text."""
        import torch.nn.functional as F

        x, y = ((F.normalize(embedding.float().cpu()) - self.centre) @ self.axes)[0].tolist()
        return x, y


class Projection:
    """Compute and cache maps of a datastore, one of each size."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while a map is computed, so that none is computed twice
        self._kept: dict[
            int, tuple[Drawn, float, float]
        ] = {}  # size → map, time of the computation, its duration in seconds
        self.last: Drawn | None = None  # the most recent map, on which texts are placed

    def map(self, store: Datastore, limit: int) -> Drawn:
        """Return a map of at most `limit` documents."""
        size = next((size for size in SIZES if limit <= size), SIZES[-1])
        with self._lock:
            if not self._is_fresh(size, len(store)):
                begun = time.monotonic()
                drawn = _draw(store, size)
                self._kept[size] = drawn, time.monotonic(), time.monotonic() - begun
            self.last = self._kept[size][0]
        return self.last.part(limit)

    def _is_fresh(self, size: int, documents: int) -> bool:
        if size not in self._kept:
            return False
        drawn, made, cost = self._kept[size]
        age, rest = time.monotonic() - made, REST * cost if cost > QUICK else 0.0
        return age < rest or (age < KEPT and drawn.documents == documents)


def _draw(store: Datastore, limit: int) -> Drawn:
    from denn.core.components import principal_axes

    for _ in range(3):
        ids = store.ids()
        chosen = [ids[place * len(ids) // limit] for place in range(limit)] if len(ids) > limit else ids
        try:
            documents, vectors = _read(store, chosen)
            break
        except StoreError:  # a document was removed in the meantime
            continue
    else:
        raise StoreError("The datastore changes too fast for a map. Try again later.")
    centre, axes, shares = principal_axes(vectors)
    places = ((vectors - centre) @ axes).tolist()
    points = tuple(
        Point(id, x, y, document.labels) for id, document, (x, y) in zip(chosen, documents, places, strict=True)
    )
    return Drawn(points, _frequent(points), len(ids), float(shares.sum()), centre, axes)


def _read(store: Datastore, ids: Sequence[str]) -> tuple[list[Document], Tensor]:
    import torch

    documents, vectors = [], [torch.zeros(0, store.dimension)]
    for begin in range(0, len(ids), TOGETHER):
        some = ids[begin : begin + TOGETHER]
        documents += store.get(some)
        vectors.append(store.vectors(some))
    return documents, torch.cat(vectors)


def _frequent(points: Sequence[Point]) -> tuple[str, ...]:
    counts = Counter(label for point in points for label in point.labels)
    return tuple(label for label, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:NAMED])

"""The approximate index of a large datastore: faiss proposes documents, and their stored vectors decide."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denn.errors import MissingExtraError
from denn.stores.embedded.mapped import MappedVectors
from denn.stores.embedded.memory import Integers, Matrix, similarities

ROWS = 2048  # vectors compared at a time, if all are compared
TOP = 30  # number of nearest documents in the recall that `probes` was chosen for


def faiss() -> Any:
    """Import faiss."""
    try:
        return import_module("faiss")
    except ImportError as error:
        raise MissingExtraError("An approximate index", "faiss-cpu", "ann") from error


def candidates(k: int) -> int:
    """Return how many candidates to propose for the k nearest: the 8-bit codes confuse only close ones."""
    return max(2 * k, k + 32)


@dataclass(frozen=True)
class Approximate:
    """An inverted file of 8-bit codes over a snapshot of the documents; it never changes and has no labels.

    It is only a cache of the store's file. Its positions count the documents in row order.
    """

    ivf: Any  # faiss.IndexIVFScalarQuantizer whose ids are positions
    vectors: MappedVectors  # (M,d) unit vectors, in the file of the index
    rows: Tensor  # (M,) int64, ascending
    version: int  # the last change of the store that it includes
    epoch: int  # number of vacuums of the store
    stamp: int  # the time of that change, which identifies the store
    probes: int  # lists to search
    recall: float  # share of the TOP nearest that it finds, measured on a sample when it was built
    sample: int
    seconds: float  # duration of the build

    def __post_init__(self) -> None:
        """Let threads share the lists of one query; by default, faiss gives them whole queries."""
        self.ivf.parallel_mode = 1

    def cover(self, slots: Tensor, rows: Tensor, changed: Tensor) -> tuple[Covered, Tensor]:
        """Return the unchanged documents that this index finds, and the slots of the others."""
        own, wanted = self.rows.numpy(), rows.numpy()
        positions = np.minimum(np.searchsorted(own, wanted), len(own) - 1)
        known = (own[positions] == wanted) & (changed.numpy() <= self.version)
        owners = np.full(len(own), -1)
        owners[positions[known]] = slots.numpy()[known]
        hidden = np.packbits(owners < 0, bitorder="little")
        return Covered(self, torch.from_numpy(owners), hidden, int(known.sum())), slots[torch.from_numpy(~known)]

    def propose(self, queries: Matrix, count: int, hidden: NDArray[np.uint8] | None, probes: int) -> Integers:
        """Return the (n,count) positions that seem nearest, -1 if the searched lists have fewer."""
        if not len(queries):
            return np.empty((0, count), np.int64)
        library = faiss()
        bitmap = None if hidden is None else library.IDSelectorBitmap(hidden)
        selector = None if bitmap is None else library.IDSelectorNot(bitmap)
        parameters = library.SearchParametersIVF(nprobe=probes, sel=selector)
        positions: Integers = self.ivf.search(queries, count, params=parameters)[1]
        return positions

    def probes_for(self, k: int) -> int:
        """Return how many lists to search for k: as measured for TOP, growing with √k, and at least 4k documents.

        On embeddings of texts, √k was more than enough; tight clusters smaller than k need the other bound.
        """
        if k <= TOP:
            return self.probes
        lists = int(self.ivf.nlist)
        return min(lists, math.ceil(max(self.probes * math.sqrt(k / TOP), 4 * k * lists / len(self.rows))))


@dataclass(frozen=True)
class Covered:
    """The documents of a store that an approximate index finds."""

    index: Approximate
    slots: Tensor  # (M,) int64 by position, -1 if the document was removed or changed
    hidden: NDArray[np.uint8]  # one bit per position that must not be found
    visible: int
    excluded: int = 0  # documents hidden for one search

    def excluding(self, slots: Tensor, rows: Tensor) -> Covered:
        """Hide documents from one search, which must then search as far as for that many more."""
        return replace(self.without(slots, rows), excluded=len(slots))

    def without(self, slots: Tensor, rows: Tensor) -> Covered:
        """Hide documents, ignoring those that are not in this index."""
        positions = torch.searchsorted(self.index.rows, rows).clamp_(max=len(self.slots) - 1)
        positions = positions[self.slots[positions] == slots]
        if not len(positions):
            return self
        hidden, at = self.hidden.copy(), positions.numpy()
        np.bitwise_or.at(hidden, at >> 3, (1 << (at & 7)).astype(np.uint8))
        return replace(self, hidden=hidden, visible=self.visible - len(positions))

    def renumbered(self, new: Tensor) -> Covered:
        """Give each document the slot that `new` has at its old one."""
        return replace(self, slots=torch.where(self.slots < 0, self.slots, new[self.slots]))

    def nearest(self, queries: Matrix, k: int) -> tuple[Matrix, Integers]:
        """Return similarities and slots of at least the k nearest for each query, -inf if there are fewer."""
        if candidates(k) > self.visible // 2:
            similarity, positions = self._nearest_of_all(queries, min(k, self.visible))
        else:
            positions = self._proposed(queries, k)
            similarity = similarities(queries, self.index.vectors[positions])
            similarity[positions < 0] = -np.inf
        return similarity, np.maximum(self.slots.numpy()[positions], 0)

    def _proposed(self, queries: Matrix, k: int) -> Integers:
        hidden = self.hidden if self.visible < len(self.slots) else None
        count = candidates(k)
        positions = self.index.propose(queries, count, hidden, self.index.probes_for(k + self.excluded))
        short = (positions < 0).sum(1) > count - k
        if short.any():
            positions[short] = self.index.propose(queries[short], count, hidden, int(self.index.ivf.nlist))
        return positions

    def _nearest_of_all(self, queries: Matrix, k: int) -> tuple[Matrix, Integers]:
        """Compare with every stored vector: slow, but the only way if k is a large share of the documents."""
        visible = np.flatnonzero(np.unpackbits(self.hidden, count=len(self.slots), bitorder="little") == 0)
        best, positions = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        for begin in range(0, len(visible), ROWS):
            part = visible[begin : begin + ROWS]
            vectors = np.broadcast_to(self.index.vectors[part], (len(queries), len(part), queries.shape[1]))
            best = np.concatenate([best, similarities(queries, vectors)], 1)
            positions = np.concatenate([positions, np.broadcast_to(part, (len(queries), len(part)))], 1)
            if best.shape[1] > k:
                order = np.argpartition(-best, k - 1, axis=1)[:, :k]
                best, positions = np.take_along_axis(best, order, 1), np.take_along_axis(positions, order, 1)
        return best, positions

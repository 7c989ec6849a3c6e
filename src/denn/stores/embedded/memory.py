"""The searchable part of a datastore in memory: ids, sparse labels and unit vectors, with search by cosine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denn.prediction_types import Neighbours
from denn.stores.rejections import separate_rejected

if TYPE_CHECKING:
    from denn.stores.embedded.approximate import Approximate, Covered

SCORES_BYTES = 256 * 2**20  # limit for the (chunk of queries) × N scores at a time
RANKED_BYTES = 64 * 2**20  # limit for the vectors that rank candidates at a time
FETCH_ROWS = 2048  # vectors fetched at a time
COMPACT_SHARE = 1 / 8  # dead slots cost search time; beyond this share of all slots they are removed

Matrix: TypeAlias = NDArray[np.float32]
Integers: TypeAlias = NDArray[np.int64]
Fetch: TypeAlias = Callable[[Tensor], Tensor]  # ascending row numbers → their stored (n,d) vectors


@dataclass(frozen=True)
class Snapshot:
    """The state that one search works on; later changes to the index do not affect it."""

    matrix: Tensor  # (F,d) float32 unit rows that are searched exactly, on the device of the search
    slots: Integers  # (F,), their slots
    hidden: Tensor  # rows of the matrix that must not be found: dead or excluded
    covered: Covered | None  # the documents that an approximate index finds
    rows: Integers  # (N,) row numbers by slot, which break ties
    ids: Sequence[str]  # at least N
    offsets: Integers  # (N + 1,) into columns
    columns: NDArray[np.int32]  # label columns, and the complements of rejected ones
    rejecting: bool  # whether there are any rejected labels

    def search(self, queries: Tensor, k: int, names: tuple[str, ...]) -> Neighbours:
        """Find the k nearest by cosine for each of the (n,d) unit queries, or all if there are fewer.

        `names` are the labels of the columns. Equal similarities are in row order; if there is a tie at the k-th place,
        which of its rows are included is undefined.
        """
        exact = len(self.slots) - len(self.hidden)
        k = min(k, exact + (self.covered.visible if self.covered else 0))
        step = max(1, SCORES_BYTES // (4 * max(1, len(self.slots))))
        if self.covered is not None:
            step = max(1, min(step, RANKED_BYTES // (4 * self.matrix.shape[1] * (3 * k + 32))))
        if len(queries) <= step:
            similarity, slots = self._nearest(queries, k, min(k, exact))
        else:
            found = [self._nearest(chunk, k, min(k, exact)) for chunk in torch.split(queries, step)]
            similarity, slots = np.concatenate([part[0] for part in found]), np.concatenate([part[1] for part in found])
        offsets, columns = gathered(self.offsets, self.columns, slots.ravel())
        ids = tuple(tuple([self.ids[slot] for slot in places]) for places in slots.tolist())
        columns = columns.astype(np.int64)
        tensors = torch.from_numpy(similarity), torch.from_numpy(offsets), torch.from_numpy(columns)
        neighbours = Neighbours(ids, *tensors, names)
        return separate_rejected(neighbours) if self.rejecting else neighbours

    def _nearest(self, queries: Tensor, k: int, exact: int) -> tuple[Matrix, Integers]:
        """Return similarities and slots, both (n,k), by similarity descending, then row ascending."""
        # NumPy except for the one large product, because the small steps take several times as long in torch.
        values, slots = self._compared(queries, exact)
        if self.covered is not None:
            more_values, more_slots = self.covered.nearest(queries.numpy(), k)
            values, slots = np.concatenate([values, more_values], 1), np.concatenate([slots, more_slots], 1)
        values = np.minimum(values, 1)
        if self.covered is None and (values[:, 1:] < values[:, :-1]).all():
            return np.maximum(values, -1), slots  # already in order, and no two are equal
        order = np.lexsort((self.rows[slots], -values))[:, :k]
        at = np.arange(len(order))[:, None]
        return np.maximum(values[at, order], -1), slots[at, order]

    def _compared(self, queries: Tensor, k: int) -> tuple[Matrix, Integers]:
        """Return similarities and slots of the k nearest among those that are searched exactly."""
        if not k:
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        scores = queries.to(self.matrix.device) @ self.matrix.T  # (n,F)
        if len(self.hidden):
            scores.index_fill_(1, self.hidden.to(scores.device), -torch.inf)
        values, places = scores.topk(k, dim=1)
        similarity: Matrix = values.cpu().numpy()
        if self.covered is not None:  # use the formula of the others, so that equal vectors get equal results
            similarity = similarities(queries.numpy(), self.matrix[places].numpy())
        return similarity, self.slots[places.cpu().numpy()]


class MemoryIndex:
    """Documents by slot, appended and never overwritten, so that snapshots stay valid while the index changes.

    A changed document gets a new slot and its old one is dead. All vectors are here and searched exactly, except those
    that an approximate index covers. The caller serialises calls; snapshots need no lock.
    """

    _latest: Snapshot | None = None  # the snapshot of the current state, if any

    def __init__(self, dimension: int, device: str | torch.device = "cpu") -> None:
        self._slots: dict[str, int] = {}  # live ids only
        self._ids: list[str] = []
        self._dead = torch.empty(0, dtype=torch.int64)  # slots
        self._rows = torch.empty(0, dtype=torch.int64)
        self._changed = torch.empty(0, dtype=torch.int64)
        self._offsets = torch.zeros(1, dtype=torch.int64)
        self._columns = torch.empty(0, dtype=torch.int32)
        self._rejecting = False
        self._matrix = torch.empty(0, dimension, device=device)
        self._owners = torch.empty(0, dtype=torch.int64)  # the slot of each row of the matrix, ascending
        self._filled = 0  # rows of the matrix in use
        self._hidden = torch.empty(0, dtype=torch.int64)  # rows of the matrix whose slot is dead
        self._covered: Covered | None = None

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, id: str) -> bool:
        return id in self._slots

    @property
    def covered(self) -> Covered | None:
        """The documents that the approximate index finds."""
        return self._covered

    @property
    def exact(self) -> int:
        """The number of documents that are searched exactly."""
        return len(self) - (self._covered.visible if self._covered else 0)

    def row(self, id: str) -> int | None:
        """Return the row number of a document; None if the id is unknown."""
        slot = self._slots.get(id)
        return None if slot is None else int(self._rows[slot])

    def rows(self, ids: Iterable[str]) -> dict[int, str]:
        """Return the ids of documents by row number, ignoring unknown ids."""
        known = [id for id in ids if id in self._slots]
        rows: list[int] = self._rows.numpy()[[self._slots[id] for id in known]].tolist() if known else []
        return dict(zip(rows, known, strict=True))

    def ids(self) -> list[str]:
        """Return the ids in row order."""
        live = self._live()
        return [self._ids[slot] for slot in live[self._rows[live].argsort()].tolist()]

    def carrying(self, columns: Sequence[int]) -> list[str]:
        """Return the ids of the documents with at least one of these label columns, in row order."""
        live = self._live().numpy()
        offsets, found = gathered(self._offsets.numpy(), self._columns.numpy(), live)
        owners = np.repeat(live, np.diff(offsets))[np.isin(found, columns)]
        slots = np.unique(owners)
        return [self._ids[slot] for slot in slots[self._rows.numpy()[slots].argsort()].tolist()]

    def label_counts(self, width: int) -> list[int]:
        """Count the documents of each of `width` label columns."""
        lengths = self._offsets[1 : len(self._ids) + 1] - self._offsets[: len(self._ids)]
        alive = torch.zeros(len(self._ids), dtype=torch.bool).index_fill_(0, self._live(), True)
        columns = self._columns[: int(lengths.sum())][alive.repeat_interleave(lengths)]
        counts: list[int] = columns[columns >= 0].bincount(minlength=width).tolist()
        return counts

    def rejections(self) -> int:
        """Count the labels that documents reject."""
        if not self._rejecting:
            return 0
        _, columns = gathered(self._offsets.numpy(), self._columns.numpy(), self._live().numpy())
        return int((columns < 0).sum())

    def reserve(self, documents: int) -> None:
        """Reserve memory for the vectors of this many more documents."""
        self._matrix = _with_room(self._matrix, self._filled, documents)

    def put(
        self,
        rows: Tensor,
        ids: Sequence[str],
        vectors: Tensor | None,
        lengths: Tensor,
        columns: Tensor,
        changed: Tensor | None = None,
    ) -> None:
        """Append n documents with (n,d) unit vectors; `lengths` are the numbers of label columns of each document.

        Rejected labels are the complements of their columns. Documents with known ids are replaced. Documents without
        vectors can be searched only after `adopt`.
        """
        count, used = len(self._ids), int(self._offsets[len(self._ids)])
        end, self._latest = count + len(ids), None
        self._rows = _appended(self._rows, count, rows)
        self._changed = _appended(self._changed, count, torch.zeros_like(rows) if changed is None else changed)
        self._offsets = _appended(self._offsets, count + 1, used + lengths.cumsum(0))
        self._columns = _appended(self._columns, used, columns)
        self._rejecting = self._rejecting or bool((columns < 0).any())
        if vectors is not None:
            self._owners = _appended(self._owners, self._filled, torch.arange(count, end))
            self._matrix = _appended(self._matrix, self._filled, vectors)
            self._filled += len(ids)
        replaced = [self._slots[id] for id in ids if id in self._slots]
        self._ids.extend(ids)
        self._slots.update(zip(ids, range(count, end), strict=True))
        self._bury(replaced)

    def drop(self, rows: Collection[int]) -> None:
        """Remove the documents with these row numbers, ignoring unknown ones."""
        if not rows:
            return
        self._latest = None
        slots = torch.isin(self._rows[: len(self._ids)], torch.tensor(list(rows))).nonzero().flatten().tolist()
        gone = [slot for slot in slots if self._slots.get(self._ids[slot]) == slot]
        for slot in gone:
            del self._slots[self._ids[slot]]
        self._bury(gone)

    def adopt(self, index: Approximate | None, fetch: Fetch) -> None:
        """Leave unchanged documents to an approximate index, and keep the vectors of the rest."""
        live, self._latest = self._live(), None
        covered, left = None, live
        if index is not None:
            covered, left = index.cover(live, self._rows[live], self._changed[live])
        here = torch.isin(left, self._owners[: self._filled])
        matrix = self._matrix.new_empty(len(left), self._matrix.shape[1])
        matrix[here.to(matrix.device)] = self._matrix[self._places(left).to(matrix.device)]
        missing = (~here).nonzero().flatten()
        missing = missing[self._rows[left[missing]].argsort()]
        for part in torch.split(missing, FETCH_ROWS):
            matrix[part.to(matrix.device)] = fetch(self._rows[left[part]]).to(matrix.device)
        self._matrix, self._owners, self._filled, self._covered = matrix, left, len(left), covered
        self._hidden = self._hidden[:0]

    def snapshot(self, exclude: Collection[str] = ()) -> Snapshot:
        """Return the current state without the excluded ids, ignoring unknown ones."""
        if self._latest is None:
            count, filled = len(self._ids), self._filled
            self._latest = Snapshot(
                self._matrix[:filled],
                self._owners[:filled].numpy(),
                self._hidden,
                self._covered,
                self._rows[:count].numpy(),
                self._ids,
                self._offsets[: count + 1].numpy(),
                self._columns.numpy(),
                self._rejecting,
            )
        if not exclude:
            return self._latest
        excluded = torch.tensor(sorted({self._slots[id] for id in exclude if id in self._slots}), dtype=torch.int64)
        hidden = torch.cat([self._hidden, self._places(excluded)])
        covered = self._covered and self._covered.excluding(excluded, self._rows[excluded])
        return replace(self._latest, hidden=hidden, covered=covered)

    def _live(self) -> Tensor:
        """Return the slots in use, ascending."""
        alive = torch.ones(len(self._ids), dtype=torch.bool).index_fill_(0, self._dead, False)
        return alive.nonzero().flatten()

    def _places(self, slots: Tensor) -> Tensor:
        """Return the rows of the matrix that belong to these slots, ignoring slots without one."""
        owners = self._owners[: self._filled]
        places = torch.searchsorted(owners, slots).clamp_(max=max(0, self._filled - 1))
        return places[owners[places] == slots] if self._filled else places[:0]

    def _bury(self, slots: Sequence[int]) -> None:
        """Mark slots as dead, and move live ones to new tensors if there are too many dead ones."""
        dead = torch.tensor(slots, dtype=torch.int64)
        self._dead = torch.cat([self._dead, dead])
        self._hidden = torch.cat([self._hidden, self._places(dead)])
        self._covered = self._covered and self._covered.without(dead, self._rows[dead])
        if len(self._dead) > COMPACT_SHARE * len(self._ids):
            self._compact()

    def _compact(self) -> None:
        live = self._live()
        new = torch.full((len(self._ids),), -1, dtype=torch.int64)
        new[live] = torch.arange(len(live))
        labels = gathered(self._offsets.numpy(), self._columns.numpy(), live.numpy())
        self._offsets, self._columns = (torch.from_numpy(array) for array in labels)
        self._rows, self._changed = self._rows[live], self._changed[live]
        self._ids = [self._ids[slot] for slot in live.tolist()]
        self._slots = {id: slot for slot, id in enumerate(self._ids)}
        kept = (new[self._owners[: self._filled]] >= 0).nonzero().flatten()
        self._matrix = self._matrix[kept.to(self._matrix.device)]
        self._owners, self._filled = new[self._owners[kept]], len(kept)
        self._covered = self._covered and self._covered.renumbered(new)
        self._dead, self._hidden = self._dead[:0], self._hidden[:0]


def similarities(queries: Matrix, vectors: Matrix) -> Matrix:
    """Return the (n,c) products of (n,d) queries with (n,c,d) vectors, independent of a vector's position."""
    products: Matrix = np.einsum("nd,ncd->nc", queries, vectors)
    return products


def gathered(offsets: Integers, columns: NDArray[np.int32], slots: Integers) -> tuple[Integers, NDArray[np.int32]]:
    """Gather the label columns of the slots, as offsets and columns."""
    starts = offsets[slots]
    lengths = offsets[slots + 1] - starts
    ends = lengths.cumsum()
    shift = np.repeat(starts - ends + lengths, lengths)
    return np.concatenate([[0], ends]), columns[shift + np.arange(len(shift))]


def _appended(array: Tensor, used: int, more: Tensor) -> Tensor:
    """Return the array, extended if necessary, with more entries after the used ones."""
    array = _with_room(array, used, len(more))
    array[used : used + len(more)] = more
    return array


def _with_room(array: Tensor, used: int, more: int) -> Tensor:
    """Return the array, or a copy at least twice as long if `more` entries do not fit after the used ones."""
    if used + more <= len(array):
        return array
    larger = array.new_empty((max(used + more, 2 * len(array)), *array.shape[1:]))
    larger[:used] = array[:used]
    return larger

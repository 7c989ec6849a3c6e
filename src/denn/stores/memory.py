"""The searchable part of a datastore in memory: unit vectors, ids and sparse labels, with exact cosine search."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from denn.errors import StoreError
from denn.types import Neighbours

SCORES_BYTES = 256 * 2**20  # bounds the (chunk of queries) × N scores that exist at one time
COMPACT_SHARE = 1 / 8  # dead slots cost search time; beyond this share of all slots they are squeezed out


def unit_rows(vectors: Tensor, dimension: int) -> Tensor:
    """Return the (n,d) vectors as float32 rows of length 1; a zero row stays zero, a non-finite one is an error."""
    if vectors.ndim != 2 or vectors.shape[1] != dimension:
        raise StoreError(
            f"got vectors of shape {tuple(vectors.shape)}, expected (n, {dimension}). "
            "Use the encoder this datastore was made with."
        )
    # NumPy, because waking torch's threads costs more than the work on a few queries.
    rows = vectors.detach().cpu().to(torch.promote_types(vectors.dtype, torch.float32)).numpy()
    # Dividing by the largest entry first keeps the squares of the norm away from overflow and underflow.
    largest = np.abs(rows).max(axis=1, keepdims=True)
    broken = np.flatnonzero(~np.isfinite(largest))
    if len(broken):
        raise StoreError(
            f"vector {broken[0]} holds a value that is not finite, expected finite numbers only. "
            "Check the encoder's weights."
        )
    rows = rows / np.where(largest == 0, 1, largest)
    norm = np.sqrt(np.einsum("nd,nd->n", rows, rows))[:, None]
    return torch.from_numpy((rows / np.where(norm == 0, 1, norm)).astype(np.float32, copy=False))


@dataclass(frozen=True)
class Snapshot:
    """What one search works on; later changes to the index do not touch it."""

    matrix: Tensor  # (N,d) float32 unit rows, on the device of the search
    hidden: Tensor  # slots that must not be found: dead or excluded
    rows: Tensor  # (N,) int64 row numbers, which break ties
    ids: Sequence[str]  # at least N
    offsets: Tensor  # (N + 1,) int64 into columns
    columns: Tensor  # int32 label columns

    @torch.no_grad()
    def search(self, queries: Tensor, k: int) -> Neighbours:
        """Find the k nearest by cosine for each of the (n,d) unit queries, or all where fewer can be found.

        Equal similarities come in row order; where a tie straddles the k-th place, which of its rows are in is open.
        """
        k = min(k, len(self.rows) - len(self.hidden))
        step = max(1, SCORES_BYTES // (4 * max(1, len(self.rows))))
        found = [self._nearest(chunk, k) for chunk in torch.split(queries, step)]
        similarity = torch.cat([values for values, _ in found])
        slots = torch.cat([places for _, places in found])
        offsets, columns = self.labels_of(slots.flatten())
        ids = tuple(tuple([self.ids[slot] for slot in places]) for places in slots.tolist())
        return Neighbours(ids, similarity, offsets, columns.long())

    def _nearest(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return similarities and slots, both (n,k) on the CPU, by similarity descending, then row ascending."""
        scores = queries.to(self.matrix.device) @ self.matrix.T  # (n,N)
        if len(self.hidden):
            scores.index_fill_(1, self.hidden.to(scores.device), -torch.inf)
        found = scores.topk(k, dim=1)
        values, slots = found.values.cpu().clamp_(-1, 1), found.indices.cpu()
        order = torch.from_numpy(np.lexsort((self.rows[slots].numpy(), -values.numpy())))
        return values.gather(1, order), slots.gather(1, order)

    def labels_of(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Gather the label columns of the slots, as offsets and columns."""
        lengths = self.offsets[slots + 1] - self.offsets[slots]
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        shift = torch.from_numpy(np.repeat((self.offsets[slots] - offsets[:-1]).numpy(), lengths.numpy()))
        return offsets, self.columns[shift + torch.arange(len(shift))]


class MemoryIndex:
    """Documents by slot, appended and never overwritten, so that a snapshot stays whole while the index changes.

    A changed document takes a new slot and its old one is dead. The caller serialises calls; snapshots need no lock.
    """

    def __init__(self, dimension: int, device: str | torch.device = "cpu") -> None:
        self._slots: dict[str, int] = {}  # live ids only
        self._ids: list[str] = []
        self._dead = torch.empty(0, dtype=torch.int64)  # slots
        self._matrix = torch.empty(0, dimension, device=device)
        self._rows = torch.empty(0, dtype=torch.int64)
        self._offsets = torch.zeros(1, dtype=torch.int64)
        self._columns = torch.empty(0, dtype=torch.int32)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, id: str) -> bool:
        return id in self._slots

    def row(self, id: str) -> int | None:
        """Return the row number of a document, None where the id is unknown."""
        slot = self._slots.get(id)
        return None if slot is None else int(self._rows[slot])

    def ids(self) -> list[str]:
        """Return the ids in row order."""
        live = torch.tensor(list(self._slots.values()), dtype=torch.int64)
        return [self._ids[slot] for slot in live[self._rows[live].argsort()].tolist()]

    def label_counts(self, width: int) -> list[int]:
        """Count the documents of each of `width` label columns."""
        lengths = self._offsets[1 : len(self._ids) + 1] - self._offsets[: len(self._ids)]
        alive = torch.ones(len(self._ids), dtype=torch.bool).index_fill_(0, self._dead, False)
        columns = self._columns[: int(lengths.sum())][alive.repeat_interleave(lengths)]
        counts: list[int] = columns.bincount(minlength=width).tolist()
        return counts

    def reserve(self, documents: int) -> None:
        """Make room for this many more documents at once."""
        self._matrix = _with_room(self._matrix, len(self._ids), documents)

    def put(self, rows: Tensor, ids: Sequence[str], vectors: Tensor, lengths: Tensor, columns: Tensor) -> None:
        """Append n documents with (n,d) unit vectors; `lengths` says how many of the label columns each one owns.

        An id that is known is replaced.
        """
        count, used = len(self._ids), int(self._offsets[len(self._ids)])
        self._matrix = _with_room(self._matrix, count, len(ids))
        self._rows = _with_room(self._rows, count, len(ids))
        self._offsets = _with_room(self._offsets, count + 1, len(ids))
        self._columns = _with_room(self._columns, used, len(columns))
        end = count + len(ids)
        self._matrix[count:end] = vectors
        self._rows[count:end] = rows
        self._offsets[count + 1 : end + 1] = used + lengths.cumsum(0)
        self._columns[used : used + len(columns)] = columns
        replaced = [self._slots[id] for id in ids if id in self._slots]
        self._ids.extend(ids)
        self._slots.update(zip(ids, range(count, end), strict=True))
        self._bury(replaced)

    def drop(self, rows: Collection[int]) -> None:
        """Remove the documents of these row numbers; rows that are not here are passed over."""
        if not rows:
            return
        slots = torch.isin(self._rows[: len(self._ids)], torch.tensor(list(rows))).nonzero().flatten().tolist()
        gone = [slot for slot in slots if self._slots.get(self._ids[slot]) == slot]
        for slot in gone:
            del self._slots[self._ids[slot]]
        self._bury(gone)

    def snapshot(self, exclude: Iterable[str] = ()) -> Snapshot:
        """Return the present state without the excluded ids; unknown ones are passed over."""
        count = len(self._ids)
        excluded = {self._slots[id] for id in exclude if id in self._slots}
        hidden = torch.cat([self._dead, torch.tensor(list(excluded), dtype=torch.int64)])
        return Snapshot(
            self._matrix[:count], hidden, self._rows[:count], self._ids, self._offsets[: count + 1], self._columns
        )

    def _bury(self, slots: Sequence[int]) -> None:
        """Mark slots dead, and move the living to new tensors when the dead are too many."""
        self._dead = torch.cat([self._dead, torch.tensor(slots, dtype=torch.int64)])
        if len(self._dead) > COMPACT_SHARE * len(self._ids):
            self._compact()

    def _compact(self) -> None:
        live = torch.tensor(sorted(self._slots.values()), dtype=torch.int64)
        self._offsets, self._columns = self.snapshot().labels_of(live)
        self._matrix = self._matrix[live.to(self._matrix.device)]
        self._rows = self._rows[live]
        self._ids = [self._ids[slot] for slot in live.tolist()]
        self._slots = {id: slot for slot, id in enumerate(self._ids)}
        self._dead = self._dead[:0]


def _with_room(array: Tensor, used: int, more: int) -> Tensor:
    """Return the array, or a copy at least twice as long where `more` entries do not fit after the used ones."""
    if used + more <= len(array):
        return array
    larger = array.new_empty((max(used + more, 2 * len(array)), *array.shape[1:]))
    larger[:used] = array[:used]
    return larger

"""A stratified split of multi-label documents, in time linear in the number of label assignments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from denn.errors import DataError


def stratified_split(label_lists: Sequence[Sequence[int]], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Split rows in two, with round(share·n) rows and about this share of each label's rows in the second part.

    Rows are assigned once, those with the rarest labels first, each to the part that keeps the sum of squares of all
    labels' surpluses smaller. A label that occurs once stays in the first part. Both parts are ascending and, if there
    are at least two rows, not empty.
    """
    if not 0 < share < 1:
        raise DataError(f"the share of a split is {share}; it must be more than 0 and less than 1.")
    n = len(label_lists)
    if n < 2:
        return list(range(n)), []
    lengths = np.fromiter(map(len, label_lists), np.int64, n)
    columns = np.fromiter(chain.from_iterable(label_lists), np.int64, int(lengths.sum()))
    counts = np.bincount(columns, minlength=1)  # (L,) rows of each label
    owner = np.repeat(np.arange(n), lengths)  # the row of each entry of `columns`
    rarest = np.full(n, n + 1)  # (n,) the count of each row's rarest label; rows without labels last
    np.minimum.at(rarest, owner, counts[columns])
    order = np.lexsort((np.random.default_rng(seed).permutation(n), rarest))
    chosen = np.zeros(n, dtype=bool)
    chosen[_deal(label_lists, order.tolist(), rarest == 1, len(counts), share)] = True
    _settle(chosen, columns, owner, counts, share, kept=rarest == 1)
    return np.flatnonzero(~chosen).tolist(), np.flatnonzero(chosen).tolist()


def _deal(
    label_lists: Sequence[Sequence[int]], order: list[int], kept: NDArray[np.bool_], L: int, share: float
) -> list[int]:
    """Return the rows of the second part, chosen one by one; rows in `kept` are not chosen."""
    surplus = [0.0] * L  # rows of each label in the second part, minus the share of those assigned so far
    total = 0.0  # the same for all rows
    half = 0.5 - share
    keep = kept.tolist()
    chosen = []
    for row in order:
        labels = label_lists[row]
        # (s + 1 − share)² − (s − share)² = 2 (s + ½ − share), summed over the labels and the row itself
        cost = total + half
        for label in labels:
            cost += surplus[label] + half
        if cost < 0 and not keep[row]:
            chosen.append(row)
            change = 1 - share
        else:
            change = -share
        total += change
        for label in labels:
            surplus[label] += change
    return chosen


def _settle(
    chosen: NDArray[np.bool_],
    columns: NDArray[np.int64],
    owner: NDArray[np.int64],
    counts: NDArray[np.int64],
    share: float,
    kept: NDArray[np.bool_],
) -> None:
    """Move the rows that cost the labels least until the second part has its exact size; move kept rows last."""
    n = len(chosen)
    size = min(max(round(share * n), 1), n - 1)
    while missing := size - int(chosen.sum()):
        sign = 1 if missing > 0 else -1
        surplus = np.bincount(columns[chosen[owner]], minlength=len(counts)) - share * counts
        cost = np.bincount(owner, sign * surplus[columns] + 0.5, minlength=n).astype(np.float64)
        cost[chosen == (missing > 0)] = np.inf
        cost[kept & ~chosen] += n * len(counts)
        # A few at a time, because each changes the cost of the next one.
        moved = np.argsort(cost, kind="stable")[: -(-abs(missing) // 8)]
        chosen[moved] = missing > 0

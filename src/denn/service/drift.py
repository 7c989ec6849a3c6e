"""Drift: how far the labels of recent predictions are from those of the training documents."""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import gammaln

WINDOW = 2000  # number of predictions to compare


@dataclass(frozen=True)
class Mover:
    """A label whose share of all assigned labels has changed."""

    label: str
    trained: float  # share in training
    predicted: float  # share in recent predictions


@dataclass(frozen=True)
class Drifted:
    """Labels of recent predictions compared with those of training."""

    texts: int
    labels: int  # labels assigned to these texts
    drift: float | None = None  # total variation distance from 0 to 1; None without labels
    by_chance: float | None = None  # distance to expect if nothing has changed


@dataclass(frozen=True)
class LabelCounts:
    """How often the predictions of a window assign each label."""

    texts: int
    counts: Mapping[str, int]

    @cached_property
    def labels(self) -> int:
        """The number of labels assigned."""
        return sum(self.counts.values())

    def drifted(self, trained: Mapping[str, int]) -> Drifted:
        """Compare with the number of training documents of each label.

        The distance is ½ Σ |p − q| over the labels' shares p and q of all assigned labels, which is 1 − Σ min(p, q).
        """
        if not self.labels or not (documents := sum(trained.values())):
            return Drifted(self.texts, self.labels)
        common = sum(
            min(trained.get(label, 0) / documents, count / self.labels) for label, count in self.counts.items()
        )
        shares = np.fromiter(trained.values(), float, len(trained)) / documents
        return Drifted(self.texts, self.labels, max(0.0, 1.0 - common), _by_chance(shares, self.labels))

    def movers(self, trained: Mapping[str, int], limit: int) -> list[Mover]:
        """Return the labels whose shares differ most, largest difference first."""
        if not self.labels or not (documents := sum(trained.values())):
            return []

        def mover(label: str) -> Mover:
            return Mover(label, trained.get(label, 0) / documents, self.counts.get(label, 0) / self.labels)

        def difference(label: str) -> float:
            return abs(self.counts.get(label, 0) / self.labels - trained.get(label, 0) / documents)

        return [mover(label) for label in heapq.nlargest(limit, {**trained, **self.counts}, key=difference)]


class RecentLabels:
    """The labels of the last predictions."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window: deque[Sequence[str]] = deque()
        self._most = window
        self._counts: Counter[str] = Counter()

    def add(self, labels: Sequence[str]) -> None:
        """Remember the labels of a prediction, and forget those of the oldest one."""
        if len(self._window) == self._most:
            for label in self._window.popleft():
                self._counts[label] -= 1
                if not self._counts[label]:
                    del self._counts[label]
        self._window.append(labels)
        for label in labels:  # faster than Counter.update for a few
            self._counts[label] += 1

    def counts(self) -> LabelCounts:
        """Return a copy of the counts, which other threads may use."""
        return LabelCounts(len(self._window), dict(self._counts))


def _by_chance(shares: np.ndarray, labels: int) -> float:
    """Return the expected distance if this many labels are drawn from these shares.

    The mean absolute deviation of a binomial count X ~ B(n, p) is 2 k C(n, k) p^k (1 − p)^(n − k + 1) with
    k = ⌊n p⌋ + 1 (de Moivre).
    """
    p = shares[(shares > 0) & (shares < 1)]
    k = np.floor(labels * p) + 1
    binomial = gammaln(labels + 1) - gammaln(k + 1) - gammaln(np.maximum(labels - k, 0) + 1)
    logarithm = math.log(2) + np.log(k) + binomial + k * np.log(p) + (labels - k + 1) * np.log1p(-p)
    return float(np.exp(logarithm).sum() / labels / 2)

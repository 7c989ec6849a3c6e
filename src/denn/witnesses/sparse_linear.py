"""Linear support vector machines for many labels, each fitted only to the documents near its margin."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denn.witnesses.ngrams import Floats, Integers, Matrix

ROUNDS = 3  # fits per label; each adds the documents that the previous one got wrong
FIRST = 2000  # maximum documents of a label in its first round, which only finds others within the margin
BLOCK = 32  # labels whose decision values are computed together
NEVER = -2.0  # the decision value of a label without documents
THREADS = 4  # maximum; only one of them can be in liblinear
LIBLINEAR = Lock()  # threads share its random generator, so two at once would not be reproducible
TOLERANCE, PASSES = 0.1, 30  # for liblinear; a tenth of its default precision costs no F1


@dataclass(frozen=True)
class Machines:
    """Decision values x · W + b, positive for yes."""

    weights: Matrix  # (V,L) float32
    bias: Floats  # (L,), NaN for labels that there was no time to learn

    @property
    def learnt(self) -> NDArray[np.bool_]:
        """Which of the labels were learnt: (L,)."""
        return ~np.isnan(self.bias)


@dataclass(frozen=True)
class Learner:
    """Learns labels from (N,V) rows and (N,L) gold in CSC form.

        min ½‖(w,b)‖² + C Σ max(0, 1 − y (w · x + b))²

    Documents beyond the margin do not count, and for most labels nearly all documents are beyond it. So a label is
    fitted to its own documents and a random sample of others, then again with all documents found within the margin.
    """

    rows: Matrix
    gold: Matrix
    cost: float
    negatives: int  # documents without the label in the first round, and maximum that a later round adds
    prune: float  # weights closer to 0 than this are dropped, if C is 1
    seed: int
    seconds_left: Callable[[], float | None]

    def learn(self, labels: Integers, report: Callable[[int], None]) -> Machines:
        """Learn labels in this order, until time runs out."""
        from sklearn.exceptions import ConvergenceWarning

        threads = min(THREADS, available_cores())
        size = max(1, min(BLOCK, len(labels) // (4 * threads)))
        blocks = [labels[begin : begin + size] for begin in range(0, len(labels), size)]
        bias, parts = np.full(self.gold.shape[1], np.nan, dtype=np.float32), []
        sample = np.random.default_rng(self.seed).permutation(self.rows.shape[0])[: self.negatives]
        done = 0
        with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:  # scipy and liblinear release the GIL
            warnings.simplefilter("ignore", ConvergenceWarning)
            for block, found in zip(blocks, pool.map(lambda block: self._block(block, sample), blocks), strict=True):
                if found is not None:
                    weights, bias[block] = found
                    parts.append((block, weights))
                done += len(block)
                report(done)
        return Machines(_joined(parts, (self.rows.shape[1], len(bias))), bias)

    def _block(self, labels: Integers, sample: Integers) -> tuple[Matrix, Floats] | None:
        """Fit a few labels: (V,B) sparse weights and (B,) biases; None if there is no time to see all documents."""
        own = [self.gold.indices[self.gold.indptr[label] : self.gold.indptr[label + 1]] for label in labels]
        others = [np.setdiff1d(sample, positive) for positive in own]
        weights = np.zeros((self.rows.shape[1], len(labels)), dtype=np.float32)
        bias = np.zeros(len(labels), dtype=np.float32)
        draw = np.random.default_rng(self.seed)
        for turn in range(ROUNDS):
            decisions = self.rows @ weights + bias if turn else None  # (N,B)
            for place, positive in enumerate(own):
                if self._is_over():
                    has_seen_all = turn > 1 or (turn and len(sample) == self.rows.shape[0])
                    return (self._pruned(weights), bias) if has_seen_all else None
                is_whole = turn > 1 or len(positive) <= FIRST  # the last machine has seen all the label's documents
                if decisions is not None:
                    known = len(others[place])
                    others[place], added = self._within_margin(decisions[:, place], positive, others[place])
                    if is_whole and added <= 0.01 * (known + len(positive)):
                        continue
                elif not is_whole:
                    positive = draw.permutation(positive)[:FIRST]
                weights[:, place], bias[place] = self._machine(positive, others[place])
        return self._pruned(weights), bias

    def _pruned(self, weights: Floats) -> Matrix:
        """Return dense weights as sparse ones without those near 0, before the next block needs the memory."""
        from scipy.sparse import csc_matrix

        weights[np.abs(weights) <= self.prune * self.cost**0.5] = 0.0  # weights grow with C
        return csc_matrix(weights)

    def _within_margin(self, decisions: Any, positive: Integers, others: Integers) -> tuple[Integers, int]:
        """Return the documents without a label that are near or within its margin, and how many of them are new."""
        decisions = decisions.copy()
        decisions[positive] = -np.inf
        kept = others[decisions[others] > -1.02]
        decisions[others] = -np.inf
        most = self.negatives + 2 * len(positive)
        new = np.flatnonzero(decisions > -1)
        if len(new) > most:
            new = new[np.argpartition(-decisions[new], most)[:most]]
        return np.concatenate([kept, new]), len(new)

    def _machine(self, positive: Integers, others: Integers) -> tuple[Any, float]:
        """Fit one label to its documents and others: (V,) weights and the bias."""
        from sklearn.svm import LinearSVC

        if not len(positive) or not len(others):
            return 0.0, -NEVER if len(positive) else NEVER
        chosen = np.concatenate([positive, others])
        machine = LinearSVC(C=self.cost, tol=TOLERANCE, max_iter=PASSES, random_state=self.seed)
        rows, is_positive = self.rows[chosen].astype(np.float64), np.arange(len(chosen)) < len(positive)
        with LIBLINEAR:
            machine.fit(rows, is_positive)
        return machine.coef_[0], float(machine.intercept_[0])

    def _is_over(self) -> bool:
        left = self.seconds_left()
        return left is not None and left <= 0


def _joined(parts: list[tuple[Integers, Matrix]], shape: tuple[int, int]) -> Matrix:
    """Assemble the weights of blocks of labels into one matrix of all labels."""
    from scipy.sparse import csc_matrix, csr_matrix, hstack

    if not parts:
        return csr_matrix(shape, dtype=np.float32)
    labels = np.concatenate([block for block, _ in parts])
    places = csc_matrix((np.ones(len(labels), np.float32), (np.arange(len(labels)), labels)), (len(labels), shape[1]))
    learnt = hstack([weights for _, weights in parts], format="csc")
    return (learnt @ places).tocsr()


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

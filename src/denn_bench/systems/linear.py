"""Linear support vector machines, one per label, with sparse weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from denn_bench.systems.tfidf import Matrix, TfidfParameters


@dataclass(frozen=True, kw_only=True)
class LinearParameters(TfidfParameters):
    """Settings of an SVM."""

    cost: PositiveFloat = 1.0  # C: penalty for a training document on the wrong side of the margin
    prune: NonNegativeFloat = 0.01  # drop weights closer to 0 than this; 0: drop none


def learn(known: Matrix, positive: Any, cost: float) -> tuple[Any, float]:
    """Train one label on (N,V) rows and (N,) bool; return (V,) weights and the bias of w · x + b, positive for yes:

        min ½‖(w,b)‖² + C Σ max(0, 1 − y (w · x + b))²

    A label that all or no rows have is +1 or −1 everywhere.
    """
    import numpy as np
    from sklearn.svm import LinearSVC

    if positive.all() or not positive.any():
        return np.zeros(known.shape[1]), 1.0 if positive.all() else -1.0
    # The primal problem has the same solution as the dual one and needs no random order.
    machine = LinearSVC(C=cost, dual=False).fit(known, positive)
    return machine.coef_[0], float(machine.intercept_[0])


def sparse_row(weights: Any, prune: float) -> Matrix:
    """Return (V,) weights as a (1,V) float32 row without those closer to 0 than `prune`."""
    import numpy as np
    from scipy.sparse import csr_matrix

    return csr_matrix(np.where(np.abs(weights) < prune, 0.0, weights)[None], dtype=np.float32)


def by_term(rows: list[Matrix], terms: int) -> Matrix:
    """Stack the (1,V) rows of L labels into one (V,L) matrix for fast products with texts."""
    from scipy.sparse import csr_matrix, vstack

    return vstack(rows).T.tocsr() if rows else csr_matrix((terms, 0), dtype="float32")


def decision_values(rows: Matrix, weights: Matrix, bias: Any) -> Tensor:
    """Return (n,L) float64 decision values of (n,V) float64 rows by (V,L) weights and (L,) biases."""
    return torch.from_numpy((rows @ weights).toarray() + bias)

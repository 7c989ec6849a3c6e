"""Linear support vector machines, one for each label, with weights that are kept sparse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from denn_bench.systems.tfidf import Matrix, TfidfParameters


@dataclass(frozen=True, kw_only=True)
class LinearParameters(TfidfParameters):
    """What a machine for one label is learnt with."""

    cost: PositiveFloat = 1.0  # C: how much a training document on the wrong side of the margin counts
    prune: NonNegativeFloat = 0.01  # weights nearer 0 than this are dropped; 0: none


def learn(known: Matrix, positive: Any, cost: float) -> tuple[Any, float]:
    """Learn one label from (N,V) rows and (N,) bool; return (V,) weights and the bias of w · x + b, yes above 0:

        min ½‖(w,b)‖² + C Σ max(0, 1 − y (w · x + b))²

    A label that all or none of the rows carry is +1 or −1 everywhere.
    """
    import numpy as np
    from sklearn.svm import LinearSVC

    if positive.all() or not positive.any():
        return np.zeros(known.shape[1]), 1.0 if positive.all() else -1.0
    # The primal problem has the same solution as the dual one and needs no random order.
    machine = LinearSVC(C=cost, dual=False).fit(known, positive)
    return machine.coef_[0], float(machine.intercept_[0])


def sparse_row(weights: Any, prune: float) -> Matrix:
    """Return (V,) weights as a (1,V) float32 row without those nearer 0 than `prune`."""
    import numpy as np
    from scipy.sparse import csr_matrix

    return csr_matrix(np.where(np.abs(weights) < prune, 0.0, weights)[None], dtype=np.float32)


def by_term(rows: list[Matrix], terms: int) -> Matrix:
    """Return the (1,V) rows of L labels as one (V,L) matrix, which texts multiply fast."""
    from scipy.sparse import csr_matrix, vstack

    return vstack(rows).T.tocsr() if rows else csr_matrix((terms, 0), dtype="float32")


def decision_values(rows: Matrix, weights: Matrix, bias: Any) -> Tensor:
    """Return (n,L) float64 decision values of (n,V) float64 rows by (V,L) weights and (L,) biases."""
    return torch.from_numpy((rows @ weights).toarray() + bias)

"""TF-IDF with one linear support vector machine per label: the plain system that DENN is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from denn.core.thresholds import tune_global
from denn.errors import MissingExtraError
from denn.types import Document, LabelSpace

GRID = tuple(step / 50 for step in range(-50, 51))  # decision values; 0 is the machine's own threshold


def decision_scores(
    train: Sequence[Document], texts: Sequence[str], labels: LabelSpace, *, cost: float = 1.0, jobs: int = 2
) -> Tensor:
    """Learn each label against the rest and return the decision values of the texts: float32 (n,L), yes above 0.

    A label that all or none of the training documents carry gets +1 or −1 everywhere.
    """
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.utils.parallel import Parallel, delayed
    except ImportError as error:
        raise MissingExtraError("The comparison with a support vector machine", "scikit-learn", "demo") from error

    words = TfidfVectorizer(sublinear_tf=True, min_df=2)
    known = words.fit_transform([document.text for document in train])  # (N,V) sparse
    unseen = words.transform(texts)  # (n,V) sparse
    gold = labels.matrix(train).numpy()
    # Threads: liblinear lets go of the interpreter while it works, and the matrices are shared.
    columns = Parallel(n_jobs=jobs, prefer="threads")(
        delayed(_one_label)(known, gold[:, column], unseen, cost) for column in range(len(labels))
    )
    return torch.stack(columns, dim=1) if columns else torch.empty(len(texts), 0)


def _one_label(known: Any, positive: Any, unseen: Any, cost: float) -> Tensor:
    """Learn one label from (N,V) rows and (N,) bool, and return the (n,) decision values of the unseen rows."""
    if positive.all() or not positive.any():
        return torch.full((unseen.shape[0],), 1.0 if positive.all() else -1.0)
    from sklearn.svm import LinearSVC

    # The primal problem has the same solution as the dual one and needs no random order.
    machine = LinearSVC(C=cost, dual=False).fit(known, positive)
    return torch.from_numpy(machine.decision_function(unseen)).float()


def tune_decision(scores: Tensor, gold: Tensor) -> float:
    """Return the decision value with the best micro-F1 on (n,L) scores of a validation part."""
    return tune_global(scores, gold, GRID)

"""Evaluate other numbers of neighbours, other γ and smaller datastores, without training again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

import torch
import torch.nn.functional as F
from torch import Tensor

from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.prediction_types import Neighbours, Scores
from denn.protocols import Retriever
from denn.types import Document, LabelSpace
from denn.witnesses.texts import Texts

KS = (5, 10, 20, 30, 40, 50)
GAMMAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)


class Searched:
    """Labelled documents, embedded and scored once, and searched once for more neighbours than needed."""

    def __init__(
        self, method: Retriever, documents: Sequence[Document], embeddings: Tensor, most: int = max(KS)
    ) -> None:
        self.method, self.embeddings = method, embeddings
        texts, k = [document.text for document in documents], int(method.parameters.k)
        self.found = found = method.search(embeddings, max(k, most))
        asked = Texts(texts, lambda _: embeddings, lambda _: found.nearest(k))
        scores = method.combine(method.hear(asked), asked.neighbours)
        others = method.alternatives(scores)
        recalled = method.recall(replace(scores, texts=texts), texts)
        self.scores: Scores = replace(recalled, alternatives=others, neighbours=found)
        known = LabelSpace(found.names)
        unknown = sorted({label for document in documents for label in document.labels if label not in known})
        self.gold = LabelSpace((*found.names, *unknown)).matrix(documents)  # unknown labels count as missed

    def rescored(self, found: Neighbours, gamma: float | None = None) -> Tensor:
        """Return the (n,L) final scores with other neighbours or another γ."""
        parts = dict(self.scores.parts)
        if "neighbours" in parts:
            parts["neighbours"] = self.method.votes(found, len(found.names))
        return self.method.combine(parts, found, gamma).final


def sweep(
    valid: Searched | None,
    test: Searched,
    *,
    ks: Sequence[int] = KS,
    gammas: Sequence[float] = GAMMAS,
    threshold: float = 0.5,
) -> dict[str, list[dict[str, float]]]:
    """Return the F1 of each k and of each γ, with the other one at the method's own value.

    Each setting is decided at its own threshold, tuned on valid (at `threshold` if valid is None), and at 0.5. valid
    must not be what a combiner was fitted to, because its scores there are better than on other texts.
    """
    own = int(test.method.parameters.k)

    def measure(k: int, gamma: float | None) -> dict[str, float]:
        tuned = threshold
        if valid is not None:
            tuned = tune_global(valid.rescored(valid.found.nearest(k), gamma), valid.gold)
        return _f1(test.rescored(test.found.nearest(k), gamma), test.gold, tuned)

    return {
        "k": [{"k": k, **measure(k, None)} for k in sorted({min(k, test.found.k) for k in ks})],
        "gamma": [{"gamma": gamma, **measure(own, gamma)} for gamma in gammas],
    }


def datastore_sweep(
    valid: Searched | None,
    test: Searched,
    shares: Sequence[float] = SHARES,
    draws: int = 3,
    seed: int = 0,
    *,
    threshold: float = 0.5,
) -> list[dict[str, float]]:
    """Return the F1 with random shares of the stored documents: mean and standard deviation over the draws.

    The smaller shares of a draw are subsets of its larger ones. Thresholds are tuned on valid; without it, `threshold`
    is used.
    """
    store, k = test.method.store, int(test.method.parameters.k)
    ids, chance = store.ids(), torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(ids), generator=chance).tolist() for _ in range(draws)]

    def final(part: Searched, left_out: Sequence[str]) -> Tensor:
        return part.rescored(part.method.search(part.embeddings, k, exclude=left_out))

    def measure(order: Sequence[int], kept: int) -> dict[str, float]:
        left_out = [ids[row] for row in order[kept:]]
        tuned = threshold if valid is None else tune_global(final(valid, left_out), valid.gold)
        return _f1(final(test, left_out), test.gold, tuned)

    rows = []
    for share in shares:
        kept = min(max(1, round(share * len(ids))), len(ids))
        found = [measure(order, kept) for order in (orders if kept < len(ids) else orders[:1])]
        row: dict[str, float] = {"share": share, "documents": kept, "draws": len(found)}
        for metric in ("micro_f1", "macro_f1"):
            values = [one[metric] for one in found]
            row |= {metric: fmean(values), f"{metric}_sd": stdev(values) if len(values) > 1 else 0.0}
        rows.append(row)
    return rows


def _f1(values: Tensor, gold: Tensor, threshold: float) -> dict[str, float]:
    """Return the F1 at the threshold and at 0.5."""
    values = F.pad(values, (0, gold.shape[1] - values.shape[1]))
    tuned, half = (multilabel_scores(decide(values, cut), gold) for cut in (threshold, 0.5))
    return {
        "threshold": threshold,
        "micro_f1": tuned["micro_f1"],
        "macro_f1": tuned["macro_f1"],
        "micro_f1_at_0.5": half["micro_f1"],
        "macro_f1_at_0.5": half["macro_f1"],
    }

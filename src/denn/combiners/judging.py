"""Compare two ways of scoring texts by a metric and its standard error."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from denn.core.thresholds import FOR_MACRO_F1, decide, tune_global, tune_per_label

Optimise = Literal["micro_f1", "macro_f1", "precision_at_k"]

NOISE = 2.0  # standard errors that a difference must exceed, because choosing by less does more harm than good
RANKED = 5  # labels of a text that precision_at_k counts
GROUPS = 20  # groups of documents for the jackknife standard error
FOLDS = 5


def folds_of(documents: int, seed: int, folds: int = FOLDS) -> Tensor:
    """Assign documents to folds at random: (n,)."""
    return torch.randperm(documents, generator=torch.Generator().manual_seed(seed)) % folds


def decide_by_fold(scores: Tensor, gold: Tensor, fold: Tensor, optimise: str) -> Tensor:
    """Decide on (n,L) scores of each fold at the best thresholds for the other folds: (n,L) bool."""
    predicted = torch.empty_like(gold)
    for number in sorted(set(fold.tolist())):
        unseen = fold == number
        threshold: float | Tensor = tune_global(scores[~unseen], gold[~unseen])
        if optimise == "macro_f1":
            threshold = tune_per_label(scores[~unseen], gold[~unseen], float(threshold), FOR_MACRO_F1)
        predicted[unseen] = decide(scores[unseen], threshold)
    return predicted


def precision_values(scores: Tensor, gold: Tensor, k: int = RANKED) -> Tensor:
    """Return (1 + G,) precisions of the k best labels: over all documents, and without each of G groups."""
    best = scores.topk(min(k, scores.shape[1])).indices
    return _shares(gold.gather(1, best).sum(1, keepdim=True), torch.full((len(gold), 1), k))


def f1_values(predicted: Tensor, gold: Tensor, *, macro: bool) -> Tensor:
    """Return (1 + G,) values of F1: over all documents, and without each of G groups."""
    hits, sizes = 2 * (predicted & gold).char(), predicted.char() + gold.char()
    if macro:
        return _shares(hits, sizes)
    return _shares(hits.sum(1, keepdim=True), sizes.sum(1, keepdim=True))


def lead_of(one: Tensor, other: Tensor) -> tuple[float, float]:
    """Return how far the first of two (1 + G,) values is ahead, and its jackknife standard error."""
    lead = one - other
    left_out = lead[1:]
    error = float(((left_out - left_out.mean()).square().mean() * (len(left_out) - 1)).sqrt())
    return float(lead[0]), error


def _shares(hits: Tensor, sizes: Tensor) -> Tensor:
    return (_without_each_group(hits) / _without_each_group(sizes).clamp(min=1)).mean(1)


def _without_each_group(counts: Tensor) -> Tensor:
    """Sum (n,c) counts over all documents, and over those outside each group: (1 + G,c) float64."""
    sums = torch.stack([counts[group::GROUPS].sum(0) for group in range(GROUPS)]).double()
    total = sums.sum(0, keepdim=True)
    return torch.cat([total, total - sums])

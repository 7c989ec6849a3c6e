"""Measure how far scores are from being probabilities."""

import torch
from torch import Tensor

BINS = 10
ROWS = 256  # documents whose scores are converted to float64 at a time


def calibration_error(scores: Tensor, gold: Tensor, lowest: float = 0.1) -> float:
    """Return the expected calibration error of the (n,L) scores that are `lowest` or more; 0 if there are none.

    Σ_b (m_b / m) |mean score − share of gold labels| over ten bins b of equal width, with m_b of m scores each. Scores
    near 0 are left out: nearly all scores are near 0 and correct, so they would hide the others.
    """
    shown = scores >= lowest
    values, right = scores[shown].double(), gold[shown].double()
    bins = (values * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64, device=scores.device).index_add_(0, bins, values - right)
    return float(gaps.abs().sum()) / max(len(values), 1)


def log_loss(scores: Tensor, gold: Tensor) -> float:
    """Return the mean over documents of −Σ_l log P(gold_l), with (n,L) scores as probabilities of at least 10⁻⁶."""
    total = 0.0
    for begin in range(0, len(gold), ROWS):
        some = scores[begin : begin + ROWS].double()
        total -= float(torch.where(gold[begin : begin + ROWS], some, 1 - some).clamp_(min=1e-6).log_().sum())
    return total / max(len(gold), 1)

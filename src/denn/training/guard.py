"""Detect from losses and validations that training has collapsed."""

from __future__ import annotations

import math
from collections.abc import Mapping

from denn.training.plan import State

RECOVERIES = 2  # collapses after which training continues; another one ends it
RATE_SHARE = 0.5  # factor on the learning rate after each
JUMP, STAYED = 2.0, 5  # a loss this many times the usual, at this many checks in a row, triggers a validation
MEMORY = 0.9  # decay of the usual loss per check
ALIKE = 0.1  # share of the best spread below which all texts get nearly the same scores
FALLEN, LOW, LOW_TWICE = 0.5, 0.8, 2  # shares of the best score: once below the first, or twice below the second
NOISE = 3.0  # standard errors; a smaller drop means nothing


def loss_stays_high(state: State, loss: float) -> bool:
    """Record the mean loss since the last check, and return whether it jumped and stayed high.

    A loss that was ever negative, as with rewards, is ignored, because multiples of it mean nothing.
    """
    usual = state.usual_loss
    if loss <= 0 or usual == 0:
        state.usual_loss = 0.0
    elif usual is not None and loss > JUMP * usual:
        state.high_looks += 1
        return state.high_looks >= STAYED
    else:
        state.usual_loss = loss if usual is None else MEMORY * usual + (1 - MEMORY) * loss
    state.high_looks = 0
    return False


def sign_of_collapse(state: State, scores: Mapping[str, float], finite: bool) -> str | None:
    """Return the sign of a collapse in a validation; None if training is sound.

    `finite` is whether all weights are finite numbers.
    """
    if not finite or not all(math.isfinite(value) for value in scores.values()):
        return "weights or scores are not finite numbers"
    if scores.get("spread", math.inf) < ALIKE * state.best_spread:
        return "all texts get nearly the same scores"
    stays_high = state.high_looks >= STAYED
    state.high_looks = 0
    if stays_high and not state.best_score:  # there is no other evidence
        return f"the loss rose from {state.usual_loss:.4f} to {state.loss:.4f} and stayed there"
    if "score" not in scores:
        return None
    if stays_high:
        state.usual_loss = state.loss  # the validation decides whether it matters
    score, best = scores.get("tuned_micro_f1", scores["score"]), state.highest
    state.noise = max(state.noise, scores.get("noise", 0.0))
    low = score < LOW * best and best - score > NOISE * state.noise
    state.low_scores = state.low_scores + 1 if low else 0
    state.highest = max(best, score)
    if low and (score < FALLEN * best or state.low_scores >= LOW_TWICE):
        return f"the validation score fell from {100 * best:.1f} to {100 * score:.1f}"
    return None

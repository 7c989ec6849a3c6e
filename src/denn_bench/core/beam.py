"""Beam search over sequences of labels, and label scores from the beams."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

State = tuple[Tensor, ...]  # each (m,…), a row for every beam
Step = Callable[[Tensor, State], tuple[Tensor, State]]  # (m,) last tokens, state → (m,V) logits, new state


class Beams(NamedTuple):
    """The sequences found for n texts, best first."""

    tokens: Tensor  # (n,width,S) int64; only ends after a sequence's end
    scores: Tensor  # (n,width) ranking scores: the log-probability, per token if normalised
    logs: Tensor  # (n,width) log-probability with its fusion; −inf if there are fewer sequences than beams


def beam_search(
    step: Step, state: State, count: int, *, width: int, limit: int, start: int, end: int,
    fusion: Tensor | None = None, normalise: bool = False,
) -> Beams:  # fmt: skip
    """Find the `width` most likely sequences of at most `limit` tokens for each of `count` texts at once.

    log p(y) = Σ_t [log softmax(z_t + m_t)(y_t) + f(y_t)], with m_t = −∞ at the tokens y_1 … y_{t−1} and at `start`,
    never at `end`, and f = `fusion`, an optional finite (n,V) term per text. `step` gets count·width rows, those of a
    text adjacent, and returns logits z_t or log-probabilities, which are equivalent here. `state` has one row per text
    at first and follows the beams. With `normalise`, beams are ranked by log p(y) / number of tokens, including the
    end. Sequences that have not ended at the limit are kept.
    """
    device = state[0].device
    state = tuple(part.repeat_interleave(width, 0) for part in state)
    first = width * torch.arange(count, device=device)[:, None]  # (n,1) row of each text's first beam
    last = torch.full((count, width), start, device=device)
    tokens = last.new_empty(count, width, 0)
    logs = torch.full((count, width), -torch.inf, device=device)
    logs[:, 0] = 0  # all beams start the same: one is enough
    scores, finished, used = logs, torch.zeros_like(logs, dtype=torch.bool), None
    lengths = torch.zeros_like(logs)
    for _ in range(limit):
        if bool((finished | logs.isinf()).all()):
            break
        logits, state = step(last.flatten(), state)
        choices = logits.shape[1]
        if used is None:
            used = (torch.arange(choices, device=device) == start).repeat(count, width, 1)  # (n,width,V)
        gains = torch.log_softmax(logits.float().view(count, width, choices).masked_fill(used, -torch.inf), 2)
        if fusion is not None:
            gains = gains + fusion[:, None]
        gains = _stay(gains, finished, end)
        lengths = lengths + ~finished
        totals = logs[:, :, None] + gains
        ranks = (totals / lengths[:, :, None] if normalise else totals).flatten(1)
        scores, chosen = ranks.topk(width, dim=1)  # (n,width), best first
        beams, last = chosen.div(choices, rounding_mode="floor"), chosen % choices
        logs = totals.flatten(1).gather(1, chosen)
        lengths, finished = lengths.gather(1, beams), finished.gather(1, beams) | (last == end)
        rows = (first + beams).flatten()
        state = tuple(part.index_select(0, rows) for part in state)
        tokens = torch.cat([tokens.flatten(0, 1)[rows].view(count, width, -1), last[:, :, None]], 2)
        used = used.flatten(0, 1)[rows].view_as(used).scatter(2, last[:, :, None], True)
    return Beams(tokens, scores, logs)


def label_marginals(beams: Beams, labels: int) -> Tensor:
    """Return the (n,L) share of the beams' probability on beams with each label 0 … L−1.

    p(l) = Σ_b p_b [l in b] / Σ_b p_b
    """
    shares = torch.softmax(beams.logs, 1)
    return torch.einsum("nb,nbl->nl", shares, _members(beams.tokens, labels)).clamp(0, 1)


def best_labels(beams: Beams, labels: int) -> Tensor:
    """Return the (n,L) labels of each text's best beam as 0 and 1."""
    return _members(beams.tokens[:, :1], labels)[:, 0]


def _stay(gains: Tensor, finished: Tensor, end: int) -> Tensor:
    """Restrict finished beams to ending again, at no cost."""
    again = torch.full_like(gains[0, 0], -torch.inf)
    again[end] = 0
    return torch.where(finished[:, :, None], again, gains)


def _members(tokens: Tensor, labels: int) -> Tensor:
    """Return (n,width,L): 1 if a beam contains a label; start and end come after the labels and are dropped."""
    found = torch.zeros(*tokens.shape[:2], labels + 1, device=tokens.device)
    return found.scatter(2, tokens.clamp(max=labels), 1.0)[:, :, :labels]

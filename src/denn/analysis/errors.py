"""Find where a model goes wrong: labels that it confuses, and the texts that it tags worst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from denn.core.thresholds import decide
from denn.prediction_types import Scores


def confusions(predicted: Tensor, gold: Tensor, names: Sequence[str], top: int = 30) -> list[dict[str, Any]]:
    """Return pairs of a missed label and a wrong one of the same text, most frequent first, ties by column.

    `names` are the columns of the two bool (n,L) matrices.
    """
    missed, wrong = (gold & ~predicted).nonzero(), (predicted & ~gold).nonzero()  # (·,2) text and column, by text
    per_text = wrong[:, 0].bincount(minlength=len(gold))
    partners = per_text[missed[:, 0]]  # wrong labels in the text of each missed one
    shift = (per_text.cumsum(0) - per_text)[missed[:, 0]] - (partners.cumsum(0) - partners)
    places = torch.arange(int(partners.sum())) + shift.repeat_interleave(partners)  # each pair's wrong label
    codes = missed[:, 1].repeat_interleave(partners) * len(names) + wrong[places, 1]
    pairs, texts = codes.unique(return_counts=True)  # type: ignore[no-untyped-call]
    order = texts.argsort(descending=True, stable=True)[:top]
    return [
        {"missed": names[pair // len(names)], "given": names[pair % len(names)], "texts": count}
        for pair, count in zip(pairs[order].tolist(), texts[order].tolist(), strict=True)
    ]


def worst(scores: Scores, gold: Tensor, threshold: float | Tensor, top: int = 20) -> list[dict[str, Any]]:
    """Return the texts with errors at the threshold, one or (L,), whose scores are farthest from their labels.

    The loss of a text is the mean of (ŷ_c − y_c)² over the labels c that it has or was given, by final scores; 1 means
    completely wrong. The worst texts come first, and so do the worst missed and wrong labels of each, with their
    scores. Gold columns beyond those of the scores are labels that only the documents have, and are left out.
    """
    known = gold[:, : scores.final.shape[1]]
    given = decide(scores.final, threshold)
    errors, involved = given ^ known, given | known
    squares = (scores.final.double() - known.double()).square() * involved
    losses = (squares.sum(1) / involved.sum(1).clamp(min=1)).masked_fill(~errors.any(1), -1.0)
    rows = losses.argsort(descending=True, stable=True)[:top].tolist()
    return [
        {
            "row": row,
            "loss": float(losses[row]),
            "missed": _scored(scores, row, errors[row] & known[row], False),
            "wrong": _scored(scores, row, errors[row] & ~known[row], True),
        }
        for row in rows
        if losses[row] >= 0
    ]


def _scored(scores: Scores, row: int, members: Tensor, highest: bool) -> list[tuple[str, float]]:
    columns = members.nonzero().flatten().tolist()
    pairs = [(scores.names[column], float(scores.final[row, column])) for column in columns]
    return sorted(pairs, key=lambda pair: pair[1], reverse=highest)

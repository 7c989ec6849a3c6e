"""Choose which texts to check first: the expected errors of a decision, and a diverse selection."""

import torch
from torch import Tensor

LEAST = 1e-6  # scores are clamped to this and to 1 minus this
GIVEN = 1.0  # log-odds added to the suspicion of assigned labels, chosen on planted errors


def expected_errors(scores: Tensor, chosen: Tensor) -> Tensor:
    """Return (n,) expected numbers of wrong labels from (n,L) probabilities and bool decisions.

    Σ_l (1 − p_l) over the chosen labels + Σ_l p_l over the others
    """
    return torch.where(chosen, 1 - scores, scores).sum(1)


def spread_out(values: Tensor, vectors: Tensor, count: int) -> list[int]:
    """Choose rows greedily by (n,) values ≥ 0 and (n,d) unit vectors, best first.

    The value of a row counts as v · (1 − max(0, s)), with s its highest cosine to a row chosen before.
    """
    distance = torch.ones_like(values)
    chosen: list[int] = []
    for _ in range(min(count, len(values))):
        worth = values * distance
        worth[chosen] = -1
        best = int(worth.argmax())
        chosen.append(best)
        distance = torch.minimum(distance, 1 - (vectors @ vectors[best]).clamp(0, 1))
    return chosen


def suspicion(scores: Tensor, given: Tensor, share: Tensor) -> Tensor:
    """Return how suspicious each label decision is, from 0 to 1, from (n,L) probabilities p and (L,) shares s.

    A missing label: p. An assigned label: sigmoid(logit s − logit p + 1), with s the share of documents that have it.
    So a label is suspicious if it is hardly more likely than in any document, and rare labels are not suspicious just
    because all their scores are low.
    """
    logits = torch.logit(scores, LEAST)
    return torch.sigmoid(torch.where(given, torch.logit(share, LEAST) - logits + GIVEN, logits))

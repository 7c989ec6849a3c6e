"""Which texts to look at first: the expected mistakes of a decision, and a choice that is spread out."""

import torch
from torch import Tensor

LEAST = 1e-6  # scores are clamped to this and to 1 minus this
GIVEN = 1.0  # log-odds by which a label that is given is more suspicious, chosen on planted errors


def expected_errors(scores: Tensor, chosen: Tensor) -> Tensor:
    """Return (n,) expected numbers of wrong labels from (n,L) probabilities and bool decisions.

    Σ_l (1 − p_l) over the labels that are chosen + Σ_l p_l over the others
    """
    return torch.where(chosen, 1 - scores, scores).sum(1)


def spread_out(values: Tensor, vectors: Tensor, count: int) -> list[int]:
    """Choose rows greedily by (n,) values ≥ 0 and (n,d) unit vectors, best first.

    The value of a row counts v · (1 − max(0, s)), with s its highest cosine to a row that was chosen before.
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
    """Return how suspicious labels are as they stand, from 0 to 1, of (n,L) probabilities p and (L,) shares s.

    A label that is missing: p. A label that is given: sigmoid(logit s − logit p + 1), with s the share of documents
    that have it; so a label is suspicious if it is hardly more likely than in any document, and rare ones are not
    suspicious because all their scores are low.
    """
    logits = torch.logit(scores, LEAST)
    return torch.sigmoid(torch.where(given, torch.logit(share, LEAST) - logits + GIVEN, logits))

"""Which texts to look at first: the expected mistakes of a decision, and a choice that is spread out."""

import torch
from torch import Tensor


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


def suspicion(scores: Tensor, given: Tensor) -> Tensor:
    """Return (n,L) probabilities that labels are wrong as they stand: 1 − p where one is given, else p."""
    return torch.where(given, 1 - scores, scores)

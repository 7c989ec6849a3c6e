"""Sequential decisions, each based on the previous ones."""

from collections.abc import Sequence

import torch
from torch import Tensor


def follow_chain(values: Tensor, links: Tensor, order: Sequence[int]) -> Tensor:
    """Return the (n,L) decision values of a chain of labels, given those of the texts alone, (n,L).

    d_j = values_j + Σ_i links_ij · [d_i > 0] over the labels i before j in `order`; links (L,L) of other pairs are
    ignored.
    """
    decided = torch.zeros_like(values)
    found = values.clone()
    for place, column in enumerate(order):
        before = list(order[:place])
        found[:, column] += decided[:, before] @ links[before, column]
        decided[:, column] = (found[:, column] > 0).to(values.dtype)
    return found

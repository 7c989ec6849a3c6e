"""Log-odds of labels before a text is read, where biases start."""

from __future__ import annotations

import torch
from torch import Tensor


def log_odds(labels: Tensor, *, shared: bool = False) -> Tensor:
    """Return the (L,) log-odds of (n,L) bool labels, or (1,), those of their mean share, if all share one bias.

    A label that all or no texts have counts as if half a text were different.
    """
    share = labels.float().mean(0)
    if shared:
        share = share.mean(0, keepdim=True)
    least = 0.5 / len(labels)
    return torch.logit(share.clamp(least, 1 - least))

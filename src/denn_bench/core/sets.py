"""Label sets generated token by token: their rewards, and the optimal next tokens.

Tokens are the labels 0 … L−1 and the end L; a sequence may stop without an end.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def live(tokens: Tensor, end: int) -> Tensor:
    """Return (n,S) bool: the positions of (n,S) tokens up to and including the first end."""
    ended = tokens == end
    return (ended.cumsum(1) - ended.long()) == 0


def emitted_before(tokens: Tensor, labels: int) -> Tensor:
    """Return (n,S,L) bool: whether a label occurs at an earlier position of (n,S) tokens."""
    n, steps = tokens.shape
    places = torch.arange(steps, device=tokens.device)
    first = tokens.new_full((n, labels + 1), steps)
    first = first.scatter_reduce(1, tokens, places.expand(n, steps), "amin")  # (n,L+1) first position of each token
    return first[:, None, :labels] < places[:, None]


def members(tokens: Tensor, labels: int) -> Tensor:
    """Return (n,L) bool: the labels among (n,S) tokens."""
    found = torch.zeros(len(tokens), labels + 1, dtype=torch.bool, device=tokens.device)
    return found.scatter(1, tokens, True)[:, :labels]


def sample_f1(found: Tensor, gold: Tensor) -> Tensor:
    """Return the (n,) F1 of each row's label set: 2 |A ∩ B| / (|A| + |B|) of (n,L) bool A and B.

    An empty prediction scores 0, but 1 if the gold set is empty too; otherwise no reward would ever teach a decoder to
    leave a text without labels.
    """
    common = (found & gold).sum(1)
    sizes = found.sum(1) + gold.sum(1)
    return torch.where(sizes == 0, 1.0, 2 * common / sizes.clamp(min=1))


def self_critical_loss(logits: Tensor, tokens: Tensor, advantage: Tensor) -> Tensor:
    """Return the policy-gradient loss of sampled (n,S) tokens, as the mean over texts; only its gradient matters.

    −(1/n) Σ_i A_i Σ_{t ≤ first end} log p(y_t | y_<t),   p = softmax of (n,S,L+1) logits over the tokens not in y_<t
    with A = r(sample) − r(greedy) the (n,) advantage, a constant.
    """
    labels = logits.shape[2] - 1
    used = F.pad(emitted_before(tokens, labels), (0, 1))  # the end can always be chosen
    logs = torch.log_softmax(logits.masked_fill(used, -torch.inf), 2).gather(2, tokens[:, :, None]).squeeze(2)  # (n,S)
    logs = torch.where(live(tokens, labels), logs, 0.0)
    return -(advantage.detach() * logs.sum(1)).mean()


def optimal_distribution(tokens: Tensor, labels: Tensor) -> Tensor:
    """Return (n,S,L+1): the optimal distribution for each step of (n,S) tokens, given the (n,L) bool label set.

    π*_t is uniform over the labels of the set that are not in y_<t; if none is left, it is the end.
    """
    missing = labels[:, None] & ~emitted_before(tokens, labels.shape[1])  # (n,S,L)
    left = missing.sum(2, keepdim=True)
    return torch.cat([missing / left.clamp(min=1), (left == 0).float()], 2)


def optimal_completion_loss(logits: Tensor, tokens: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over live positions of KL(π*_t ‖ softmax(z_t)), with z the unmasked (n,S,L+1) logits.

    A position is live up to the first end among the (n,S) tokens, which the decoder itself chose.
    """
    target = optimal_distribution(tokens, labels)
    divergence = F.kl_div(torch.log_softmax(logits, 2), target, reduction="none").sum(2)  # (n,S)
    counted = live(tokens, labels.shape[1])
    return (divergence * counted).sum() / counted.sum()

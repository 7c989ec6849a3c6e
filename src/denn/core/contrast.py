"""Debiased contrastive learning: label overlap, negative weights and the loss (Eq. 4-6), and losses to compare with."""

import torch
from torch import Tensor


def label_overlap(a: Tensor, b: Tensor) -> Tensor:
    """Return the (n,m) label similarity of (n,L) and (m,L) 0/1 rows; both empty → 1, one empty → 0.

    Eq. 5: l_ij = |Y_i ∩ Y_j| / max(|Y_i|, |Y_j|)
    """
    a, b = _at_least_float32(a), _at_least_float32(b)
    with torch.autocast(a.device.type, enabled=False):  # bfloat16 cannot hold label counts above 256
        common = a @ b.T
    larger = torch.maximum(a.sum(1)[:, None], b.sum(1))
    return torch.where(larger > 0, common / larger.clamp(min=1), 1.0)


def negative_weights(overlap: Tensor) -> Tensor:
    """Return the weights of negatives, in [1,2]: the less they share with the anchor, the harder they are pushed away.

    Eq. 4: w_ij = 1 + (1 − l_ij)
    """
    return 1 + (1 - overlap)


def debiased_contrastive_loss(similarity: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the (2N,) losses of the anchors of a (2N,2N) cosine matrix; rows i and i+N are the views of document i.

    Eq. 6: −log( exp(s_ii⁺/τ₁) / Σ_{j≠i} w_ij exp(s_ij/τ₁) )
    It is never negative, because the denominator contains the positive with weight 1. Computed in float32 or higher.
    """
    return _loss(similarity, labels, temperature, weighted=True, supervised=False)


def unsupervised_contrastive_loss(similarity: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the (2N,) losses of Eq. 6 with every w_ij = 1 (UCL), ignoring the labels."""
    return _loss(similarity, labels, temperature, weighted=False, supervised=False)


def supervised_contrastive_loss(similarity: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the (2N,) losses in which every row with the same label set as the anchor is a positive (SCL).

    −1/|P(i)| Σ_{p∈P(i)} log( exp(s_ip/τ₁) / Σ_{j≠i} exp(s_ij/τ₁) ), P(i) = {p ≠ i: Y_p = Y_i}
    P(i) always contains the other view; two documents without labels have the same label set.
    """
    return _loss(similarity, labels, temperature, weighted=False, supervised=True)


def weighted_supervised_contrastive_loss(similarity: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the (2N,) losses of SCL with the w_ij of Eq. 4 in the denominator (WSCL)."""
    return _loss(similarity, labels, temperature, weighted=True, supervised=True)


def _loss(similarity: Tensor, labels: Tensor, temperature: float, *, weighted: bool, supervised: bool) -> Tensor:
    """Average −log( exp(s_ip/τ₁) / Σ_{j≠i} w_ij exp(s_ij/τ₁) ) over the positives p of each anchor i: (2N,)."""
    similarity = _at_least_float32(similarity)
    labels = labels.to(similarity.dtype)
    overlap = label_overlap(labels, labels).repeat(2, 2)  # (2N,2N)
    itself = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    logits = similarity / temperature
    if weighted:
        logits = logits + negative_weights(overlap).log()  # 0 for positives, which have the anchor's label set
    other_view = itself.roll(len(labels), 0)
    positives = (overlap == 1) & ~itself if supervised else other_view
    log_shares = logits.masked_fill(itself, -torch.inf).log_softmax(1)
    return -log_shares.where(positives, 0).sum(1) / positives.sum(1)


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))

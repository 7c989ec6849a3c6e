"""Debiased contrastive learning: label overlap, negative weights and the loss (Eq. 4-6)."""

import torch
from torch import Tensor
from torch.nn import functional as F


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
    """Return the weights of negatives, in [1,2]: the less they share with the anchor, the harder they are pushed.

    Eq. 4: w_ij = 1 + (1 − l_ij)
    """
    return 1 + (1 - overlap)


def debiased_contrastive_loss(similarity: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the (2N,) losses of the anchors of a (2N,2N) cosine matrix; rows i and i+N are the views of document i.

    Eq. 6: −log( exp(s_ii⁺/τ₁) / Σ_{j≠i} w_ij exp(s_ij/τ₁) )
    It is never negative, as the denominator holds the positive with weight 1, and at least float32 under autocast.
    """
    similarity = _at_least_float32(similarity)
    rows = len(similarity)
    labels = labels.to(similarity.dtype)
    weights = negative_weights(label_overlap(labels, labels)).repeat(2, 2)  # (2N,2N)
    itself = torch.eye(rows, dtype=torch.bool, device=similarity.device)
    logits = (similarity / temperature + weights.log()).masked_fill(itself, -torch.inf)
    other_view = torch.arange(rows, device=similarity.device).roll(rows // 2)
    return F.cross_entropy(logits, other_view, reduction="none")  # exact, as log w_ii⁺ = 0


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))

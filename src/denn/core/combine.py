"""Inference: the vote of the neighbours, its confidence, and the combination with the classifier (Eq. 9-13)."""

import torch
from torch import Tensor
from torch.nn import functional as F


def vote(similarity: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the (n,L) votes of (n,k) neighbours with (n,k,L) labels; −inf marks no neighbour; without any, 0.

    Eq. 10: ŷ_knn = Σ_i β_i y_i
    """
    shares = _shares(similarity, temperature)
    return torch.einsum("nk,nkl->nl", shares, labels.to(shares.dtype)).clamp(0, 1)


def vote_sparse(similarity: Tensor, offsets: Tensor, label_columns: Tensor, width: int, temperature: float) -> Tensor:
    """Return the (n,width) votes of `vote` from sparse labels, with memory for their number plus n · width.

    The labels of neighbour j of text i are `label_columns[offsets[i * k + j] : offsets[i * k + j + 1]]`.
    """
    n, entries = len(similarity), len(label_columns)
    if entries and not 0 <= int(label_columns.min()) <= int(label_columns.max()) < width:
        raise IndexError(f"label columns are outside 0 to {width - 1}")  # they would count for the next text
    per_neighbour = offsets.diff()  # (n·k,)
    per_text = per_neighbour.view(similarity.shape).sum(1)  # (n,)
    texts = torch.arange(n, device=similarity.device).repeat_interleave(per_text, output_size=entries)
    shares = _shares(similarity, temperature).flatten().repeat_interleave(per_neighbour, output_size=entries)
    votes = shares.new_zeros(n * width).index_add_(0, texts * width + label_columns, shares)
    return votes.view(n, width).clamp_(0, 1)


def less_rejected(votes: Tensor, rejecting: Tensor, weight: float) -> Tensor:
    """Return (n,L) votes in which a neighbour that rejects a label counts as `weight` more that merely lack it.

    `rejecting` is the (n,L) share of the neighbours that reject it:  Σ_i β_i y_i / (1 + w Σ_i β_i r_i)
    """
    return votes / (1 + weight * rejecting)


def debiased_confidence(classifier: Tensor, neighbours: Tensor, gamma: float) -> Tensor:
    """Return λ (n,), the smallest vote among the labels with a classifier score of at least γ; 1 if there are none.

    Eq. 11-12: λ = min { ŷ_knn^c : ŷ_clf^c ≥ γ }
    """
    votes = torch.where(classifier >= gamma, neighbours, 1.0)
    return F.pad(votes, (0, 1), value=1.0).amin(1)  # the added column allows L = 0


def combine(classifier: Tensor, neighbours: Tensor, confidence: Tensor) -> Tensor:
    """Return the (n,L) final scores, each between its two inputs.

    Eq. 13: ŷ = λ ŷ_knn + (1 − λ) ŷ_clf
    """
    return torch.lerp(classifier, neighbours, confidence[:, None])  # unlike the sum, lerp never rounds past an end


def combine_known(classifier: Tensor, neighbours: Tensor, confidence: Tensor) -> Tensor:
    """Return the (n,L) final scores if the classifier knows only the first L₀ labels: its scores are (n,L₀).

    Eq. 13 for labels that both know, ŷ_knn for labels that only the datastore knows. This follows from Eq. 13 with the
    best estimate of the missing score, the vote itself: ŷ = λ ŷ_knn + (1 − λ) ŷ_knn = ŷ_knn for every λ. Any other
    value would be arbitrary: 0 would penalise the label, most for small λ; 1, or votes shared among only those
    neighbours that carry a new label, would assign it to every text with a distant one. λ of Eq. 11-12 depends on the
    classifier's own labels, so documents of a new label change other scores only through the neighbours that they
    displace.
    """
    known = classifier.shape[1]
    return torch.cat([combine(classifier, neighbours[:, :known], confidence), neighbours[:, known:]], dim=1)


def _shares(similarity: Tensor, temperature: float) -> Tensor:
    """Return β (n,k), Eq. 9: the softmax of s/τ₂ over the neighbours; 0 if there are none."""
    return torch.softmax(similarity / temperature, dim=1).masked_fill(similarity == -torch.inf, 0)

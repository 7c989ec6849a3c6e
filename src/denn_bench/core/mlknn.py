"""ML-kNN: label probabilities from the labels of the nearest documents, by Bayes' rule with counted frequencies."""

import torch
from torch import Tensor


def neighbour_histograms(near: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Count documents by how many of their neighbours carry a label: (n,L) int64 `near` and (n,L) bool `labels`.

    Return two (L,k+1) int64: c1[l,j] = #{i : y_il = 1, near_il = j} and c0 likewise for y_il = 0.
    """
    width = near.shape[1]
    cells = torch.arange(width, device=near.device) * (k + 1) + near  # (n,L): one histogram for each label

    def histogram(members: Tensor) -> Tensor:
        return cells[members].bincount(minlength=width * (k + 1)).view(width, k + 1)

    return histogram(labels), histogram(~labels)


def posterior(near: Tensor, with_label: Tensor, without_label: Tensor, smoothing: float) -> Tensor:
    """Return P(label | j of the neighbours carry it) as float64 (n,L), for j in the (n,L) int64 `near`.

    P = a / (a + b) with a = P(H1) P(E_j | H1) and b = P(H0) P(E_j | H0). From the (L,k+1) histograms c1 and c0 of m
    documents, with s the smoothing: P(H1) = (s + Σ_p c1[p]) / (2s + m) and
    P(E_j | H1) = (s + c1[j]) / (s (k + 1) + Σ_p c1[p]); likewise for H0 and c0.
    """
    documents = (with_label + without_label).sum(1, keepdim=True).double()  # (L,1)

    def joint(histogram: Tensor) -> Tensor:
        total = histogram.sum(1, keepdim=True).double()
        prior = (smoothing + total) / (2 * smoothing + documents)
        return prior * (smoothing + histogram.double()) / (smoothing * histogram.shape[1] + total)

    yes, no = joint(with_label), joint(without_label)
    table = yes / (yes + no)  # (L,k+1)
    return table.gather(1, near.T).T

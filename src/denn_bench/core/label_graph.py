"""Graphs between labels: co-occurrence frequencies, and one propagation step of features along the edges."""

import torch
from torch import Tensor


def co_occurrence(labels: Tensor) -> Tensor:
    """Return the (L,L) shares of the (N,L) bool rows with label j that also have label i; 0 on the diagonal.

    A_ij = P(i | j) = N_ij / N_j,  0 if no row has label j
    """
    rows = labels.float()
    together = rows.T.to_sparse() @ rows  # (L,L); rows have few labels
    shares = together / together.diagonal().clamp(min=1)
    return shares.fill_diagonal_(0.0)


def propagate(adjacency: Tensor, features: Tensor) -> Tensor:
    """Return D^-½ (A + I) D^-½ X of an (L,L) or (n,L,L) graph without negative edges and (n,L,d) features.

    D_ii = 1 + Σ_j A_ij. The features are scaled before and after, because the graph is far larger.
    """
    degree = 1 + adjacency.sum(dim=-1, keepdim=True, dtype=torch.float32)  # (…,L,1)
    scaled = degree.rsqrt() * features
    return degree.rsqrt() * (adjacency @ scaled.to(adjacency.dtype) + scaled)

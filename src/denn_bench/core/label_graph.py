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
    """Return D^-½ (A + S) D^-½ X of an (L,L) or (n,L,L) graph without negative edges and (n,L,d) features.

    S is diagonal, S_ii = max(1, Σ_j A_ij): a label weighs as much as all its neighbours, of which a dense graph has
    thousands. D_ii = S_ii + Σ_j A_ij. The features are scaled before and after, because the graph is far larger.
    """
    edges = adjacency.sum(dim=-1, keepdim=True, dtype=torch.float32)  # (…,L,1)
    own = edges.clamp(min=1)
    scale = (edges + own).rsqrt()
    scaled = scale * features
    return scale * (adjacency @ scaled.to(adjacency.dtype) + own * scaled)

"""Label-specific features of a text: attention of labels over the states of its words."""

import torch
from torch import Tensor


def attend(scores: Tensor, real: Tensor, states: Tensor) -> Tensor:
    """Return the (n,L,d) sums of (n,T,d) states weighted by (n,T,L) scores; `real` (n,T) masks padding.

    m_l = Σ_t a_tl h_t,  a_tl = exp(s_tl) / Σ_u exp(s_ul) over the real words; a text needs at least one.
    """
    shares = torch.softmax(scores.float().masked_fill(~real[:, :, None], -torch.inf), dim=1)
    return shares.transpose(1, 2) @ states.to(shares.dtype)


def attend_plainly(labels: Tensor, states: Tensor) -> Tensor:
    """Return the (n,L,d) sums of (n,T,d) states weighted by their products with (L,d) labels, without softmax.

    m_l = Σ_t (e_l · h_t) h_t = (Σ_t h_t h_tᵀ) e_l: the second form needs no (n,T,L) products. Zero states add nothing.
    """
    return labels @ (states.transpose(1, 2) @ states)


def interact(labels: Tensor, states: Tensor, weight: Tensor) -> Tensor:
    """Return (n,L,k) maps of each label's products with the words, by a (k,W) weight for W positions; T is at most W.

    z_lk = Σ_t w_kt (e_l · h_t) = e_l · Σ_t w_kt h_t: the second form needs no (n,T,L) products. (n,T,d) states take the
    last T positions; those before them, and states of zero, add nothing.
    """
    return labels @ (weight[:, weight.shape[1] - states.shape[1] :] @ states).transpose(1, 2)


def at_the_end(states: Tensor, real: Tensor) -> Tensor:
    """Move the real rows of (n,T,d) states, the first ones, to the end of T; zeros come before them."""
    longest = states.shape[1]
    source = torch.arange(longest, device=states.device) - (longest - real.sum(1, keepdim=True))  # (n,T)
    moved = states.gather(1, source.clamp(min=0)[:, :, None].expand_as(states))
    return moved * (source >= 0)[:, :, None]

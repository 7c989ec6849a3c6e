"""Contrastive losses over one view of each text, with positives weighted by labels: SCL, JSCL, SLCL, ICL, Su's kNN."""

import torch
from torch import Tensor

ALONE = 1e-20  # keeps a denominator above 0 in the released code of JSCL


def weighted_contrast(logits: Tensor, weights: Tensor) -> Tensor:
    """Return the (…,N) losses of the anchors of (…,N,N) logits z, with weight w_ij between i and j.

    −Σ_{j≠i} w_ij log( exp(z_ij) / Σ_{k≠i} exp(z_ik) )
    An anchor whose weights are all 0 has loss 0. The diagonals of z and w are ignored.
    """
    logits = _at_least_float32(logits)
    itself = torch.eye(logits.shape[-1], dtype=torch.bool, device=logits.device)
    log_shares = logits.masked_fill(itself, -torch.inf).log_softmax(-1)
    return -(weights.to(logits.dtype) * log_shares.masked_fill(itself, 0)).sum(-1)


def identical_sets(labels: Tensor) -> Tensor:
    """Return the (N,N) weights of SCL for (N,L) labels: 1/|P(i)| if j is in P(i) = {j ≠ i: Y_j = Y_i}, otherwise 0.

    Two documents without labels have the same label set.
    """
    common, sizes = _common(labels)
    return _shares(((common == sizes) & (common == sizes[:, None])).to(common.dtype))


def jaccard(labels: Tensor) -> Tensor:
    """Return J_ij = |Y_i ∩ Y_j| / |Y_i ∪ Y_j|, (N,N) for (N,L) labels; 0 if both are empty."""
    common, sizes = _common(labels)
    return common / (sizes + sizes[:, None] - common).clamp(min=1)


def jaccard_weights(labels: Tensor) -> Tensor:
    """Return the (N,N) weights of JSCL as in DENN's paper: J_ij / Σ_{k≠i} J_ik; 0 if i shares no label."""
    return _shares(jaccard(labels))


def shared_labels(labels: Tensor) -> Tensor:
    """Return the (N,N) dynamic coefficients of Su et al.: b_ij = C_ij / Σ_{k≠i} C_ik, C_ij = y_i · y_j.

    They are 0 if i shares no label with another document.
    """
    return _shares(_common(labels)[0])


def label_by_label(labels: Tensor) -> Tensor:
    """Return the (N,N) weights of SLCL for (N,L) labels: the mean over labels c of 1/|P_c(i)| if j is in P_c(i).

    P_c(i) = {j ≠ i: y_jc = y_ic}: documents without a label attract each other, like those with it.
    """
    having = _at_least_float32(labels)
    pulls = [_product(members / (members.sum(0) - 1).clamp(min=1), members.T) for members in (having, 1 - having)]
    return (pulls[0] + pulls[1]) / max(labels.shape[1], 1)


def same_targets(labels: Tensor) -> Tensor:
    """Return the (n,L,L) weights of ICL, within each document: 1/|P(c)| if l is in P(c) = {l ≠ c: y_l = y_c}."""
    return _shares((labels[:, :, None] == labels[:, None, :]).float())


def jaccard_denominator(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the (N,) losses of JSCL as its released code computes them, from (N,N) logits z and (N,L) labels.

    −1/(N−1) Σ_{j≠i} ( z_ij − log( Σ_{k≠i} J_ik exp(z_ik) + 10⁻²⁰ ) )
    Every other document is a positive, and label similarity increases its weight in the denominator. If i shares no
    label with any other, the denominator is 10⁻²⁰: the loss is about −46 minus the mean of z, so i is attracted to all
    others. The code takes the logarithm of 0 for a document without labels; here it is treated as such a row.
    """
    logits = _at_least_float32(logits)
    itself = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    weights = jaccard(labels).to(logits.dtype).masked_fill(itself, 0)
    terms = torch.where(weights > 0, logits + weights.clamp(min=1e-12).log(), -torch.inf)
    floor = torch.full_like(logits[:, :1], ALONE).log()
    denominator = torch.cat([terms, floor], 1).logsumexp(1)  # (N,)
    return (len(logits) > 1) * denominator - logits.masked_fill(itself, 0).sum(1) / max(len(logits) - 1, 1)


def distances(vectors: Tensor) -> Tensor:
    """Return the (N,N) Euclidean distances of (N,d) vectors; at least 0.001, where the root has a gradient."""
    vectors = _at_least_float32(vectors)
    squares = vectors.square().sum(1)
    return (squares[:, None] + squares - 2 * _product(vectors, vectors.T)).clamp(min=1e-6).sqrt()


def euclidean(cosine: Tensor, length: float) -> Tensor:
    """Return the distances d = r √(2 − 2 cos) of vectors of length r from their cosine similarities.

    Rounding can push a cosine to 1 or above, where the root has no gradient, so a distance is at least r/1000.
    """
    return length * (2 - 2 * _at_least_float32(cosine)).clamp(min=1e-6).sqrt()


def _common(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (N,N) numbers of shared labels and the (N,) numbers of labels."""
    labels = _at_least_float32(labels)
    return _product(labels, labels.T), labels.sum(1)


def _product(a: Tensor, b: Tensor) -> Tensor:
    with torch.autocast(a.device.type, enabled=False):  # bfloat16 cannot hold label counts above 256
        return a @ b


def _shares(weights: Tensor) -> Tensor:
    """Divide each row of (…,N,N) weights by its sum, without the diagonal; rows of zeros stay zero."""
    itself = torch.eye(weights.shape[-1], dtype=torch.bool, device=weights.device)
    weights = weights.masked_fill(itself, 0)
    total = weights.sum(-1, keepdim=True)
    return weights / total.where(total > 0, 1)


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))

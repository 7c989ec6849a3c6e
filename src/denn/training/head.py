"""Initialise the linear head: a few epochs on fixed embeddings."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RATE = 0.01  # Adam's learning rate; input columns are scaled to unit size
BATCH = 256
REJECTED = 3.0  # weight of a label that a person rejected, relative to one that is merely absent
FLOPS = 2e10  # per second


def epoch_seconds(head: nn.Linear, documents: int) -> float:
    """Estimate how long an epoch takes on two slow cores."""
    return 6 * documents * head.weight.numel() / FLOPS


def start_head(
    head: nn.Linear,
    embeddings: Tensor,
    labels: Tensor,
    epochs: int,
    seed: int,
    carried: int = 0,
    rejected: Tensor | None = None,
    report: Callable[[int], None] | None = None,
) -> None:
    """Fit W and b of sigmoid(W h + b) to (n,d) embeddings and (n,L) bool labels by binary cross-entropy.

    The bias starts at the log-odds of each label, so that its rarity need not be learnt; the first `carried` labels
    keep what they learnt before. `rejected` marks (n,L) labels that count more; `report` is called with the number of
    epochs done.
    """
    device = head.weight.device
    share = labels.float().mean(0).clamp(0.5 / len(labels), 1 - 0.5 / len(labels))
    with torch.no_grad():
        head.bias[carried:] = torch.logit(share)[carried:]
    if not epochs:
        return
    size = embeddings.norm(dim=1).mean() / embeddings.shape[1] ** 0.5  # a typical entry of h
    optimiser = torch.optim.Adam(
        [{"params": [head.weight], "lr": RATE / float(size)}, {"params": [head.bias], "lr": RATE}], fused=True
    )
    embeddings = embeddings.to(device)
    total = epochs * -(-len(labels) // BATCH)
    decay = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / total)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        for rows in torch.split(torch.randperm(len(labels), generator=generator).to(device), BATCH):
            weight = None if rejected is None else 1 + (REJECTED - 1) * rejected[rows].float()
            value = F.binary_cross_entropy_with_logits(head(embeddings[rows]), labels[rows].float(), weight)
            optimiser.zero_grad(set_to_none=True)
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            decay.step()
        if report:
            report(epoch + 1)

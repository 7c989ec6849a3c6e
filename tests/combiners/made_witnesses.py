"""Validation texts with witnesses that score the truth plus noise."""

import torch

from denn.prediction_types import Context


def made(documents=200, labels=12, witnesses=("classifier", "neighbours", "words"), noise=1.0, seed=0):
    """Return the scores of witnesses, gold labels and the context; every witness has its own noise."""
    draw = torch.Generator().manual_seed(seed)
    share = torch.linspace(0.02, 0.4, labels)
    gold = torch.rand(documents, labels, generator=draw) < share
    parts = {
        name: torch.sigmoid(4 * gold.float() - 3 + noise * torch.randn(gold.shape, generator=draw))
        for name in witnesses
    }
    similarity = torch.rand(documents, 6, generator=draw).sort(descending=True).values
    return parts, gold, Context((1000 * share).long(), similarity if "neighbours" in witnesses else None)

"""Initialising the head lowers the cross-entropy on fixed embeddings."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from denn.training.head import start_head


def sample(scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    embeddings = scale * torch.randn(300, 8, generator=generator)
    labels = embeddings @ torch.randn(8, 4, generator=generator) > 2 * scale
    labels[:, 3] = False  # a label that only validation has
    return embeddings, labels


def new_head() -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(8, 4)


def cross_entropy(head: nn.Linear, embeddings: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return float(F.binary_cross_entropy_with_logits(head(embeddings), labels.float()))


def test_no_epochs_set_the_bias_to_the_log_odds():
    embeddings, labels = sample()
    head = new_head()
    weight = head.weight.detach().clone()
    start_head(head, embeddings, labels, epochs=0, seed=0)
    shares = [*labels.float().mean(0)[:3].tolist(), 0.5 / 300]
    assert torch.sigmoid(head.bias).tolist() == pytest.approx(shares)
    assert torch.equal(head.weight, weight)


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_epochs_lower_the_cross_entropy_whatever_the_size_of_the_embeddings(scale):
    embeddings, labels = sample(scale)
    heads = [new_head() for _ in range(3)]
    for head, epochs in zip(heads, (0, 5, 30), strict=True):
        with torch.no_grad():
            head.weight /= scale
        start_head(head, embeddings, labels, epochs=epochs, seed=0)
    losses = [cross_entropy(head, embeddings, labels) for head in heads]
    assert losses[0] > losses[1] > losses[2]
    assert losses[2] < 0.8 * losses[0]


def test_the_seed_decides_the_start():
    embeddings, labels = sample()
    heads = [new_head() for _ in range(3)]
    for head, seed in zip(heads, (1, 1, 2), strict=True):
        start_head(head, embeddings, labels, epochs=2, seed=seed)
    assert torch.equal(heads[0].weight, heads[1].weight)
    assert not torch.equal(heads[0].weight, heads[2].weight)


def test_a_rejected_label_counts_more_than_one_that_is_not_given():
    """Half of the documents of one kind have a label; for the others it is unknown, or rejected."""
    embeddings, labels = torch.ones(40, 8), torch.zeros(40, 1, dtype=torch.bool)
    labels[:20] = True
    shares = []
    for rejected in (None, ~labels):
        head = nn.Linear(8, 1)
        nn.init.zeros_(head.weight)
        start_head(head, embeddings, labels, epochs=200, seed=0, rejected=rejected)
        shares.append(float(torch.sigmoid(head(embeddings[:1]).detach())))
    assert shares[0] == pytest.approx(0.5, abs=0.02)
    assert shares[1] == pytest.approx(20 / (20 + 3 * 20), abs=0.02)

"""Loss and gradients of a batch; recording is tested if there is a CUDA device."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from denn.training.gradients import Gradients

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = (X @ torch.randn(6, 3, generator=torch.Generator().manual_seed(1)) > 0).float()


def made(device="cpu", recorded=False):
    torch.manual_seed(2)
    module = nn.Linear(6, 3).to(device)
    frozen = nn.Parameter(torch.ones(2, device=device), requires_grad=False)

    def prepare(rows):
        return X[rows].to(device), Y[rows].to(device)

    def compute(x, y):
        return F.binary_cross_entropy_with_logits(module(x), y)

    return module, Gradients([*module.parameters(), frozen], prepare, compute, recorded)


def expected(module, rows):
    loss = F.binary_cross_entropy_with_logits(
        module(X[rows].to(module.weight.device)), Y[rows].to(module.weight.device)
    )
    return loss, torch.autograd.grad(loss, list(module.parameters()))


def test_the_gradients_are_those_of_this_batch_alone():
    module, gradients = made()
    for rows in (torch.arange(8), torch.arange(8, 20)):
        loss, wanted = expected(module, rows)
        found = gradients(rows)
        assert not found.requires_grad
        torch.testing.assert_close(found, loss.detach())
        for parameter, gradient in zip(module.parameters(), wanted, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_recorded_step_gives_what_the_step_itself_gives():
    module, gradients = made("cuda", recorded=True)
    sizes = [8, 8, 8, 12, 12, 8, 12]  # each shape at once, recorded, replayed
    for number, size in enumerate(sizes):
        rows = (torch.arange(size) + 3 * number) % len(X)
        loss, wanted = expected(module, rows)
        torch.testing.assert_close(gradients(rows), loss.detach())
        for parameter, gradient in zip(module.parameters(), wanted, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
        with torch.no_grad():  # a replay reads the current weights
            module.weight.add_(0.1)

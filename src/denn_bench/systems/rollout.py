"""Rollouts of a decoder, for methods that learn from their own sequences."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from denn_bench.core.beam import State, Step


def write(
    step: Step, state: State, *, limit: int, start: int, end: int, greedy: bool = False, first: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Generate at most `limit` tokens per row of a state: (n,S) tokens, only ends after an end, and (n,S,V) logits.

    Each token is sampled from the softmax of the step's logits, or is the most likely one. Labels emitted before cannot
    be chosen; the end always can. The logits are returned unchanged, and the choice passes no gradient. Samples use
    the generator of the device. With (n,L) bool `first`, a row chooses among these labels as long as one is left.
    """
    last = torch.full((len(state[0]),), start, device=state[0].device)
    finished = torch.zeros_like(last, dtype=torch.bool)
    used: Tensor | None = None
    tokens: list[Tensor] = []
    found: list[Tensor] = []
    for _ in range(limit):
        logits, state = step(last, state)
        if used is None:
            used = torch.zeros_like(logits, dtype=torch.bool)
        masked = logits.detach().masked_fill(used, -torch.inf)
        if first is not None:
            left = F.pad(first, (0, 1)) & ~used  # (n,L+1)
            masked = masked.masked_fill(~left & left.any(1, keepdim=True), -torch.inf)
        # argmax of z − log(exponential noise) is a sample from softmax(z), and does not fail on a GPU if z is NaN
        noise = 0.0 if greedy else torch.empty_like(masked).exponential_().log()
        last = torch.where(finished, end, (masked - noise).argmax(1))
        used = used.scatter(1, last[:, None], True)
        used[:, end] = False
        finished = finished | (last == end)
        tokens.append(last)
        found.append(logits)
        if bool(finished.all()):
            break
    return torch.stack(tokens, 1), torch.stack(found, 1)

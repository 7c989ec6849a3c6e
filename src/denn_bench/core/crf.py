"""Linear-chain conditional random fields: sums over all sequences of tags, and the best of them.

A path y_1 … y_C of S tags has the score

    s(y) = b[y_1] + Σ_i e_i[y_i] + Σ_i t[y_i, y_{i+1}] + f[y_C]

with emissions e (n,C,S), transitions t (S,S), start scores b and end scores f (S,), and P(y) = exp(s(y)) / Z.
Every sequence has all C positions; C is at least 1.
"""

import torch
from torch import Tensor


def path_score(emissions: Tensor, tags: Tensor, transitions: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Return s(y) of one path for each sequence: (n,C,S), (n,C) integers → (n,)."""
    taken = (tags[:, :, None] == torch.arange(len(start), device=tags.device)).to(emissions.dtype)  # (n,C,S) 0/1
    steps = (taken[:, :-1] @ transitions * taken[:, 1:]).sum((1, 2))  # 0 if C = 1
    return (emissions * taken).sum((1, 2)) + steps + taken[:, 0] @ start + taken[:, -1] @ end


def log_partition(emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Return log Z, the log of the sum of exp(s(y)) over all S^C paths, for each sequence: (n,).

    Steps between adjacent positions are S × S matrices; pairs of them are multiplied until one is left. This takes
    log₂ C sequential operations instead of C.
    """
    steps = transitions + emissions[:, 1:, None, :]  # (n,C−1,S,S)
    while steps.shape[1] > 1:
        even = steps.shape[1] // 2 * 2
        joined = torch.logsumexp(steps[:, 0:even:2, :, :, None] + steps[:, 1:even:2, None], 3)
        steps = torch.cat([joined, steps[:, even:]], 1)
    last = start + emissions[:, 0]
    if steps.shape[1]:
        last = torch.logsumexp(last[:, :, None] + steps[:, 0], 1)
    return torch.logsumexp(last + end, 1)


def marginals(emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Return P(y_i = s) for every position and tag: (n,C,S); each position sums to 1."""
    before = _forward(emissions, transitions, start)
    after = [end.expand_as(before[0])]  # log-sums over what follows a tag, from the last position backwards
    for i in range(emissions.shape[1] - 1, 0, -1):
        after.append(torch.logsumexp(transitions + (emissions[:, i] + after[-1])[:, None, :], 2))
    return torch.softmax(torch.stack(before, 1) + torch.stack(after[::-1], 1), 2)


def viterbi(emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Return the path with the highest score for each sequence: (n,C) integers."""
    best, sources = start + emissions[:, 0], []
    for i in range(1, emissions.shape[1]):
        best, source = (best[:, :, None] + transitions).max(1)  # over the previous tag
        best = best + emissions[:, i]
        sources.append(source)
    path = [(best + end).argmax(1)]
    for source in reversed(sources):
        path.append(source.gather(1, path[-1][:, None])[:, 0])
    return torch.stack(path[::-1], 1)


def _forward(emissions: Tensor, transitions: Tensor, start: Tensor) -> list[Tensor]:
    """Return for every position the (n,S) log-sums over all paths that end there in each tag."""
    sums = [start + emissions[:, 0]]
    for i in range(1, emissions.shape[1]):
        sums.append(torch.logsumexp(sums[-1][:, :, None] + transitions, 1) + emissions[:, i])
    return sums

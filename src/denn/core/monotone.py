"""Scores that never fall when a witness's score rises: monotone shapes, statistics of other labels, and a fit."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

STEPS = 100
PRECISION = 1e-7  # relative change of the objective at which fitting ends
NARROWEST = 0.01  # width of a ramp, because equal knots would make a step


def ramps(values: Tensor, knots: Tensor) -> Tensor:
    """Return (...,K) ramps of (...) values on K + 1 ascending knots: the m-th rises from 0 at knot m to 1 at m + 1.

    Every sum of ramps with weights ≥ 0 is a monotone piecewise-linear function.
    """
    widths = knots.diff().clamp(min=NARROWEST)
    return ((values[..., None] - knots[:-1]) / widths).clamp(0, 1)


def hats(values: Tensor, knots: Tensor) -> Tensor:
    """Return (...,K) weights of (...) values on K ascending, distinct knots: linear in between, with sum 1."""
    if len(knots) == 1:
        return torch.ones_like(values)[..., None]
    rising = F.pad(ramps(values, knots), (1, 1), value=0.0)  # (...,K+1)
    rising[..., 0] = 1
    return rising[..., :-1] - rising[..., 1:]


class OtherMaximum(NamedTuple):
    """The maximum of the other entries in the row of each entry of (n,L): the row's maximum, or the second for it."""

    largest: Tensor  # (n,1)
    column: Tensor  # (n,1), the column of the largest
    second: Tensor  # (n,1), the largest of the others; 0 if there are none

    def at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the (m,1) values of some entries."""
        return torch.where(self.column[rows] == columns[:, None], self.second[rows], self.largest[rows])


def other_maximum(values: Tensor) -> OtherMaximum:
    """Return the maximum of the other entries for every entry of (n,L) values ≥ 0, L > 0, with memory for n."""
    largest, column = values.max(1, keepdim=True)
    return OtherMaximum(largest, column, values.scatter(1, column, 0.0).amax(1, keepdim=True))


def quantiles(values: Tensor, at: Sequence[float]) -> Tensor:
    """Return the quantiles of (n,) values at these shares; zeros if there are no values."""
    ordered = values.sort().values if len(values) else values.new_zeros(1)
    return ordered[torch.tensor([round(share * (len(ordered) - 1)) for share in at], device=values.device)]


def fit_logistic(
    features: Tensor, target: Tensor, weight: Tensor, prior: Tensor, ridge: Tensor, positive: Tensor
) -> Tensor:
    """Return the (p,) float64 weights θ of a logistic regression, shrunk to a prior, with θ_j ≥ 0 where `positive`.

        min Σ_i w_i (log(1 + exp(x_i θ)) − y_i x_i θ) + ½ Σ_j r_j (θ_j − prior_j)²

    of (m,p) features, (m,) targets in [0,1] and weights, and (p,) ridges r > 0. The problem is convex. Projected Newton
    steps (Bertsekas 1982): weights at 0 with a positive gradient stay, the others take a Newton step cut off at 0.
    """
    lowest = torch.where(positive, 0.0, -torch.inf).double()
    theta: Tensor = prior.double().maximum(lowest)
    target, weight = target.double(), weight.double()
    prior, ridge = prior.double(), ridge.double()

    def value_of(weights: Tensor) -> tuple[float, Tensor]:
        logits = (features @ weights.to(features.dtype)).double()
        loss = (weight * (F.softplus(logits) - target * logits)).sum()
        return float(loss + (ridge * (weights - prior).square()).sum() / 2), logits

    value, logits = value_of(theta)
    for _ in range(STEPS):
        chance = torch.sigmoid(logits)
        gradient = (features.T @ (weight * (chance - target)).to(features.dtype)).double() + ridge * (theta - prior)
        curvature = (weight * chance * (1 - chance)).to(features.dtype)
        hessian = (features.T @ (features * curvature[:, None])).double() + torch.diag(ridge)
        free = ~((theta <= lowest) & (gradient > 0))
        step = torch.zeros_like(theta)
        step[free] = -torch.linalg.solve(hessian[free][:, free], gradient[free])
        before = value
        for halvings in range(30):
            tried = (theta + step / 2**halvings).maximum(lowest)
            value, logits = value_of(tried)
            if value <= before + 1e-4 * float(gradient @ (tried - theta)):
                break
        if value >= before:  # only rounding errors are left
            return theta
        theta = tried
        if before - value <= PRECISION * abs(before):
            return theta
    return theta


def fit_offsets(logits: Tensor, target: Tensor, weight: Tensor, group: Tensor, groups: int, ridge: float) -> Tensor:
    """Return (groups,) float64 offsets o that correct the logits of each group, shrunk to 0.

        min Σ_i w_i (log(1 + exp(z_i + o_g(i))) − y_i (z_i + o_g(i))) + ½ r Σ_g o_g²

    of (m,) logits z, targets in [0,1], weights and int64 groups; by Newton steps of at most 1.
    """
    offsets = torch.zeros(groups, dtype=torch.float64)
    logits, target, weight = logits.double(), target.double(), weight.double()
    for _ in range(STEPS):
        chance = torch.sigmoid(logits + offsets[group])
        slope = (-ridge * offsets).index_add_(0, group, weight * (target - chance))
        bend = torch.full_like(offsets, ridge).index_add_(0, group, weight * chance * (1 - chance))
        step = (slope / bend).clamp(-1, 1)
        offsets += step
        if not groups or float(step.abs().max()) < 1e-4:
            break
    return offsets

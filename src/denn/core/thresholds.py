"""Turn scores into decisions: thresholds tuned on validation data, and the rule that applies them."""

from collections.abc import Sequence

import torch
from torch import Tensor

# Trying every distinct score instead would fit the noise of the validation data.
GRID = tuple(step / 100 for step in range(5, 96))
PLAUSIBLE = 2.0  # factor by which the sum of probabilities may differ from the number of labels
HALFWAY, FOR_MACRO_F1 = 0.5, 0.75  # shares of the way from the best threshold for micro-F1 to a label's own


def tune_global(scores: Tensor, gold: Tensor, grid: Sequence[float] | None = None) -> float:
    """Return the threshold with the best micro-F1 on (n,L) scores.

    Ties go to the threshold nearest 0.5, then to the lower one.
    """
    grid = sorted(GRID if grid is None else grid)
    hits, predicted = counts_at(scores, gold, grid)
    return grid[int(_highest(_f1(hits.sum(0), predicted.sum(0), gold.sum()), grid))]


def tune_per_label(scores: Tensor, gold: Tensor, overall: float, share: float = HALFWAY) -> Tensor:
    """Return (L,) thresholds between the overall one and each label's own, at this share of the way.

    With (n,L) scores as probabilities p, the best expected F1 of a label is max_t 2 Σ_{p>t} p / (Σ_{p>t} 1 + Σ p), and
    the threshold that reaches it is half of that (Lipton et al., 2014). This does not need the label's gold documents,
    which are few for a rare label. Gold labels only show whether scores are probabilities at all: if they do not add up
    to about the number of labels, the thresholds are the overall one.
    """
    expected, given = float(scores.sum()), int(gold.sum())
    if not given or not 1 / PLAUSIBLE <= expected / given <= PLAUSIBLE:
        return scores.new_full(scores.shape[1:], overall)
    own = _f1(*counts_at(scores, scores, GRID), scores.sum(0)[:, None]).amax(1) / 2
    return torch.lerp(torch.full_like(own, overall), own.clamp(min=GRID[0]), share).to(scores.dtype)


def tune_new_label(scores: Tensor, gold: Tensor, fallback: float, shrinkage: float = 10.0) -> float:
    """Return the F1-best threshold on the (n,) scores of one label, shrunk towards the fallback.

    t = (s · t_label + c · fallback) / (s + c) with s the label's positives and c the shrinkage: the number of positives
    at which its own threshold and the fallback have the same weight.
    """
    positives = int(gold.sum())
    if not positives:
        return fallback
    own = tune_global(scores[:, None], gold[:, None])
    return own + (fallback - own) * shrinkage / (positives + shrinkage)


def decide(scores: Tensor, threshold: float | Tensor, min_labels: int = 0) -> Tensor:
    """Return bool (n,L): scores strictly above the threshold, one or (L,).

    If fewer than `min_labels` are, the nearest ones are added, ties by column, but never more than L.
    """
    chosen = scores > threshold
    if not min_labels:
        return chosen
    short = chosen.sum(1) < min_labels
    margin = scores[short].double() - threshold  # in float32, all small scores would be one threshold away
    nearest = margin.argsort(dim=1, descending=True, stable=True)[:, :min_labels]
    chosen[short] = chosen[short].scatter(1, nearest, True)
    return chosen


def counts_at(scores: Tensor, gold: Tensor, grid: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return (L,G) true positives and (L,G) predictions of every label at every threshold of the ascending grid.

    With probabilities instead of bool gold labels, the true positives are the expected ones.
    """
    width, cells = scores.shape[1], len(grid) + 1
    levels = torch.tensor(grid, dtype=scores.dtype, device=scores.device)
    rows, columns = (scores > levels[0]).nonzero(as_tuple=True)  # most scores exceed no threshold
    exceeded = torch.bucketize(scores[rows, columns], levels)  # how many thresholds
    cell = columns * cells + exceeded  # one histogram for each label

    def exceeding(weights: Tensor | None) -> Tensor:
        histogram = cell.bincount(weights, minlength=width * cells).view(width, cells)
        return histogram.flip(1).cumsum(1).flip(1)[:, 1:]

    return exceeding(gold[rows, columns].double()), exceeding(None)


def _f1(hits: Tensor, predicted: Tensor, support: Tensor) -> Tensor:
    """Return the F1 (...,G) of counts at G thresholds."""
    return 2 * hits.double() / (predicted + support).clamp(min=1)


def _highest(f1: Tensor, grid: Sequence[float]) -> Tensor:
    """Return the grid positions (...) of the best of (...,G) scores."""
    order = sorted(range(len(grid)), key=lambda position: (round(abs(grid[position] - 0.5), 9), grid[position]))
    preference = torch.tensor(order, device=f1.device)
    return preference[f1[..., preference].argmax(-1)]  # argmax takes the first of equal values

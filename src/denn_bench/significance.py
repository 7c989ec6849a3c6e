"""Significance of differences: paired bootstrap over documents, paired t-test over seeds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from denn.errors import DataError, MissingExtraError
from denn_bench.result import Result

Metric = Literal["micro_f1", "macro_f1"]
Pair = tuple[Tensor, Tensor, Tensor]  # the decisions of two systems and the gold labels, each (n,L) bool

METRICS: tuple[Metric, ...] = ("micro_f1", "macro_f1")
DRAWS = 2_000  # more draws move the ends of the interval by hundredths of a point
CHUNK = 2**21  # weights in memory at a time


@dataclass(frozen=True)
class Comparison:
    """The difference a − b on the unweighted documents, its 95 % interval, and the two-sided p of no difference."""

    difference: float
    low: float
    high: float
    p: float


class TTest(NamedTuple):
    """The mean difference a − b over pairs, Student's t and its two-sided p."""

    difference: float
    t: float
    p: float


def paired_bootstrap(
    a: Tensor, b: Tensor, gold: Tensor, metric: Metric, draws: int = DRAWS, seed: int = 0
) -> Comparison:
    """Compare two (n,L) bool decisions with many draws of random document weights, the same for both.

    This is the Bayesian bootstrap (Rubin, 1981): weights are exponential, so every document stays in every draw.
    Drawing with replacement leaves out a third of the documents, and with them rare labels, which macro-F1 then
    counts as 0: on EUR-LEX57K the whole interval of a difference was below the difference itself.
    """
    return pooled_bootstrap([(a, b, gold)], metric, draws, seed)


def pooled_bootstrap(pairs: Sequence[Pair], metric: Metric, draws: int = DRAWS, seed: int = 0) -> Comparison:
    """Compare the mean difference of several pairs of runs on the same documents; all pairs share each draw.

    Draws are shifted so that their mean is the difference on the unweighted documents: a label of few documents has a
    lower expected F1 under random weights, and EUR-LEX57K has thousands of such labels.
    """
    shape = pairs[0][2].shape
    if any(matrix.shape != shape for pair in pairs for matrix in pair):
        raise DataError("Got runs on different documents or labels, expected the same test split. Run them again.")
    if any(not torch.equal(gold, pairs[0][2]) for _, _, gold in pairs):
        raise DataError("Got runs with different gold labels, expected the same test split. Run them again.")
    if not len(pairs[0][2]):
        raise DataError("Got an empty test split, expected at least one document.")
    n = len(pairs[0][2])

    def difference(weights: Weights) -> Tensor:
        scores = [(_drawn(a, gold, metric, weights), _drawn(b, gold, metric, weights)) for a, b, gold in pairs]
        return torch.stack([first - second for first, second in scores]).mean(0)

    seen = difference(Weights(n, 1, None))
    drawn = difference(Weights(n, draws, seed))
    drawn = drawn - (drawn.mean() - seen)
    low, high = torch.quantile(drawn, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    rarer = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    return Comparison(float(seen), low, high, min(1.0, 2 * (rarer + 1) / (draws + 1)))


def paired_t(a: Sequence[float], b: Sequence[float]) -> TTest:
    """Test whether the mean difference of pairs is 0; without variance, t is ±∞, or 0 if all pairs are equal."""
    try:
        from scipy.special import stdtr
    except ImportError as error:
        raise MissingExtraError("The t-test", "scipy", "bench") from error
    if len(a) != len(b) or len(a) < 2:
        raise DataError(f"Got {len(a)} and {len(b)} values, expected at least 2 pairs. Run more seeds.")
    differences = torch.tensor(a, dtype=torch.float64) - torch.tensor(b, dtype=torch.float64)
    mean, error_of_mean = float(differences.mean()), float(differences.std()) / math.sqrt(len(a))
    if error_of_mean < 1e-12:
        return TTest(mean, 0.0, 1.0) if abs(mean) < 1e-12 else TTest(mean, math.copysign(math.inf, mean), 0.0)
    t = mean / error_of_mean
    return TTest(mean, t, 2 * float(stdtr(len(a) - 1, -abs(t))))


def common(a: Sequence[Result], b: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Return the pairs of runs with the same seed."""
    others = {result.seed: result for result in b}
    return [(result, others[result.seed]) for result in a if result.seed in others]


def decided(pairs: Sequence[tuple[Result, Result]], part_a: str, part_b: str) -> list[Pair]:
    """Return the decisions of pairs of runs, with the gold labels, which must be the same for both."""
    for first, second in pairs:
        names = [run.data["test"]["per_label"]["label"] for run in (first, second)]
        if names[0] != names[1] or not torch.equal(first.gold(), second.gold()):
            raise DataError(
                f"The results {first.name} and {second.name} have different documents or labels in their test split, "
                "expected the same. Run one of them again."
            )
    return [(first.decisions(part_a), second.decisions(part_b), first.gold()) for first, second in pairs]


def compare(a: Sequence[Result], b: Sequence[Result], part_a: str, part_b: str, draws: int = DRAWS) -> str:
    """Describe the difference of two systems in Markdown: per seed, pooled over seeds, and by a t-test over seeds."""
    pairs = common(a, b)
    if not pairs:
        raise DataError("The two systems have no common seed. Run both with at least one common seed.")
    first, second = pairs[0]
    decisions = decided(pairs, part_a, part_b)
    lines = [
        f"{first.recipe} ({part_a}) minus {second.recipe} ({part_b}) on {first.corpus}, points of F1 with the 95 % "
        f"interval of {draws:,} bootstrap draws over the test documents:",
        "",
        "| seed | micro-F1 | p | macro-F1 | p |",
        "|---|---|---|---|---|",
    ]
    rows = {str(one.seed): [pair] for (one, _), pair in zip(pairs, decisions, strict=True)}
    if len(pairs) > 1:
        rows["all"] = decisions
    for name, some in rows.items():
        cells = [cell for metric in METRICS for cell in described(pooled_bootstrap(some, metric, draws))]
        lines.append(f"| {' | '.join([name, *cells])} |")
    if len(pairs) > 1:
        lines.append(f"| t-test | {' | '.join(_t_cells(pairs, part_a, part_b))} |")
    paired = {one.name for pair in pairs for one in pair}
    if alone := [f"{one.recipe} {one.seed}" for one in (*a, *b) if one.name not in paired]:
        lines += ["", f"Not compared, because the other system has no run with the same seed: {', '.join(alone)}."]
    return "\n".join(lines)


def described(comparison: Comparison) -> tuple[str, str]:
    """Return a difference in points with its interval, and its p, as table cells."""
    low, high = (f"{100 * value:+.2f}" for value in (comparison.low, comparison.high))
    return f"{100 * comparison.difference:+.2f} [{low}, {high}]", probability(comparison.p)


def probability(p: float) -> str:
    """Format a p-value with three digits."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _t_cells(pairs: Sequence[tuple[Result, Result]], part_a: str, part_b: str) -> list[str]:
    cells = []
    for metric in METRICS:
        test = paired_t(
            [first.metric(part_a, "tuned", metric) for first, _ in pairs],
            [second.metric(part_b, "tuned", metric) for _, second in pairs],
        )
        cells += [f"{100 * test.difference:+.2f} (t = {test.t:.2f})", probability(test.p)]
    return cells


@dataclass(frozen=True)
class Weights:
    """Draws of random weights for n documents, exponential with mean 1, determined by the seed."""

    n: int
    draws: int
    seed: int | None  # None: all weights are 1

    def __iter__(self) -> Iterator[Tensor]:
        """Yield (some draws, n) float32."""
        yield from torch.split(_all_weights(self.n, self.draws, self.seed), max(1, CHUNK // self.n))


@lru_cache(maxsize=2)  # the random weights of the last corpus, and its ones
def _all_weights(n: int, draws: int, seed: int | None) -> Tensor:
    """Draw (draws,n) float32 weights, in the chunks in which they are used."""
    weights = torch.ones(draws, n)
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        for some in torch.split(weights, max(1, CHUNK // n)):
            some.exponential_(generator=generator)
    return weights


_scores: dict[tuple[str, str, int, Metric, Weights], Tensor] = {}  # tables compare the same decisions repeatedly


def _drawn(predicted: Tensor, gold: Tensor, metric: Metric, weights: Weights) -> Tensor:
    """Return the scores of decisions under all weights: float64 (draws,), computed once."""
    given, wanted = _cells(predicted), _cells(gold)
    key = (_digest(given), _digest(wanted), predicted.shape[1], metric, weights)
    if key not in _scores:
        scorer = _scorer(given, wanted, predicted.shape, metric)
        _scores[key] = torch.cat([scorer(some).double() for some in weights])
    return _scores[key]


def _cells(matrix: Tensor) -> Tensor:
    """Return the flat indices of the true cells of a bool (n,L) matrix, ascending; the matrix is sparse."""
    return torch.from_numpy(np.flatnonzero(matrix.numpy()))


def _digest(cells: Tensor) -> str:
    return hashlib.blake2b(cells.numpy().data, digest_size=16).hexdigest()


def _scorer(given: Tensor, wanted: Tensor, shape: Sequence[int], metric: Metric) -> Callable[[Tensor], Tensor]:
    """Return a function from (m,n) weights of documents to the (m,) scores of the weighted documents.

    F1 = 2 · hits / (predicted + gold)
    """
    n, labels = shape
    hits = torch.from_numpy(np.intersect1d(given.numpy(), wanted.numpy(), assume_unique=True))
    sizes = torch.cat([given, wanted])
    if metric == "micro_f1":
        counts = torch.stack([torch.bincount(cells // labels, minlength=n) for cells in (hits, sizes)], dim=1).double()
        return lambda weights: _f1(*(weights.double() @ counts).T)
    used = torch.unique(sizes % labels)  # a label that is neither gold nor predicted scores 0 in every draw
    sparse = [_by_label(cells, used, n, labels) for cells in (hits, sizes)]  # (used,n)

    def macro(weights: Tensor) -> Tensor:
        f1 = _f1(*(torch.sparse.mm(matrix, weights.T) for matrix in sparse))
        return f1.sum(0, dtype=torch.float64) / max(labels, 1)

    return macro


def _f1(hits: Tensor, sizes: Tensor) -> Tensor:
    """Divide weighted counts; 0 if there are none."""
    return torch.where(sizes > 0, 2 * hits / sizes, 0.0)


def _by_label(cells: Tensor, used: Tensor, n: int, labels: int) -> Tensor:
    """Count cells in a sparse matrix with a row for each used label and a column for each document."""
    places = torch.stack([torch.searchsorted(used, cells % labels), cells // labels])
    shape = (len(used), n)
    return torch.sparse_coo_tensor(places, torch.ones(len(cells)), shape, check_invariants=True).coalesce()

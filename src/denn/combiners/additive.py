"""The model behind `learnt`: a logistic regression on the witnesses' logits that is monotone in each of them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from denn.combiners import mean_known, rows_of
from denn.combiners.cells import (
    Linear,
    blocks_of,
    chosen_cells,
    highest,
    known_to_all,
    mean_of,
    rivals_of,
)
from denn.core.monotone import (
    NARROWEST,
    OtherMaximum,
    fit_logistic,
    fit_offsets,
    hats,
    other_maximum,
    quantiles,
    ramps,
)
from denn.errors import BundleError
from denn.prediction_types import Context, Parts
from denn.untrusted import REMEDY

LOWEST = 1e-5  # scores are clamped to this and to 1 minus this, so that logits are finite
RAMPS = 6  # linear pieces of each witness's shape
FREQUENCIES = (0.02, 0.2, 0.5, 0.98)  # quantiles of the gold labels' training frequencies, used as knots
RIDGE = 3.0  # shrinks weights towards those of the mean; the intercept is free
OFFSET_RIDGE = 50.0  # shrinks the offsets of labels towards 0; about this many gold labels balance it
BLOCK = 131_072  # cells combined at a time, to stay within the processor's cache
HIGHEST_MASS = 60.0  # limit for the logarithm of neighbours' relative mass, so that its exponential is finite
LOGIT_SCALE = 0.25  # scales logits to the size of the other features, for the ridge


@dataclass(frozen=True)
class Additive:
    """P(label) = sigmoid(o + b + θ₀ logit(mean) + Σ_w (shape_w(x_w) + slope_w · x_w)), with x_w a witness's logit.

    o is the label's own offset. b and the slopes depend on its training frequency and on its rival: the highest mean
    score of the other labels, by all witnesses but the neighbours. With neighbours, a term is added for the logit of
    their votes after adding the usual total of votes both for and against the label, so that distant neighbours count
    for less.

    Shapes are piecewise linear. All weights that involve the label's own scores are ≥ 0, and the rival does not depend
    on them, so raising a score never lowers the result. The rival does not depend on the neighbours either: adding a
    document to the datastore never lowers the scores of its own labels and never raises those of others. With little
    data, θ₀ is 1 and everything else is 0: the mean itself.
    """

    witnesses: tuple[str, ...]
    knots: tuple[tuple[float, ...], ...]  # knots of each witness's shape, in logits
    frequencies: tuple[float, ...]  # knots, log₂(1 + training documents)
    usual_mass: float | None  # logarithm of the neighbours' usual mass, see `_mass`; None without neighbours
    weights: tuple[float, ...]  # in the order of `_design`
    offsets: tuple[float, ...]  # one per label

    @classmethod
    def fit(cls, parts: Parts, gold: Tensor, context: Context, seed: int = 0, seen: Tensor | None = None) -> Self:
        """Fit to the (n,L) bool gold labels of texts, or of only the rows in `seen` if given."""
        seen = torch.arange(len(gold)) if seen is None else seen
        known, rivals = rivals_of(parts, gold, seen)
        shapes = _shape_knots(parts, gold, seen, known, rivals)
        mass = _usual_mass(context.rows(seen)) if "neighbours" in parts else None
        blank = cls(tuple(parts), shapes, _frequency_knots(gold[seen], context), mass, (), ())
        features, target, weight, label = [], [], [], []
        for block, rows, columns, weights in chosen_cells(known, rivals, gold, seen, seed):
            some, _ = known_to_all(rows_of(parts, block))
            features.append(blank._design(some, context.rows(block), rows, columns))
            target.append(gold[block][rows, columns])
            weight.append(weights)
            label.append(columns)
        prior, positive = blank._prior()
        ridge = torch.full_like(prior, RIDGE)
        ridge[0] = 0.01
        design, wanted, counted = torch.cat(features), torch.cat(target), torch.cat(weight)
        found = fit_logistic(design, wanted, counted, prior, ridge, positive)
        offsets = fit_offsets(design @ found.float(), wanted, counted, torch.cat(label), gold.shape[1], OFFSET_RIDGE)
        return replace(blank, weights=tuple(found.tolist()), offsets=tuple(offsets.tolist()))

    def combine(self, parts: Parts, context: Context) -> Tensor:
        """Return (n,L) probabilities; a label unknown to a witness gets the mean of the witnesses that know it."""
        parts = {name: parts[name] for name in self.witnesses}
        first = parts[self.witnesses[0]]
        final = torch.empty_like(first)
        if not first.numel():
            return final
        terms = self._terms_for(context)
        for block in blocks_of(first, BLOCK if first.device.type == "cpu" else first.numel()):
            some = rows_of(parts, block)
            known, unknown = known_to_all(some)
            chance = self._logits(known, context.rows(block), terms).sigmoid_()
            final[block] = chance if unknown is None else torch.where(unknown, mean_known(some), chance)
        return final

    def as_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads, as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Any, source: str) -> Self:
        """Create a model from the result of `as_dict`, which a stranger may have written."""
        try:
            mass = content["usual_mass"]
            self = cls(
                tuple(map(_name, content["witnesses"])),
                tuple(_numbers(knots) for knots in content["knots"]),
                _numbers(content["frequencies"]),
                None if mass is None else _numbers([mass])[0],
                _numbers(content["weights"]),
                _numbers(content["offsets"]),
            )
            self._check()
        except (KeyError, TypeError, ValueError, OverflowError) as reason:
            raise BundleError(f"{source} does not contain a usable combiner ({reason}). {REMEDY}") from reason
        return self

    def _check(self) -> None:
        """Raise a ValueError unless the numbers are consistent and the model is monotone."""
        if not self.witnesses or len(set(self.witnesses)) < len(self.witnesses):
            raise ValueError("witnesses must be distinct names")
        if [len(knots) for knots in self.knots] != [RAMPS + 1] * len(self.witnesses):
            raise ValueError(f"every witness must have {RAMPS + 1} knots")
        if any(sorted(knots) != list(knots) for knots in self.knots):
            raise ValueError("knots must be ascending")
        if len(self.frequencies) > len(FREQUENCIES):
            raise ValueError(f"expected at most {len(FREQUENCIES)} frequencies, not {len(self.frequencies)}")
        if ("neighbours" in self.witnesses) != (self.usual_mass is not None):
            raise ValueError("the mass of neighbours does not match the witnesses")
        if len(self.weights) < len(self.witnesses):  # checked before allocating memory for them
            raise ValueError(f"{len(self.weights)} weights are too few for {len(self.witnesses)} witnesses")
        if not self.frequencies or sorted(set(self.frequencies)) != list(self.frequencies):
            raise ValueError("frequencies must be ascending")
        prior, positive = self._prior()
        if len(self.weights) != len(prior):
            raise ValueError(f"expected {len(prior)} weights, not {len(self.weights)}")
        if any(weight < 0 for weight, bound in zip(self.weights, positive.tolist(), strict=True) if bound):
            raise ValueError("a weight is negative but must not be")

    @cached_property
    def _offsets(self) -> Tensor:
        return torch.tensor(self.offsets)

    @property
    def _rivals(self) -> int:
        """1, or 0 if there are only neighbours."""
        return int(set(self.witnesses) != {"neighbours"})

    def _prior(self) -> tuple[Tensor, Tensor]:
        """Return the weights that reproduce the mean, and which weights must be ≥ 0."""
        free = 1 + len(self.frequencies) + self._rivals  # offsets
        bound = 1 + len(self.witnesses) * (RAMPS + 1 + len(self.frequencies) + 2 * self._rivals)
        bound += self.usual_mass is not None
        prior = torch.zeros(free + bound, dtype=torch.float64)
        prior[free] = 1  # weight of the mean's logit
        return prior, torch.arange(free + bound) >= free

    def _design(self, parts: Parts, context: Context, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the (m,p) features of some cells; `_logits` computes their weighted sum."""
        mean = mean_of(parts)
        rival = self._rival(parts)
        rivals = torch.zeros(len(rows), 0) if rival is None else rival.at(rows, columns)
        contexts = torch.cat([self._hats(context)[columns], rivals], 1)
        features = [torch.ones(len(rows), 1), contexts, torch.logit(mean[rows, columns], LOWEST)[:, None]]
        for name, knots in zip(self.witnesses, self.knots, strict=True):
            own = torch.logit(parts[name][rows, columns], LOWEST)
            slope = LOGIT_SCALE * own[:, None]
            features += [ramps(own, torch.tensor(knots)), slope, slope * contexts, slope * (1 - rivals)]
        if self.usual_mass is not None:
            votes = parts["neighbours"][rows, columns][:, None]
            features.append(LOGIT_SCALE * self._cautious(votes, _mass(context)[rows]))
        return torch.cat(features, 1)

    @cached_property
    def _latest(self) -> list[tuple[Tensor, Terms]]:
        """The last label counts and their terms: a cache that halves the time for a single text."""
        return []

    def _terms_for(self, context: Context) -> Terms:
        for counts, terms in self._latest:
            if counts is context.label_counts:
                return terms
        terms = self._terms(context)
        self._latest[:] = [(context.label_counts, terms)]
        return terms

    def _terms(self, context: Context) -> Terms:
        """Group the weights by the features that they belong to."""
        by_frequency, count = self._hats(context), self._rivals
        left = torch.tensor(self.weights, device=by_frequency.device)

        def take(size: int) -> Tensor:
            nonlocal left
            taken, left = left[:size], left[size:]
            return taken

        base = Linear(take(1) + by_frequency @ take(len(self.frequencies)), float(take(count).sum()))
        base.by_label[: len(self.offsets)] += self._offsets[: len(base.by_label)].to(by_frequency.device)
        mean = float(take(1))
        shapes: dict[str, list[tuple[float, float, float]]] = {}
        slopes: dict[str, Linear] = {}
        for name, knots in zip(self.witnesses, self.knots, strict=True):
            shapes[name] = []
            for low, high, weight in zip(knots, knots[1:], take(RAMPS).tolist(), strict=False):
                rise = weight / max(high - low, NARROWEST)
                base.by_label.sub_(low * rise)
                shapes[name].append((low, max(high, low + NARROWEST), rise))
            by_label = take(1) + by_frequency @ take(len(self.frequencies))
            present, absent = take(count), take(count)
            slopes[name] = Linear(
                LOGIT_SCALE * (by_label + absent.sum()), LOGIT_SCALE * float((present - absent).sum())
            )
        return Terms(base, mean, shapes, slopes, LOGIT_SCALE * float(left.sum()))

    def _logits(self, parts: Parts, context: Context, terms: Terms) -> Tensor:
        """Return (n,L) logits: `_design @ weights + offsets`, computed with far fewer operations."""
        mean = mean_of(parts)
        rival = self._rival(parts)
        total = torch.logit(mean, LOWEST).mul_(terms.mean).add_(terms.base.spread(rival))
        for name in self.witnesses:
            own = torch.logit(parts[name], LOWEST)
            total.addcmul_(terms.slopes[name].spread(rival), own)
            for low, high, rise in terms.shapes[name]:
                if rise:
                    total.add_(own.clamp(low, high), alpha=rise)
        if terms.cautious:
            total.add_(self._cautious(parts["neighbours"], _mass(context)), alpha=terms.cautious)
        return total

    def _hats(self, context: Context) -> Tensor:
        """Return the (L,F) weights of the labels on the frequency knots."""
        counts = context.label_counts
        return hats(torch.log2(1.0 + counts.float()), torch.tensor(self.frequencies, device=counts.device))

    def _rival(self, parts: Parts) -> OtherMaximum | None:
        """Return the highest mean score of the other labels, by all witnesses but the neighbours."""
        others = {name: part for name, part in parts.items() if name != "neighbours"}
        return other_maximum(mean_of(others)) if others else None

    def _cautious(self, votes: Tensor, mass: Tensor) -> Tensor:
        """Return the logit of votes after adding the usual mass of neighbours to both sides."""
        assert self.usual_mass is not None
        relative = torch.exp((mass - self.usual_mass).clamp(max=HIGHEST_MASS))
        return torch.log((votes * relative + 1) / ((1 - votes) * relative + 1))


class Terms(NamedTuple):
    """The weights of a model, grouped by the features that they belong to."""

    base: Linear  # independent of the label's own scores
    mean: float  # weight of the mean's logit
    shapes: dict[str, list[tuple[float, float, float]]]  # witness → start, end and slope of its ramps
    slopes: dict[str, Linear]  # witness → the weight of its logit
    cautious: float  # weight of the logit of the votes with the usual mass added


def _mass(context: Context) -> Tensor:
    """Return the log of the sum of the weights of a text's neighbours, exp((similarity − 1) / τ₂): (n,1)."""
    if context.similarity is None:
        raise ValueError("the combiner was fitted with the neighbours' similarities and requires them")
    return torch.logsumexp((context.similarity - 1) / context.temperature, 1, keepdim=True)


def _usual_mass(context: Context) -> float:
    mass = _mass(context)
    return float(quantiles(mass[mass.isfinite()], [0.5]))


def _shape_knots(
    parts: Parts, gold: Tensor, seen: Tensor, known: Tensor, rivals: Tensor
) -> tuple[tuple[float, ...], ...]:
    """Place knots where a witness decides: at its logits of gold labels and of as many others with the highest mean."""
    shares = torch.linspace(0.02, 0.98, RAMPS + 1).tolist()
    rows, columns = (gold[seen] & known).nonzero(as_tuple=True)
    best = highest(rivals, len(rows))
    best = best[rivals.flatten()[best] >= 0]
    rows, columns = torch.cat([rows, best // rivals.shape[1]]), torch.cat([columns, best % rivals.shape[1]])
    found = (part[seen[rows], columns] for part in parts.values())
    return tuple(tuple(quantiles(torch.logit(scores, LOWEST), shares).tolist()) for scores in found)


def _frequency_knots(gold: Tensor, context: Context) -> tuple[float, ...]:
    of_each = torch.log2(1.0 + context.label_counts.float()).repeat_interleave(gold.sum(0))
    return tuple(sorted(set(quantiles(of_each, FREQUENCIES).tolist())))


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a name, not {value!r:.40}")
    return value


def _numbers(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or any(type(value) not in (int, float) for value in values):
        raise TypeError("expected a list of numbers")
    numbers = tuple(float(value) for value in values)
    if not all(math.isfinite(number) and abs(number) < 1e6 for number in numbers):
        raise ValueError("a number is not finite or far too large")
    return numbers

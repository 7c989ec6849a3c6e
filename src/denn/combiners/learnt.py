"""The learnt combiner: fitted on validation documents, and taken unless something simpler is clearly better."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal, Self, get_args

import torch
from torch import Tensor

from denn.combiners import mean_known, rows_of
from denn.combiners.additive import Additive
from denn.combiners.cells import mean_of
from denn.combiners.confidence import Confidence
from denn.core.calibration import calibration_error, log_loss
from denn.core.thresholds import GRID, counts_at, decide, tune_global
from denn.errors import BundleError, ConfigError
from denn.strict_json import dumps
from denn.types import Context, Parts
from denn.untrusted import REMEDY, read_object

Optimise = Literal["micro_f1", "macro_f1", "precision_at_k"]

FILE = "combiner.json"
FEWEST_DOCUMENTS, FEWEST_LABELS = 25, 50  # validation documents, and their gold labels, that can tell what is better
NOISE = 2.0  # standard errors by which something simpler must be better: choosing by less does more harm than good
NEEDED: Mapping[str, set[str]] = {"average": set(), "confidence": {"classifier", "neighbours"}}
GROUPS = 20  # of documents, for the standard error


class Learnt:
    """A monotone logistic combination of the witnesses (`Additive`), or what is better on validation."""

    held_out: Tensor | None = None

    def __init__(self, optimise: Optimise = "micro_f1", k: int = 5, folds: int = 5, seed: int = 0) -> None:
        if optimise not in get_args(Optimise):
            raise ConfigError(f"Got optimise = {optimise!r}, expected one of {', '.join(get_args(Optimise))}.")
        self.optimise, self.k, self.folds, self.seed = optimise, k, folds, seed
        self.chosen = "average"  # or "learnt", "confidence", the name of a witness
        self.model: Additive | None = None

    def fit(self, parts: Parts, gold: Tensor, context: Context) -> Mapping[str, object]:
        """Choose between a fitted combination, the mean, λ and each witness; all are judged on unseen documents."""
        simple = self._simple(parts, context)
        documents, labels = len(gold), int((gold & ~mean_of(parts).isnan()).sum())
        if documents < FEWEST_DOCUMENTS or labels < FEWEST_LABELS:
            self.chosen, self.model, self.held_out = "average", None, simple["average"]
            why = (
                f"{documents} validation documents with {labels} labels are too few to learn from: at least "
                f"{FEWEST_DOCUMENTS} and {FEWEST_LABELS} are needed."
            )
            return {"chosen": "average", "why": why, "documents": documents}
        fold = torch.randperm(documents, generator=torch.Generator().manual_seed(self.seed)) % self.folds
        candidates = {**simple, "learnt": self._cross_fitted(parts, gold, context, fold)}
        judged = {name: self._judge(scores, gold, fold) for name, scores in candidates.items()}
        scores = {name: float(found[0]) for name, found in judged.items()}
        self.chosen, best, ahead, error = choose(judged)
        self.model = Additive.fit(parts, gold, context, self.seed) if self.chosen == "learnt" else None
        self.held_out = candidates[self.chosen]
        compared = ("average", "learnt")
        return {
            "chosen": self.chosen,
            "why": f"On unseen validation documents the learnt combination is {100 * abs(ahead):.2f} points of "
            f"{self.optimise.replace('_', ' ')} {'worse' if ahead < 0 else 'better'} than the best simpler one, "
            f"{best}, with a standard error of {100 * error:.2f}.",
            "documents": documents,
            "optimise": self.optimise,
            "scores": {name: round(value, 5) for name, value in scores.items()},
            "calibration_error": {name: round(calibration_error(candidates[name], gold), 5) for name in compared},
            "log_loss": {name: round(log_loss(candidates[name], gold), 5) for name in compared},
        }

    @property
    def hears(self) -> Collection[str]:
        """The witnesses that it was fitted with, or those that it chose instead."""
        return self.model.witnesses if self.model else NEEDED.get(self.chosen, {self.chosen})

    def combine(self, parts: Parts, context: Context) -> Tensor:
        """Return the (n,L) final scores."""
        if lacking := sorted(set(self.hears) - parts.keys()):
            raise BundleError(
                f"The combiner needs the witnesses that it was fitted with; {', '.join(lacking)} is missing. {REMEDY}"
            )
        if self.model:
            return self.model.combine(parts, context)
        if self.chosen == "confidence":
            return Confidence().combine(parts, context)
        if self.chosen == "average":
            return mean_known(parts)
        return _alone(parts, self.chosen)

    def save(self, folder: Path) -> None:
        """Write `combiner.json`."""
        content = {"chosen": self.chosen, "model": self.model.as_dict() if self.model else None}
        (folder / FILE).write_text(dumps(content, "The combiner", BundleError, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote."""
        path, self = folder / FILE, cls()
        if not path.exists():  # nothing was learnt: there were no validation documents
            return self
        content = read_object(path, BundleError)
        chosen, model = content.get("chosen"), content.get("model")
        if not isinstance(chosen, str) or (chosen == "learnt") != (model is not None):
            raise BundleError(f"{path} does not say which combination to use. {REMEDY}")
        self.chosen = chosen
        self.model = None if model is None else Additive.from_dict(model, str(path))
        return self

    def _simple(self, parts: Parts, context: Context) -> dict[str, Tensor]:
        """Return the scores of everything that needs no fit."""
        found = {"average": mean_known(parts)}
        if NEEDED["confidence"] <= parts.keys():
            found["confidence"] = Confidence().combine(parts, context)
        return found | {name: _alone(parts, name) for name in parts}

    def _cross_fitted(self, parts: Parts, gold: Tensor, context: Context, fold: Tensor) -> Tensor:
        """Return (n,L) scores, each by a combination that was fitted without its document."""
        found = torch.empty(gold.shape)
        for number in range(self.folds):
            seen, unseen = (fold != number).nonzero()[:, 0], (fold == number).nonzero()[:, 0]
            model = Additive.fit(rows_of(parts, seen), gold[seen], context.rows(seen), self.seed)
            found[unseen] = model.combine(rows_of(parts, unseen), context.rows(unseen))
        return found

    def _judge(self, scores: Tensor, gold: Tensor, fold: Tensor) -> Tensor:
        """Return (1 + G,) float64 values of the metric: over all documents, and without each of G groups of them.

        The threshold of each fold is tuned on the other folds.
        """
        if self.optimise == "precision_at_k":
            best = scores.topk(min(self.k, scores.shape[1])).indices
            hits, sizes = gold.gather(1, best).sum(1, keepdim=True), torch.full((len(gold), 1), self.k)
        else:
            predicted = torch.empty_like(gold)
            for number in range(self.folds):
                unseen = fold == number
                predicted[unseen] = decide(scores[unseen], self._threshold(scores[~unseen], gold[~unseen]))
            hits, sizes = predicted & gold, predicted.char() + gold.char()
            if self.optimise == "micro_f1":
                hits, sizes = hits.sum(1, keepdim=True), sizes.sum(1, keepdim=True)
            hits = 2 * hits
        return (_without_each_group(hits) / _without_each_group(sizes).clamp(min=1)).mean(1)

    def _threshold(self, scores: Tensor, gold: Tensor) -> float:
        """Return the threshold with the best micro- or macro-F1."""
        if self.optimise == "micro_f1":
            return tune_global(scores, gold)
        hits, predicted = counts_at(scores, gold, GRID)
        f1 = 2 * hits.double() / (predicted + gold.sum(0)[:, None]).clamp(min=1)
        return GRID[int(f1.mean(0).argmax())]


def choose(judged: Mapping[str, Tensor]) -> tuple[str, str, float, float]:
    """Choose "learnt" unless something simpler is better beyond noise.

    `judged` has (1 + G,) values of each combination: over all documents, and without each of G groups of them. Return
    the choice, the best of the simpler ones, how far "learnt" is ahead of it, and the standard error of that by the
    jackknife.
    """
    simple = [name for name in judged if name != "learnt"]
    best = max(simple, key=lambda name: (float(judged[name][0]), name == "average"))
    lead = judged["learnt"] - judged[best]
    left_out = lead[1:]
    error = float(((left_out - left_out.mean()).square().mean() * (len(left_out) - 1)).sqrt())
    ahead = float(lead[0])
    return best if ahead < -NOISE * error else "learnt", best, ahead, error


def _without_each_group(counts: Tensor) -> Tensor:
    """Sum (n,c) counts over all documents, and over those outside each group: (1 + G,c) float64."""
    group = torch.arange(len(counts), device=counts.device) % GROUPS
    sums = torch.zeros(GROUPS, counts.shape[1], dtype=torch.float64).index_add_(0, group, counts.double())
    total = sums.sum(0, keepdim=True)
    return torch.cat([total, total - sums])


def _alone(parts: Parts, name: str) -> Tensor:
    """Return one witness's scores; of a label that it does not know the mean of those that know it."""
    own = parts[name]
    return torch.where(own.isnan(), mean_known(parts), own)

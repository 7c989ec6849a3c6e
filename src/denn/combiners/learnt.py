"""The learnt combiner: fitted on validation documents, and used unless something simpler is clearly better."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Self, get_args

import torch
from torch import Tensor

from denn.combiners import mean_known, rows_of
from denn.combiners.additive import Additive
from denn.combiners.confidence import Confidence
from denn.combiners.judging import (
    FOLDS,
    NOISE,
    RANKED,
    Optimise,
    decide_by_fold,
    f1_values,
    folds_of,
    lead_of,
    precision_values,
)
from denn.core.calibration import calibration_error, log_loss
from denn.errors import BundleError, ConfigError
from denn.prediction_types import Context, Parts
from denn.strict_json import dumps
from denn.untrusted import REMEDY, read_object
from denn.wording import metric_title

FILE = "combiner.json"
FEWEST_DOCUMENTS, FEWEST_LABELS = 25, 50  # validation documents, and their gold labels, needed to choose
NEEDED: Mapping[str, set[str]] = {"average": set(), "confidence": {"classifier", "neighbours"}}
TITLES = {"average": "the average", "confidence": "the combination by λ"}  # others are witnesses


class Learnt:
    """A monotone logistic combination of the witnesses (`Additive`), or whatever is better on validation."""

    held_out: Tensor | None = None

    def __init__(self, optimise: Optimise = "micro_f1", seed: int = 0, k: int = RANKED) -> None:
        if optimise not in get_args(Optimise):
            raise ConfigError(f"Got optimise = {optimise!r}, expected one of {', '.join(get_args(Optimise))}.")
        self.optimise, self.k, self.seed = optimise, k, seed
        self.chosen = "average"  # or "learnt", "confidence", the name of a witness
        self.model: Additive | None = None

    def fit(self, parts: Parts, gold: Tensor, context: Context) -> Mapping[str, object]:
        """Choose between a fitted combination, the mean, λ and each witness, all judged on unseen documents.

        Only one of their (n,L) matrices is in memory at a time, because large corpora leave little room for more.
        """
        documents, labels = len(gold), _known_labels(parts, gold)
        if documents < FEWEST_DOCUMENTS or labels < FEWEST_LABELS:
            self.chosen, self.model, self.held_out = "average", None, mean_known(parts)
            why = (
                f"{documents} held-out documents with {labels} labels are too few to learn from; at least "
                f"{FEWEST_DOCUMENTS} documents with {FEWEST_LABELS} labels are needed."
            )
            return {"chosen": "average", "why": why, "documents": documents}
        fold = folds_of(documents, self.seed)
        judged: dict[str, Tensor] = {}
        errors: dict[str, float] = {}
        losses: dict[str, float] = {}
        for name in ("average", *(["confidence"] if NEEDED["confidence"] <= parts.keys() else []), *parts, "learnt"):
            fitted = name == "learnt"
            scores = self._cross_fitted(parts, gold, context, fold) if fitted else _simple(name, parts, context)
            judged[name] = self._judge(scores, gold, fold)
            if name in ("average", "learnt"):
                errors[name] = round(calibration_error(scores, gold), 5)
                losses[name] = round(log_loss(scores, gold), 5)
        self.chosen, best, ahead, error = choose(judged)
        self.held_out = scores if self.chosen == "learnt" else _simple(self.chosen, parts, context)
        self.model = Additive.fit(parts, gold, context, self.seed) if self.chosen == "learnt" else None
        return {
            "chosen": self.chosen,
            "why": self._reason(best, ahead, error),
            "documents": documents,
            "optimise": self.optimise,
            "scores": {name: round(float(found[0]), 5) for name, found in judged.items()},
            "calibration_error": errors,
            "log_loss": losses,
        }

    def _reason(self, best: str, ahead: float, error: float) -> str:
        """Compare the learnt combination with the best simpler choice in one sentence."""
        metric = metric_title(self.optimise.replace("at_k", f"at_{self.k}"))
        higher, lower = "the learnt combination", TITLES.get(best, f"the witness {best!r}")
        if ahead < 0:
            higher, lower = lower, higher
        else:
            lower = f"the best simpler choice, {lower}"
        chance = ", which may be chance" if ahead < 0 and self.chosen == "learnt" else ""
        return (
            f"On held-out documents, {higher} scores {100 * abs(ahead):.2f} points of {metric} more than "
            f"{lower} (standard error {100 * error:.2f}){chance}."
        )

    @property
    def hears(self) -> Collection[str]:
        """The witnesses that it was fitted with, or those of the simpler choice."""
        return self.model.witnesses if self.model else NEEDED.get(self.chosen, {self.chosen})

    def combine(self, parts: Parts, context: Context) -> Tensor:
        """Return the (n,L) final scores."""
        if lacking := sorted(set(self.hears) - parts.keys()):
            raise BundleError(
                f"The combiner needs all witnesses that it was fitted with; missing: {', '.join(lacking)}. {REMEDY}"
            )
        return self.model.combine(parts, context) if self.model else _simple(self.chosen, parts, context)

    def save(self, folder: Path) -> None:
        """Write `combiner.json`."""
        content = {"chosen": self.chosen, "model": self.model.as_dict() if self.model else None}
        (folder / FILE).write_text(dumps(content, "The combiner", BundleError, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote."""
        path, self = folder / FILE, cls()
        if not path.exists():  # nothing was fitted, because there were no validation documents
            return self
        content = read_object(path, BundleError)
        chosen, model = content.get("chosen"), content.get("model")
        if not isinstance(chosen, str) or (chosen == "learnt") != (model is not None):
            raise BundleError(f"{path} does not say which combination to use. {REMEDY}")
        self.chosen = chosen
        self.model = None if model is None else Additive.from_dict(model, str(path))
        return self

    def _cross_fitted(self, parts: Parts, gold: Tensor, context: Context, fold: Tensor) -> Tensor:
        """Return (n,L) scores, each by a combination fitted without its document."""
        found = torch.empty(gold.shape)
        for number in range(FOLDS):
            seen, unseen = (fold != number).nonzero()[:, 0], (fold == number).nonzero()[:, 0]
            model = Additive.fit(parts, gold, context, self.seed, seen)
            found[unseen] = model.combine(rows_of(parts, unseen), context.rows(unseen))
        return found

    def _judge(self, scores: Tensor, gold: Tensor, fold: Tensor) -> Tensor:
        """Return (1 + G,) float64 values of the metric: over all documents, and without each of G groups.

        The threshold of each fold is tuned on the other folds.
        """
        if self.optimise == "precision_at_k":
            return precision_values(scores, gold, self.k)
        predicted = decide_by_fold(scores, gold, fold, self.optimise)
        return f1_values(predicted, gold, macro=self.optimise == "macro_f1")


def choose(judged: Mapping[str, Tensor]) -> tuple[str, str, float, float]:
    """Choose "learnt" unless something simpler is better beyond noise.

    `judged` has (1 + G,) values of each combination: over all documents, and without each of G groups. Return the
    choice, the best simpler one, how far "learnt" is ahead of it, and the jackknife standard error of that.
    """
    simple = [name for name in judged if name != "learnt"]
    best = max(simple, key=lambda name: (float(judged[name][0]), name == "average"))
    ahead, error = lead_of(judged["learnt"], judged[best])
    return best if ahead < -NOISE * error else "learnt", best, ahead, error


def _simple(name: str, parts: Parts, context: Context) -> Tensor:
    """Return the (n,L) scores of the mean, of λ or of one witness, none of which needs fitting."""
    if name == "average":
        return mean_known(parts)
    if name == "confidence":
        return Confidence().combine(parts, context)
    own = parts[name]
    unknown = own.isnan()
    return torch.where(unknown, mean_known(parts), own) if bool(unknown.any()) else own


def _known_labels(parts: Parts, gold: Tensor) -> int:
    """Count the gold labels that every witness knows."""
    rows, columns = gold.nonzero(as_tuple=True)
    known = torch.ones_like(rows, dtype=torch.bool)
    for part in parts.values():
        known &= ~part[rows, columns].isnan()
    return int(known.sum())

"""The card of a model, bundle.json: its fields, and whether they fit together."""

from __future__ import annotations

from datetime import datetime
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from denn.strict_json import not_finite
from denn.untrusted import first_line
from denn.wording import counted

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Thresholds(BaseModel):
    """Decision thresholds of one score, tuned on validation."""

    model_config = ConfigDict(frozen=True)

    overall: Share = 0.5  # the best one for micro-F1; older models may have tuned it for macro-F1
    per_label: tuple[Share, ...]  # one for each label of labels.txt
    decides: Literal["tuned", "per_label"] = "tuned"  # tuned: the overall one

    @property
    def fallback(self) -> float:
        """The threshold of a label that none was tuned for: a usual one."""
        return median(self.per_label) if self.decides == "per_label" and self.per_label else self.overall

    @property
    def sentence(self) -> str:
        """How labels are decided, as the end of a sentence about scores."""
        if self.decides == "tuned":
            return f"at the tuned threshold {self.overall:.2f}"
        return "at a tuned threshold for each label"


class Trained(BaseModel):
    """The corpus that a model was trained on."""

    model_config = ConfigDict(frozen=True)

    name: str
    train: NonNegativeInt  # documents
    valid: NonNegativeInt
    label_counts: tuple[Annotated[int, Field(ge=0, lt=2**53)], ...]  # training documents of each label of labels.txt


class Card(BaseModel):
    """The content of bundle.json."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1, 2, 3, 4] = 4
    method: str
    parameters: dict[str, Any]
    corpus: dict[str, Any]
    thresholds: dict[str, Thresholds]  # "final" and each part of the score
    metrics: dict[str, Any]  # on the documents of `judged_on`
    training: dict[str, Any]
    digests: dict[str, str]  # sha256 of every file except the datastore, which keeps changing
    versions: dict[str, str]
    created: str  # ISO 8601
    learnt: Annotated[str, Field(pattern=r"^(learnt-[1-9][0-9]{0,8})?$")] = ""  # folder of the last refit
    validation: Annotated[str, Field(pattern=r"^(validation(-[1-9][0-9]{0,8})?)?$")] = ""  # folder of kept documents
    refitted: dict[str, Any] | None = None  # the last refit: time, documents, labels, scores

    @property
    def judged_on(self) -> str:
        """The documents behind the metrics and thresholds, for a sentence."""
        fitted = self.training.get("cross_fitted")
        if type(fitted) is not int or fitted <= 0:
            return counted(self.corpus["valid"], "validation document")
        return (
            f"{counted(self.corpus['valid'] + fitted, 'document')}, each scored by a model that has not learnt from it"
        )

    def flaw(self, labels: int) -> str | None:
        """Return what does not fit a model with this many labels, or None."""
        try:
            trained = Trained.model_validate(self.corpus)
            datetime.fromisoformat(self.created)
        except ValueError as error:  # includes pydantic's
            return f"its corpus or date is invalid ({first_line(error)})"
        if len(trained.label_counts) != labels:
            return f"it counts documents for {len(trained.label_counts)} labels, but labels.txt has {labels}"
        if number := not_finite({"metrics": self.metrics, "training": self.training}):
            return f"{number}, expected a finite number"
        if "final" not in self.thresholds:
            return "it has no thresholds for the final score"
        for name, thresholds in self.thresholds.items():
            if len(thresholds.per_label) != labels:
                return f"it has {len(thresholds.per_label)} thresholds for {name!r}, but labels.txt has {labels} labels"
        return None

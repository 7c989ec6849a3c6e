"""Which witnesses a model hears and how it combines them, in names and sentences for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, ValidationError

from denn.bundle import Card
from denn.errors import BundleError

TITLES = {"confidence": "λ (confidence)"}  # combiners and witnesses whose own names do not explain themselves


class Facts(BaseModel):
    """What a combiner wrote into the bundle about its fit; empty if it learnt nothing."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    chosen: str | None = None
    why: str = ""
    optimise: str = ""
    scores: Mapping[str, float] = {}  # combiner or witness → the metric `optimise` on unseen validation documents
    calibration_error: Mapping[str, float] = {}


@dataclass(frozen=True)
class Combination:
    """The witnesses of a model, what combines them, and why."""

    witnesses: tuple[str, ...]
    chosen: str  # a combiner, or the one witness that decides alone
    why: str  # one sentence
    facts: Facts = field(default_factory=Facts)

    @property
    def uses_lambda(self) -> bool:
        """Whether λ decides how much the neighbours count."""
        return self.chosen == "confidence"

    @property
    def fitted(self) -> bool:
        """Whether it learnt from the validation documents, whose scores are then too good to tune thresholds on."""
        return self.chosen not in {"average", "confidence", *self.witnesses}

    @property
    def needs_encoder(self) -> bool:
        """Whether a witness learns with the encoder."""
        return not {"classifier", "neighbours"}.isdisjoint(self.witnesses)

    @property
    def sentence(self) -> str:
        """Say who is heard, what was chosen and why."""
        alone = " alone" if self.chosen in self.witnesses else ""
        return f"Witnesses: {listed(self.witnesses)}. Combination: {title(self.chosen)}{alone}. {self.why}"


def combination_of(card: Card) -> Combination | None:
    """Return how a model combines its witnesses; None for methods that have no choice."""
    if "combination" not in card.parameters:
        return None
    asked = card.parameters["combination"]
    written = card.training.get("combination")
    try:
        facts = Facts.model_validate(written or {})
    except ValidationError as error:
        place = ".".join(map(str, ("training", "combination", *error.errors()[0]["loc"])))
        raise BundleError(f"bundle.json is damaged at {place}. Restore it from a copy.") from error
    if asked == "learnt" and facts.chosen is None:
        chosen, why = "average", "There were no validation documents to learn a combination from."
    else:
        chosen, why = facts.chosen or asked, facts.why or "It was set, not learnt."
    return Combination(tuple(card.parameters["witnesses"]), chosen, why, facts)


def title(name: str) -> str:
    """Return what people call a witness or a combiner."""
    return TITLES.get(name, name)


def system_name(card: Card) -> str:
    """Return what people call a model's method."""
    return {"denn": "DENN"}.get(card.method, card.method)


def system_names(systems: Iterable[str], card: Card) -> dict[str, str]:
    """Return what people call the systems of an evaluation, in their order: witnesses, combiners, the final score."""
    return {name: system_name(card) if name == "final" else title(name) for name in systems}


def listed(names: Iterable[str]) -> str:
    """Join names: a, b and c."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last

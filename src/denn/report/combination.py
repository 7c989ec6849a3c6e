"""The witnesses of a model and their combination, in display names and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, ValidationError

from denn.bundle_card import Card
from denn.errors import BundleError

TITLES = {"confidence": "λ (confidence)"}  # display names of combiners and witnesses with unclear names


class Facts(BaseModel):
    """What a combiner recorded in the bundle about its fit; empty if it was not fitted."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    chosen: str | None = None
    why: str = ""
    optimise: str = ""
    scores: Mapping[str, float] = {}  # combiner or witness → metric `optimise` on held-out documents
    calibration_error: Mapping[str, float] = {}


@dataclass(frozen=True)
class Combination:
    """The witnesses of a model, and how and why they are combined."""

    witnesses: tuple[str, ...]
    chosen: str  # a combiner, or a witness that decides alone
    why: str  # one sentence
    facts: Facts = field(default_factory=Facts)

    @property
    def uses_lambda(self) -> bool:
        """Whether λ sets the weight of the neighbours."""
        return self.chosen == "confidence"

    @property
    def fitted(self) -> bool:
        """Whether it was fitted to the validation documents, whose scores are then too good for tuning thresholds."""
        return self.chosen not in {"average", "confidence", *self.witnesses}

    @property
    def needs_encoder(self) -> bool:
        """Whether a witness uses the encoder."""
        return not {"classifier", "neighbours"}.isdisjoint(self.witnesses)

    @property
    def sentence(self) -> str:
        """Return a summary of the witnesses, the combination and the reason for it."""
        alone = " alone" if self.chosen in self.witnesses else ""
        return f"Witnesses: {listed(self.witnesses)}. Combination: {title(self.chosen)}{alone}. {self.why}"


def combination_of(card: Card) -> Combination | None:
    """Return how a model combines its witnesses, or None if its method has no such choice."""
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
        chosen, why = "average", "There were no validation documents for learning a combination."
    else:
        chosen, why = facts.chosen or asked, facts.why or "It was set, not learnt."
    return Combination(tuple(card.parameters["witnesses"]), chosen, why, facts)


def title(name: str) -> str:
    """Return the display name of a witness or combiner."""
    return TITLES.get(name, name)


def system_names(systems: Iterable[str], card: Card) -> dict[str, str]:
    """Return the display names of the systems of an evaluation, in order: witnesses, combiners, final score."""
    return {name: card.method if name == "final" else title(name) for name in systems}


def listed(names: Iterable[str]) -> str:
    """Join names: a, b and c."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last

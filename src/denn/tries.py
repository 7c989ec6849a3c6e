"""The tries of a training run: one, or first without and then with fine-tuning, keeping the better model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from denn import bundle
from denn.bundle_card import Card
from denn.clock import Clock
from denn.config import Recipe
from denn.errors import FineTuningError
from denn.methods.effort import FINE_TUNES
from denn.protocols import Progress
from denn.training import unfinished
from denn.training.budget import ENOUGH_STEPS, STEP_PASSES
from denn.training.kept import KeptStates
from denn.training.neural import device_of
from denn.untrusted import first_line


class Try(NamedTuple):
    """A complete model that is not in its final place yet."""

    folder: Path
    poor: str | None  # why it should not be used


# A recipe, the folder of the model to start from, and results for the next try → a model
Attempt = Callable[[Recipe, Path | None, KeptStates | None], Try]


def best_of_tries(
    attempt: Attempt, recipe: Recipe, start: Path | None, workdir: Path, shown: Progress, clock: Clock
) -> Try:
    """Train once; or, depending on the effort, first without and then with fine-tuning, and return the better model.

    The first model stays in the training folder, so that a resumed run continues with fine-tuning.
    """
    effort, facts = getattr(recipe.parameters, "effort", None), unfinished.first_facts(workdir)
    if effort == "quick" and facts is not None:
        return Try(workdir / unfinished.FIRST, facts["poor"])
    if effort not in FINE_TUNES:
        return attempt(recipe, start, None)
    kept = KeptStates()
    if facts is None:
        made = attempt(_with(recipe, effort="quick"), start, kept)
        card = bundle.read(made.folder)[0]
        facts = {"poor": made.poor, "seconds": clock.elapsed()}
        unfinished.keep_first(workdir, made.folder, facts)
    else:
        shown.note("the model without fine-tuning is complete; resuming with fine-tuning")
        clock.earlier = facts["seconds"]
        card = bundle.read(workdir / unfinished.FIRST)[0]
    first, second = Try(workdir / unfinished.FIRST, facts["poor"]), None
    if card.training["documents_used"] == card.training["documents_given"]:
        if _trains_in_part(recipe.parameters) or _steps(card, clock) < ENOUGH_STEPS:
            start = first.folder  # its head is already trained
        try:
            second = attempt(_with(recipe, witnesses=tuple(card.parameters["witnesses"])), start, kept)
        except FineTuningError as reason:
            why = first_line(reason).split(". ")[0]
            shown.note(f"{why}; keeping the model without fine-tuning")
    return _better(first, second, recipe, shown)


def _trains_in_part(parameters: Any) -> bool:
    """Return whether the lower layers stay frozen."""
    trained = parameters.trained_layers
    return trained is not None and (trained != "auto" or device_of(parameters.device).type == "cpu")


def _steps(card: Card, clock: Clock) -> float:
    """Estimate how many training steps fit in the remaining time, from how long the first model took per document."""
    p, once = card.parameters, max(card.training["training_seconds"], 1e-3)
    read = clock.left() / once * card.training["documents_used"]
    return float(read / (p["batch_size"] * (2 if p["alpha"] else 1) * STEP_PASSES))


def _better(first: Try, second: Try | None, recipe: Recipe, shown: Progress) -> Try:
    """Return the better model on validation, or the second one without validation, and record the comparison."""
    optimise = recipe.parameters.optimise
    metric = {"precision_at_k": "p_at_5"}.get(optimise, optimise)
    without = bundle.read(first.folder)[0].metrics.get(metric)
    with_it = None if second is None else bundle.read(second.folder)[0].metrics.get(metric)
    kept = first
    if second is not None and (without is None or with_it is None or with_it >= without):
        kept = second
    if without is not None and with_it is not None:
        shown.note(
            f"{metric} on validation documents: {100 * without:.1f} without fine-tuning, {100 * with_it:.1f} with it; "
            f"keeping the model {'without' if kept is first else 'with'} it"
        )
    compared = {"metric": metric, "quick": without, "fine_tuned": with_it, "kept_fine_tuned": kept is not first}
    bundle.add_facts(kept.folder, parameters={"effort": recipe.parameters.effort}, training={"effort": compared})
    return kept


def _with(recipe: Recipe, **parameters: object) -> Recipe:
    return replace(recipe, parameters=replace(recipe.parameters, **parameters))

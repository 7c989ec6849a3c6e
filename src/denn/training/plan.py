"""How to train, and where a run stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to train: flat, and the same for every method."""

    batch_size: PositiveInt = 32
    epochs: NonNegativeInt = 10
    optimiser: Literal["adam", "adamw"] = "adam"
    weight_decay: NonNegativeFloat = 0.0
    schedule: Literal["constant", "linear"] = "linear"
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.05  # share of the run, for the linear schedule
    clip: NonNegativeFloat = 0.0  # largest gradient norm; 0: no clipping
    evaluate_every: NonNegativeInt = 0  # steps between validations; 0: once an epoch
    patience: NonNegativeInt = 10  # validations without improvement before stopping; 0: never stop early
    time_budget: NonNegativeFloat | None = None  # seconds from the start of the command to the model on disk
    checkpoint_seconds: NonNegativeFloat = 60.0
    seed: int = 0


@dataclass
class State:
    """Where a run stands; with the weights and the optimiser this is all that a resume needs."""

    step: int = 0
    seconds: float = 0.0  # in the loop
    clock_seconds: float = 0.0  # since the start of the command, for the time budget
    validation_seconds: float = 0.0
    tokens: int = 0  # that went through the encoder in training
    best_score: float | None = None
    best_step: int = 0  # of the weights that are kept
    failures: int = 0  # validations since the score last rose
    owed: bool = False  # whether the next thing to do is a validation
    loss: float | None = None  # mean of the steps before the last look
    usual_loss: float | None = None  # running mean over looks
    high_looks: int = 0  # in a row, at which the loss was far above the usual
    low_scores: int = 0  # in a row, clearly below the highest
    highest: float = 0.0  # score at a tuned threshold, where that is known
    noise: float = 0.0  # largest standard error of a validation score
    best_spread: float = 0.0  # of the validation's scores at the best
    collapses: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)

"""Training parameters, and the state of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from denn.clock import read_budget

WARMUP = 0.05  # default share of a run whose learning rate decays
Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Training parameters: flat, and the same for every method."""

    batch_size: PositiveInt = 32
    epochs: NonNegativeInt = 10
    optimiser: Literal["adam", "adamw"] = "adam"
    weight_decay: NonNegativeFloat = 0.0
    epsilon: PositiveFloat = 1e-8  # of the optimiser: smaller gradients hardly move a weight
    schedule: Schedule = "linear"
    warmup: Annotated[float, Field(ge=0, lt=1)] | None = None  # share of the run; None: 0.05, 0 if constant
    clip: NonNegativeFloat = 0.0  # largest gradient norm; 0: no clipping
    evaluate_every: NonNegativeInt = 0  # steps between validations; 0: once per epoch
    patience: NonNegativeInt = 10  # validations without improvement before stopping; 0: never stop early
    # seconds, or a string such as "5m", from the start of the command to the model on disk
    time_budget: Annotated[NonNegativeFloat | None, BeforeValidator(read_budget)] = None
    checkpoint_seconds: NonNegativeFloat = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.warmup is None:  # so that a recipe records what was done
            object.__setattr__(self, "warmup", 0.0 if self.schedule == "constant" else WARMUP)


@dataclass
class State:
    """The state of a run: all that resuming needs, besides the weights and the optimiser."""

    step: int = 0
    seconds: float = 0.0  # in the loop
    clock_seconds: float = 0.0  # since the start of the command, for the time budget
    validation_seconds: float = 0.0
    tokens: int = 0  # processed by the encoder in training
    best_score: float | None = None
    best_step: int = 0  # step of the kept weights
    failures: int = 0  # validations since the score last rose
    owed: bool = False  # whether a validation is due next
    out_of_time: bool = False  # whether the time budget ended the run before its last step
    loss: float | None = None  # mean of the steps before the last check
    usual_loss: float | None = None  # running mean over checks
    high_looks: int = 0  # consecutive checks at which the loss was far above the usual
    low_scores: int = 0  # consecutive scores clearly below the highest
    highest: float = 0.0  # score at a tuned threshold, if known
    noise: float = 0.0  # largest standard error of a validation score
    best_spread: float = 0.0  # spread of the scores at the best validation
    collapses: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)

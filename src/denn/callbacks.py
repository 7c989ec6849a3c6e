"""Callbacks of a training run: for each validation, and for the finished model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from denn.errors import ConfigError
from denn.protocols import Progress

if TYPE_CHECKING:
    from denn.model import Model
    from denn.types import Stage

EVENTS = ("on_validation", "on_end")


@dataclass(frozen=True)
class Validation:
    """A validation during fine-tuning."""

    step: int  # optimiser steps so far
    epoch: float  # epochs so far
    seconds: float  # in the training loop, with those before a resume
    loss: float | None  # mean training loss of the last steps
    metrics: Mapping[str, float]  # on the validation documents: micro_f1 (at 0.5), tuned_micro_f1, …


class Watched:
    """Progress that forwards every call, and validations to callbacks."""

    def __init__(self, progress: Progress, callbacks: Sequence[object]) -> None:
        for callback in callbacks:
            if isinstance(callback, type) or not any(hasattr(callback, event) for event in EVENTS):
                raise ConfigError(f"Got the callback {callback!r}, expected an object with {' or '.join(EVENTS)}.")
        self.progress, self.callbacks = progress, callbacks

    def start(self, stage: Stage) -> None:
        """Forward a new stage."""
        self.progress.start(stage)

    def note(self, message: str) -> None:
        """Forward a line."""
        self.progress.note(message)

    def advance(self, done: int, **values: Any) -> None:
        """Forward progress; a validation among the values goes to the callbacks."""
        validation = values.pop("validation", None)
        self.progress.advance(done, **values)
        if validation is not None:
            self._tell("on_validation", Validation(**validation))

    def end(self, model: Model) -> None:
        """Tell the callbacks that the model is written."""
        self._tell("on_end", model)

    def _tell(self, event: str, what: object) -> None:
        for callback in self.callbacks:
            if listener := getattr(callback, event, None):
                listener(what)

"""Effort levels: what each one sets, which one suits a machine, and how long it takes."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from denn.clock import Clock
from denn.encoders.weights import is_installed
from denn.errors import ConfigError
from denn.methods import cross_fitting
from denn.methods.contrastive import DennParameters
from denn.methods.denn import combining_seconds
from denn.protocols import Progress
from denn.registry import METHODS, lookup
from denn.training.budget import FEWEST_STEPS, MARGIN, Work
from denn.training.head import epoch_seconds
from denn.training.neural import device_of
from denn.training.pace import seconds_a_token
from denn.types import Corpus, Stage

LARGE = "mpnet"  # the encoder of the effort `best`
FINE_TUNES = ("balanced", "best")
SAMPLED = 512  # documents for measuring the length of texts and the speed of the encoder
MEASURED = 1.0  # seconds of reading to measure the speed, even of a busy machine
WORTH_WAITING = 600.0  # seconds of fine-tuning on a CPU that `auto` accepts
FOR_MACHINE, FOR_FEW = ", which suits this machine", ", which suits so few documents"
WORDS_SECONDS = 7e-6  # per token, for the witness `words`, on two cores


def with_effort(
    method: str, parameters: Mapping[str, Any], progress: Progress, *, continues: bool = False
) -> dict[str, Any]:
    """Complete parameters with an effort level and its settings; explicit parameters win.

    The default level is `auto`, or none if the number of epochs is given. `continues` means that the encoder is that of
    another model.
    """
    known = {field.name: field.default for field in fields(lookup(METHODS, method, "method").Parameters)}
    if "effort" not in known:
        return dict(parameters)
    epochs = parameters.get("epochs")
    effort = parameters["effort"] if "effort" in parameters else "auto" if epochs is None else None
    if effort == "quick" and epochs not in (None, 0, known["epochs"]):
        raise ConfigError(
            f"Got effort = 'quick' and epochs = {epochs}, but quick does not train the encoder. Leave out epochs, or "
            "use balanced."
        )
    if effort in FINE_TUNES and epochs == 0:
        raise ConfigError(f"Got effort = {effort!r} and epochs = 0, expected at least 1 epoch. Use quick instead.")
    chosen = {**parameters, "effort": effort}
    if effort is not None:
        chosen.setdefault("trained_layers", "auto")
    if effort == "best" and "encoder" not in parameters and not continues:
        if is_installed(LARGE):
            chosen["encoder"] = LARGE
        else:
            progress.note(f"the encoder {LARGE} is not installed; using {known['encoder']}")
    return chosen


@dataclass(frozen=True)
class Estimate:
    """How long the stages of training take on this machine."""

    work: Work
    words: float  # seconds to learn the words
    loop: float  # seconds for training steps and validations

    @property
    def quick(self) -> float:
        """The seconds until a model without fine-tuning is complete."""
        w = self.work
        return self.words + 2 * w.load_seconds + MARGIN * w.embedding() + w.after_embedding()

    @property
    def fine_tuning(self) -> float:
        """The seconds for fine-tuning after that, until the model is written."""
        return MARGIN * self.loop + 2 * self.work.load_seconds + self.work.after_loop()

    def suits(self, clock: Clock, accelerated: bool) -> Literal["quick", "balanced"]:
        """Choose an effort level for the machine and the time budget."""
        if clock.budget < math.inf:
            left = clock.left() - self.quick - 2 * self.work.load_seconds
            return "balanced" if replace(self.work, head_epochs=0).steps(left) >= FEWEST_STEPS else "quick"
        return "balanced" if accelerated or self.fine_tuning <= WORTH_WAITING else "quick"


def choose_effort(
    parameters: DennParameters, corpus: Corpus, clock: Clock, progress: Progress, start: Path | None, resumed: bool
) -> DennParameters:
    """Measure the machine, choose an effort level if none is given, and report the plan and its duration.

    `start` is the folder of the model to continue from; `resumed` means that an interrupted run had begun to train, or
    had finished without fine-tuning.
    """
    if parameters.effort is None:
        return parameters
    needed = not {"classifier", "neighbours"}.isdisjoint(parameters.witnesses)
    progress.start(Stage("measuring the speed of this machine"))
    effort = asked = parameters.effort
    few = start is None and bool(corpus.valid) and len(corpus.train) + len(corpus.valid) <= cross_fitting.FEW
    why = FOR_MACHINE if asked == "auto" else ""
    if not needed or (asked == "auto" and parameters.epochs == 0):
        effort = "quick"
    elif asked == "auto" and few and not resumed:
        effort, why = "quick", FOR_FEW
    found = estimate(replace(parameters, effort=effort), corpus, start)
    if effort == "auto":
        effort = "balanced" if resumed else found.suits(clock, device_of(parameters.device).type == "cuda")
    progress.note(describe(found, effort, why, parameters, clock, needed))
    return replace(parameters, effort=effort)


def estimate(parameters: DennParameters, corpus: Corpus, start: Path | None) -> Estimate:
    """Load the encoder, read some documents, and estimate all durations from that."""
    p, begun = parameters, time.monotonic()
    encoder = p.load_encoder(start / "encoder") if start else p.new_encoder(corpus)
    encoder = encoder.to(device := device_of(p.device)).eval()
    p.freeze(encoder, device)
    load_seconds = time.monotonic() - begun
    count, valid = len(corpus.train), len(corpus.valid)
    some = [document.text for document in corpus.train[:: -(-count // SAMPLED)]]
    tokens = encoder.tokenize(some)
    mean = len(tokens.flat) / len(some)
    views = 2 if p.alpha else 1
    keeps = encoder.frozen_layers is not None and device.type == "cpu" and not p.alters_texts
    work = Work(
        train_tokens=int(mean * count),
        valid_tokens=int(mean * valid),
        validation_tokens=int(mean * valid),
        documents=count,
        step_tokens=mean * min(p.batch_size, count) * views,
        stores=True,
        head_epochs=p.head_start,
        head_epoch_seconds=epoch_seconds(nn.Linear(encoder.width, len(corpus.labels), device="meta"), count),
        seconds_a_token=seconds_a_token(encoder.encode, tokens, MEASURED),
        load_seconds=load_seconds,
        combining=combining_seconds(p, corpus),
        trained=encoder.trained_share,
        keeps=keeps,
        kept_tokens=int(mean * count) if keeps else 0,  # the quick model computes them before fine-tuning starts
    )
    if not p.head_start:
        work = replace(work, head_epochs=work.epochs_of_head(math.inf))
    validations = count / p.batch_size / p.evaluate_every if p.evaluate_every else 1.0  # per epoch
    epoch = count / min(p.batch_size, count) * work.step() + validations * work.reading() * work.tuning()
    words = WORDS_SECONDS * work.train_tokens if "words" in p.witnesses else 0.0
    return Estimate(work, words, work.keeping() + p.epochs * epoch)


def describe(
    found: Estimate, effort: str, why: str, parameters: DennParameters, clock: Clock, needed: bool = True
) -> str:
    """Describe what an effort level does with this corpus and how long it takes; `why` it was chosen, if it was."""
    documents = "1 document" if found.work.documents == 1 else f"{found.work.documents:,} documents"
    first = f"effort {effort}{why}: learn from {documents} without changing the encoder, about {about(found.quick)}"
    epochs = "1 epoch" if parameters.epochs == 1 else f"{parameters.epochs} epochs"
    tuning = f"about {about(found.fine_tuning)}"
    if effort != "quick":
        first += f"; then fine-tune it for at most {epochs}, {tuning}"
        if clock.budget < math.inf:
            first += f" or until the time budget of {about(clock.budget)} ends"
        return f"{first}; keep the model that is better on validation documents"
    if not needed or not parameters.epochs:
        return first
    return f"{first}; --effort balanced would also fine-tune it, {tuning} more or as long as --time-budget allows"


def about(seconds: float) -> str:
    """Format seconds in a convenient unit."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"

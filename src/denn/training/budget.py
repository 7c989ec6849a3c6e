"""Plan training within a time budget: estimate the duration of every stage from the speed of the encoder."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from denn.clock import Clock
from denn.errors import FineTuningError, TrainingError
from denn.wording import counted

STEP_PASSES = 3.5  # duration of a training step, in inference passes over its tokens
ENOUGH_STEPS = 500  # with fewer, the head should first train on embeddings of the pre-trained encoder
FEWEST_STEPS = 20  # with fewer after that, fine-tuning the encoder is pointless
MARGIN = 1.1  # factor by which estimates are increased
FEWEST_DOCUMENTS = 20
UNHURRIED = 1800.0  # seconds assumed without a time budget, if very many labels make the head slow
HEAD_EPOCHS = 30  # maximum, if the head trains first, or alone for lack of time
SECONDS_A_DOCUMENT = 3e-4  # time to store and index a document
LOADS = 1.0  # time for writing, checking and reading the model, relative to loading the encoder


@dataclass(frozen=True)
class Work:
    """The work to do, in tokens and documents, and the speed of the machine."""

    train_tokens: int
    valid_tokens: int  # for tuning the thresholds
    validation_tokens: int  # per validation
    documents: int
    step_tokens: float  # all views of a batch
    stores: bool  # whether all training documents are finally embedded for a datastore
    head_epochs: int  # before training, on embeddings of all training documents
    head_epoch_seconds: float
    seconds_a_token: float
    load_seconds: float
    combining: float = 0.0  # seconds for fitting a combiner on the validation documents
    trained: float = 1.0  # share of the encoder's layers that are trained
    keeps: bool = False  # whether the outputs of the frozen layers are computed once and kept
    kept_tokens: int = 0  # tokens that an earlier try ran through the frozen layers

    def embedding(self) -> float:
        """Return the seconds for embedding all training documents."""
        return self.seconds_a_token * self.train_tokens

    def reading(self) -> float:
        """Return the share of a pass for reading a document again."""
        return self.trained if self.keeps else 1.0

    def keeping(self) -> float:
        """Return the seconds for running the remaining documents through the frozen layers."""
        tokens = self.train_tokens + self.valid_tokens - self.kept_tokens
        return (1 - self.reading()) * self.seconds_a_token * tokens

    def step(self) -> float:
        """Return the seconds of a training step."""
        passes = STEP_PASSES * self.trained + self.reading() - self.trained
        return passes * self.seconds_a_token * self.step_tokens

    def tuning(self) -> float:
        """Return the seconds for scoring the validation documents to tune the thresholds."""
        return self.seconds_a_token * self.valid_tokens

    def head(self) -> float:
        """Return the seconds for training the head alone."""
        return self.head_epochs * self.head_epoch_seconds

    def writing(self) -> float:
        """Return the seconds for the files, after everything is embedded and scored."""
        return LOADS * self.load_seconds + (SECONDS_A_DOCUMENT * self.documents if self.stores else 0.0)

    def after_embedding(self) -> float:
        """Return the seconds for the head, the thresholds and the files, without fine-tuning."""
        return MARGIN * (self.head() + self.tuning() + self.combining + self.writing())

    def after_loop(self) -> float:
        """Return the seconds for a last validation, the datastore, the thresholds and the files."""
        embedding = self.reading() * self.embedding() if self.stores else 0.0
        validation = self.reading() * self.seconds_a_token * self.validation_tokens
        return MARGIN * (embedding + validation + self.tuning() + self.combining + self.writing())

    def steps(self, left: float) -> float:
        """Return how many training steps fit in the remaining seconds."""
        start = self.keeping() + (self.reading() * self.embedding() + self.head() if self.head_epochs else 0.0)
        step = MARGIN * self.step()
        return max(0.0, left - MARGIN * start - self.after_loop()) / step if step else math.inf

    def epochs_of_head(self, left: float) -> int:
        """Return how many epochs of the head alone fit in a tenth of the remaining seconds, at least one."""
        left = UNHURRIED if math.isinf(left) else left
        return max(1, int(min(HEAD_EPOCHS, left / 10 / max(self.head_epoch_seconds, 1e-9))))

    def share_embedded_once(self, left: float) -> float:
        """Return the share of all documents that can be embedded and scored once in the remaining seconds."""
        once = MARGIN * (self.embedding() + self.tuning() + self.head())
        return min(1.0, max(0.0, left - MARGIN * (self.combining + self.writing())) / once) if once else 1.0


@dataclass(frozen=True)
class Scope:
    """How much training fits in the time budget."""

    head_epochs: int = 0  # epochs of the head alone, before anything else
    frozen: bool = False  # the encoder is not trained
    share: float = 1.0  # share of the documents to read, if there is no time for all


def scope_of(work: Work, clock: Clock, can_freeze: bool) -> Scope:
    """Decide how to use the remaining time; raise a TrainingError if it is too short for anything."""
    left = clock.left()
    asked = Scope(head_epochs=work.head_epochs)
    if not can_freeze:
        if work.steps(left) < 1:
            raise _too_short(clock, work.after_loop(), "to train and write a model")
        return asked
    if work.steps(left) >= ENOUGH_STEPS:
        return asked
    work = replace(work, head_epochs=work.head_epochs or work.epochs_of_head(left))
    if work.steps(left) >= FEWEST_STEPS:
        return Scope(work.head_epochs)
    return head_alone(work, clock)


def head_alone(work: Work, clock: Clock) -> Scope:
    """Freeze the encoder and read as many documents as there is time for."""
    left = clock.left()
    work = replace(work, head_epochs=work.head_epochs or work.epochs_of_head(left))
    share = work.share_embedded_once(left)
    if share * work.documents < min(FEWEST_DOCUMENTS, work.documents):
        least = MARGIN * work.embedding() + work.after_embedding()
        raise _too_short(clock, least, f"to read {counted(work.documents, 'document')} and write a model")
    return Scope(work.head_epochs, frozen=True, share=share)


def to_fine_tune(work: Work, clock: Clock) -> Scope:
    """Train the encoder with a head that is already trained; raise a FineTuningError if time is too short."""
    if replace(work, head_epochs=0).steps(clock.left()) < FEWEST_STEPS:
        raise FineTuningError(
            f"The time budget of {clock.budget:.0f} s leaves too little time to fine-tune the encoder. Give more time."
        )
    return Scope()


def _too_short(clock: Clock, seconds: float, purpose: str) -> TrainingError:
    return TrainingError(
        f"The time budget of {clock.budget:.0f} s is too short: {clock.elapsed():.0f} s have passed, and it takes at "
        f"least {math.ceil(clock.elapsed() + seconds)} s {purpose}. Give more time, or use --method br, which takes "
        "only seconds."
    )


def describe(scope: Scope, work: Work, clock: Clock) -> str:
    """Describe what fits in the time budget."""
    asked = f"the time budget of {clock.budget:.0f} s"
    if not scope.frozen:
        first, rest = ", the head first" if scope.head_epochs else "", work.after_loop()
        return f"{asked} leaves about {clock.left() - rest:.0f} s to train{first}; the rest takes about {rest:.0f} s"
    if scope.share == 1:
        return f"{asked} is too short to train the encoder: training only the head"
    return (
        f"{asked} is too short to read all documents: training only the head, on about {100 * scope.share:.0f} % of "
        "them, and storing only those"
    )

"""What fits a time budget: estimates of all that a training will do, from how fast the encoder reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from denn.clock import Clock
from denn.errors import FineTuningError, TrainingError

STEP_PASSES = 3.5  # a training step takes as long as so many passes of inference over its tokens
ENOUGH_STEPS = 500  # with fewer the head should start on embeddings of the encoder as it is
FEWEST_STEPS = 20  # with fewer after that start the encoder need not be trained at all
MARGIN = 1.1  # by which estimates are raised
FEWEST_DOCUMENTS = 20
UNHURRIED = 1800.0  # seconds that count as left without a time budget, where very many labels make the head slow
HEAD_EPOCHS = 30  # at most, where a short time lets the head learn first, or alone
SECONDS_A_DOCUMENT = 3e-4  # to store and index one
LOADS = 1.0  # what writing, checking and reading the model takes, in times that the encoder took to load


@dataclass(frozen=True)
class Work:
    """What is to be done, in tokens and documents, and how fast the machine is."""

    train_tokens: int
    valid_tokens: int  # that the thresholds are tuned on
    validation_tokens: int  # that a validation reads
    documents: int
    step_tokens: float  # all views of a batch
    stores: bool  # whether all training documents are embedded for a datastore in the end
    head_epochs: int  # before training, on embeddings of all training documents
    head_epoch_seconds: float
    seconds_a_token: float
    load_seconds: float
    combining: float = 0.0  # seconds in which a combiner learns from the validation documents
    trained: float = 1.0  # share of the encoder's layers that is trained
    keeps: bool = False  # whether what the other layers make of the documents is computed once and kept
    kept_tokens: int = 0  # that an earlier try has run through those layers

    def embedding(self) -> float:
        """Return the seconds that it takes to embed all training documents."""
        return self.seconds_a_token * self.train_tokens

    def reading(self) -> float:
        """Return the share of a pass that it takes to read a document again."""
        return self.trained if self.keeps else 1.0

    def keeping(self) -> float:
        """Return the seconds that it takes to run the other documents through the layers that are not trained."""
        tokens = self.train_tokens + self.valid_tokens - self.kept_tokens
        return (1 - self.reading()) * self.seconds_a_token * tokens

    def step(self) -> float:
        """Return the seconds of a training step."""
        passes = STEP_PASSES * self.trained + self.reading() - self.trained
        return passes * self.seconds_a_token * self.step_tokens

    def tuning(self) -> float:
        """Return the seconds that it takes to score the validation documents for the thresholds."""
        return self.seconds_a_token * self.valid_tokens

    def head(self) -> float:
        """Return the seconds in which the head learns alone."""
        return self.head_epochs * self.head_epoch_seconds

    def writing(self) -> float:
        """Return the seconds that are needed for the files, after everything is embedded and scored."""
        return LOADS * self.load_seconds + (SECONDS_A_DOCUMENT * self.documents if self.stores else 0.0)

    def after_embedding(self) -> float:
        """Return the seconds for the head, the thresholds and the files, where the encoder stays as it is."""
        return MARGIN * (self.head() + self.tuning() + self.combining + self.writing())

    def after_loop(self) -> float:
        """Return the seconds for a last validation, the datastore, the thresholds and the files."""
        embedding = self.reading() * self.embedding() if self.stores else 0.0
        validation = self.reading() * self.seconds_a_token * self.validation_tokens
        return MARGIN * (embedding + validation + self.tuning() + self.combining + self.writing())

    def steps(self, left: float) -> float:
        """Return how many training steps fit into the seconds that are left."""
        start = self.keeping() + (self.reading() * self.embedding() + self.head() if self.head_epochs else 0.0)
        step = MARGIN * self.step()
        return max(0.0, left - MARGIN * start - self.after_loop()) / step if step else math.inf

    def epochs_of_head(self, left: float) -> int:
        """Return how many epochs of the head alone fit into a tenth of the seconds that are left, one at least."""
        left = UNHURRIED if math.isinf(left) else left
        return max(1, int(min(HEAD_EPOCHS, left / 10 / max(self.head_epoch_seconds, 1e-9))))

    def share_embedded_once(self, left: float) -> float:
        """Return the share of all documents that can be embedded and scored once in the seconds that are left."""
        once = MARGIN * (self.embedding() + self.tuning() + self.head())
        return min(1.0, max(0.0, left - MARGIN * (self.combining + self.writing())) / once) if once else 1.0


@dataclass(frozen=True)
class Scope:
    """How much of a training fits."""

    head_epochs: int = 0  # of the head alone, before anything else
    frozen: bool = False  # the encoder stays as it is
    share: float = 1.0  # of the documents, where not all can be read


def scope_of(work: Work, clock: Clock, can_freeze: bool) -> Scope:
    """Decide what to do with the time that is left; too little for anything is an error."""
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
    """Leave the encoder as it is; read as many documents as there is time for."""
    left = clock.left()
    work = replace(work, head_epochs=work.head_epochs or work.epochs_of_head(left))
    share = work.share_embedded_once(left)
    if share * work.documents < min(FEWEST_DOCUMENTS, work.documents):
        least = MARGIN * work.embedding() + work.after_embedding()
        raise _too_short(clock, least, f"to read {work.documents} documents and write a model")
    return Scope(work.head_epochs, frozen=True, share=share)


def to_fine_tune(work: Work, clock: Clock) -> Scope:
    """Train the encoder under a head that has learnt already; too little time for that is an error."""
    if replace(work, head_epochs=0).steps(clock.left()) < FEWEST_STEPS:
        raise FineTuningError(
            f"The time budget of {clock.budget:.0f} s leaves too little time to fine-tune the encoder. Give more time."
        )
    return Scope()


def _too_short(clock: Clock, seconds: float, purpose: str) -> TrainingError:
    return TrainingError(
        f"Got a time budget of {clock.budget:.0f} s, of which {clock.elapsed():.0f} s are gone; expected at least "
        f"{math.ceil(clock.elapsed() + seconds)} s {purpose}. Give more time, or use --method br, which needs seconds."
    )


def describe(scope: Scope, work: Work, clock: Clock) -> str:
    """Say what the time suffices for."""
    asked = f"the time budget of {clock.budget:.0f} s"
    if not scope.frozen:
        first, rest = ", the head first" if scope.head_epochs else "", work.after_loop()
        return f"{asked} leaves about {clock.left() - rest:.0f} s to train{first}; the rest takes about {rest:.0f} s"
    if scope.share == 1:
        return f"{asked} is too short to train the encoder: it stays as it is, and the head alone learns"
    return (
        f"{asked} is too short to read all documents: the model learns from about {100 * scope.share:.0f} % and keeps "
        "those alone; the encoder stays as it is, and the head alone learns"
    )

"""What fits a time budget: estimates of all that a training will do, from how fast the encoder reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from denn.clock import Clock
from denn.errors import TrainingError

STEP_PASSES = 3.5  # a training step takes as long as so many passes of inference over its tokens
ENOUGH_STEPS = 500  # with fewer the head should start on embeddings of the encoder as it is
FEWEST_STEPS = 20  # with fewer after that start the encoder need not be trained at all
MARGIN = 1.1  # by which estimates are raised
FEWEST_DOCUMENTS = 20
SECONDS_A_DOCUMENT = 3e-4  # to store and index one
LOADS = 1.5  # what writing, checking and reading the model takes, in times that the encoder took to load


@dataclass(frozen=True)
class Work:
    """What is to be done, in tokens and documents, and how fast the machine is."""

    train_tokens: int
    valid_tokens: int
    documents: int
    step_tokens: float  # all views of a batch
    stores: bool  # whether all training documents are embedded for a datastore in the end
    starts_head: bool  # and before training, to start the head
    seconds_a_token: float
    load_seconds: float

    def embedding(self) -> float:
        """Return the seconds that it takes to embed all training documents."""
        return self.seconds_a_token * self.train_tokens

    def validation(self) -> float:
        """Return the seconds that a validation takes."""
        return self.seconds_a_token * self.valid_tokens

    def writing(self) -> float:
        """Return the seconds that are needed for the files, after everything is embedded and scored."""
        return LOADS * self.load_seconds + (SECONDS_A_DOCUMENT * self.documents if self.stores else 0.0)

    def after_embedding(self) -> float:
        """Return the seconds for the thresholds and the files, where everything else is done."""
        return MARGIN * (self.validation() + self.writing())

    def after_loop(self) -> float:
        """Return the seconds for a last validation, the datastore, the files and the thresholds."""
        embedding = self.embedding() if self.stores else 0.0
        return MARGIN * (embedding + self.validation()) + self.after_embedding()

    def steps(self, left: float) -> float:
        """Return how many training steps fit into the seconds that are left."""
        start = MARGIN * self.embedding() if self.starts_head else 0.0
        step = MARGIN * STEP_PASSES * self.seconds_a_token * self.step_tokens
        return max(0.0, left - start - self.after_loop()) / step if step else math.inf

    def share_embedded_once(self, left: float) -> float:
        """Return the share of all documents that can be embedded and scored once in the seconds that are left."""
        once = MARGIN * (self.embedding() + self.validation())
        return min(1.0, max(0.0, left - MARGIN * self.writing()) / once) if once else 1.0


@dataclass(frozen=True)
class Scope:
    """How much of a training fits."""

    starts_head: bool = False  # the head learns alone first
    frozen: bool = False  # and the encoder stays as it is
    share: float = 1.0  # of the documents, where not all can be read


def scope_of(work: Work, clock: Clock) -> Scope:
    """Decide what to do with the time that is left; too little for anything is an error."""
    left = clock.left()
    if work.steps(left) >= ENOUGH_STEPS:
        return Scope()
    if replace(work, starts_head=True).steps(left) >= FEWEST_STEPS:
        return Scope(starts_head=True)
    share = work.share_embedded_once(left)
    if share * work.documents < min(FEWEST_DOCUMENTS, work.documents):
        least = clock.elapsed() + MARGIN * (work.writing() + work.embedding() + work.validation())
        raise TrainingError(
            f"Got a time budget of {clock.budget:.0f} s, of which {clock.elapsed():.0f} s are gone; expected at least "
            f"{math.ceil(least)} s to read {work.documents} documents and write a model. Give more time, or use "
            "--method br, which needs seconds."
        )
    return Scope(starts_head=True, frozen=True, share=share)


def describe(scope: Scope, work: Work, clock: Clock) -> str:
    """Say what the time suffices for."""
    asked = f"the time budget of {clock.budget:.0f} s"
    if not scope.frozen:
        rest = work.after_loop()
        first = ", the head first" if scope.starts_head else ""
        return (
            f"{asked} leaves about {clock.left() - rest:.0f} s to train{first}, and {rest:.0f} s for what comes after"
        )
    if scope.share == 1:
        return f"{asked} is too short to train the encoder: it stays as it is, and the head alone learns"
    return (
        f"{asked} is too short to read all documents: the model learns from about {100 * scope.share:.0f} % and "
        "keeps those alone; the encoder stays as it is, and the head alone learns"
    )

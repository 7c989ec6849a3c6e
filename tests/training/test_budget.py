"""Time budgets: estimates, decisions, and real training runs against the clock."""

import math
import time
from dataclasses import replace

import pytest

import denn
from denn.clock import Clock
from denn.errors import TrainingError
from denn.progress import Silent
from denn.training import budget, session
from denn.training.budget import ENOUGH_STEPS, FEWEST_STEPS, MARGIN, Scope, Work, describe, scope_of

WORK = Work(
    train_tokens=100_000, valid_tokens=10_000, validation_tokens=20_000, documents=1000, step_tokens=3200.0,
    stores=True, head_epochs=0, head_epoch_seconds=0.1, seconds_a_token=1e-3, load_seconds=2.0,
)  # fmt: skip
STEP = MARGIN * budget.STEP_PASSES * 3.2


def clock(seconds: float, elapsed: float = 0.0) -> Clock:
    return Clock(seconds, time.monotonic() - elapsed)


def test_what_comes_after_the_loop_is_a_validation_the_datastore_the_thresholds_and_the_files():
    assert WORK.after_loop() == pytest.approx(MARGIN * (20 + 100 + 10 + WORK.writing()))
    assert replace(WORK, stores=False).after_loop() == pytest.approx(MARGIN * (20 + 10 + budget.LOADS * 2))


def test_steps_fit_into_what_is_left_after_the_rest():
    assert WORK.steps(WORK.after_loop() + 10.5 * STEP) == pytest.approx(10.5)
    assert WORK.steps(WORK.after_loop() - 1) == 0
    started = replace(WORK, head_epochs=20)
    assert started.steps(WORK.after_loop() + MARGIN * (100 + 2) + 3 * STEP) == pytest.approx(3)
    assert replace(WORK, seconds_a_token=0.0).steps(100) == math.inf


def test_enough_time_trains_less_starts_with_the_head_still_less_stops_there_and_the_least_reads_a_part():
    rest, start = WORK.after_loop(), MARGIN * (WORK.embedding() + 30 * 0.1)
    assert scope_of(WORK, clock(rest + (ENOUGH_STEPS + 1) * STEP), True) == Scope()
    assert scope_of(WORK, clock(rest + (ENOUGH_STEPS - 1) * STEP), True) == Scope(30)
    assert scope_of(WORK, clock(rest + start + (FEWEST_STEPS + 1) * STEP), True) == Scope(30)
    assert scope_of(WORK, clock(rest + start + (FEWEST_STEPS - 1) * STEP), True) == Scope(30, frozen=True)
    part = scope_of(WORK, clock(60.0), True)
    assert part.frozen and 0.3 < part.share < 0.6


def test_the_epochs_of_the_head_fit_a_tenth_of_the_time_or_are_those_asked_for():
    slow = replace(WORK, head_epoch_seconds=5.0)
    assert [slow.epochs_of_head(left) for left in (1, 100, 10_000)] == [1, 2, 30]
    asked = replace(WORK, head_epochs=7)
    assert scope_of(asked, clock(1e6), True) == Scope(7)
    assert scope_of(asked, clock(WORK.after_loop() + 400 * STEP), True) == Scope(7)


def test_a_network_that_cannot_freeze_trains_or_says_that_there_is_no_time():
    assert scope_of(WORK, clock(WORK.after_loop() + 2 * STEP), False) == Scope()
    with pytest.raises(TrainingError, match=r"The time budget of 9 s is too short: .* takes at least \d+ s to train"):
        scope_of(WORK, clock(9.0), False)


def test_no_time_for_anything_is_an_error_that_says_how_much_is_needed():
    with pytest.raises(
        TrainingError, match=r"time budget of 5 s is too short: 3 s have passed, and it takes at least 12\d s"
    ):
        scope_of(WORK, clock(5.0, elapsed=3.0), True)


def test_what_fits_is_said_in_a_sentence():
    long = clock(1000.0)
    assert "leaves about 8" in describe(Scope(), WORK, long)
    assert "s to train, the head first" in describe(Scope(30), WORK, long)
    assert "training only the head" in describe(Scope(frozen=True), WORK, long)
    assert "on about 40 %" in describe(Scope(frozen=True, share=0.4), WORK, long)


class Notes(Silent):
    def __init__(self) -> None:
        self.notes = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def test_too_little_time_to_train_is_said_first_and_the_head_alone_learns(
    tiny_corpus, tiny_settings, tmp_path, monkeypatch
):
    monkeypatch.setattr(budget, "ENOUGH_STEPS", 10**9)
    monkeypatch.setattr(budget, "FEWEST_STEPS", 10**9)
    heard = Notes()
    settings = {**tiny_settings, "time_budget": 60.0}
    with denn.train(tiny_corpus, out=tmp_path / "m", progress=heard, **settings) as model:
        facts = model.card.training
        assert "too short to train the encoder" in heard.notes[0]
        assert facts["frozen"] and facts["steps"] == 0
        assert facts["documents_used"] == len(tiny_corpus.train) == len(model.store.ids())
        assert model.card.metrics["micro_f1"] > 0.5


def test_too_little_time_to_read_everything_keeps_what_was_read(tiny_corpus, tiny_settings, tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "ENOUGH_STEPS", 10**9)
    monkeypatch.setattr(budget, "FEWEST_STEPS", 10**9)
    monkeypatch.setattr(session, "PIECE_SECONDS", 0.0)  # chunks of sixteen documents
    monkeypatch.setattr(Work, "after_embedding", lambda self: 1e9 if self.documents == 32 else 0.0)
    settings = {**tiny_settings, "time_budget": 600.0}
    with denn.train(tiny_corpus, out=tmp_path / "m", **settings) as model:
        assert model.card.training["documents_used"] == 32 == len(model.store.ids())
        assert model.card.corpus["train"] == 32
        assert model.card.corpus["valid"] == math.ceil(len(tiny_corpus.valid) * 32 / len(tiny_corpus.train))
        known = {document.text: document.labels for document in tiny_corpus.train}
        for document in model.store.get(sorted(model.store.ids())):
            assert set(known[document.text]) == set(document.labels)
        (found,) = model.predict([document.text])
        assert found.neighbours[0].text == document.text and found.neighbours[0].similarity > 0.999


@pytest.mark.slow
def test_a_training_is_over_in_time(tiny_corpus, tiny_settings, tmp_path):
    begun = time.monotonic()
    with denn.train(tiny_corpus, out=tmp_path / "m", **{**tiny_settings, "time_budget": 8.0, "epochs": 10**6}) as model:
        assert time.monotonic() - begun < 24  # three times as long would be a bug; a stalled machine is not
        assert model.card.training["steps"] > 0 and not model.card.training["frozen"]

"""The guard: what counts as a collapse, and what does not."""

import math

import pytest

from denn.training.guard import ALIKE, JUMP, STAYED, loss_stays_high, sign_of_collapse
from denn.training.plan import State


def validated(*scores: dict[str, float], **state) -> list[str | None]:
    """Judge validations one after the other, against a best score of 0.7 with a spread of 0.8."""
    now = State(**{"best_score": 0.7, "highest": 0.7, "best_spread": 0.8, "usual_loss": 0.1, "loss": 0.1, **state})
    return [sign_of_collapse(now, one, finite=True) for one in scores]


def test_an_ordinary_validation_is_no_collapse():
    assert validated({"score": 0.71, "spread": 0.8}, {"score": 0.69, "spread": 0.7}) == [None, None]


@pytest.mark.parametrize("name", ["score", "spread", "noise", "micro_f1"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_none_is_a_collapse(name, value):
    (said,) = validated({"score": 0.8, "spread": 0.8, name: value})
    assert said == "weights or scores are not finite numbers"


def test_weights_that_are_no_numbers_are_a_collapse_whatever_the_scores():
    assert sign_of_collapse(State(), {"score": 0.9}, finite=False) == "weights or scores are not finite numbers"


def test_texts_that_all_get_the_same_scores_are_a_collapse():
    assert validated({"score": 0.7, "spread": 0.99 * ALIKE * 0.8}) == ["all texts get nearly the same scores"]
    assert validated({"score": 0.7, "spread": 1.01 * ALIKE * 0.8}) == [None]


def test_one_deep_fall_is_a_collapse_and_so_are_two_lesser_ones_in_a_row():
    assert validated({"score": 0.34}) == ["the validation score fell from 70.0 to 34.0"]
    low, fine = {"score": 0.5}, {"score": 0.65}
    assert validated(low, fine, low, low) == [None, None, None, "the validation score fell from 70.0 to 50.0"]


def test_a_fall_within_the_noise_of_few_documents_means_nothing():
    assert validated({"score": 0.2, "noise": 0.17}) == [None]
    assert validated({"score": 0.2, "noise": 0.16}) != [None]


def test_a_score_of_nothing_at_a_half_is_no_fall_where_another_threshold_is_as_good_as_ever():
    assert validated({"score": 0.0, "tuned_micro_f1": 0.69}, {"score": 0.0, "tuned_micro_f1": 0.69}) == [None, None]
    assert validated({"score": 0.0, "tuned_micro_f1": 0.2}) == ["the validation score fell from 70.0 to 20.0"]


def test_the_noise_of_an_earlier_validation_counts_where_the_last_one_shows_none():
    assert validated({"score": 0.7, "noise": 0.2}, {"score": 0.2, "noise": 0.0}) == [None, None]


def test_before_anything_is_learnt_nothing_can_fall():
    empty = {"best_score": None, "highest": 0.0, "best_spread": 0.0}
    assert validated({"score": 0.0, "spread": 0.0}, **empty) == [None]
    assert validated({"score": 0.0, "spread": 0.0}, **{**empty, "best_score": 0.0}) == [None]


@pytest.mark.parametrize("best", [None, 0.0])
def test_before_anything_is_learnt_the_loss_decides(best):
    (said,) = validated({"score": 0.0}, best_score=best, highest=0.0, high_looks=STAYED, loss=0.6)
    assert said == "the loss rose from 0.1000 to 0.6000 and stayed there"


def test_without_a_validation_part_the_loss_decides():
    assert validated({}, best_score=None) == [None]
    (said,) = validated({}, best_score=None, high_looks=STAYED, loss=0.3)
    assert said == "the loss rose from 0.1000 to 0.3000 and stayed there"


def test_a_high_loss_with_a_sound_validation_becomes_the_usual_one():
    state = State(best_score=0.7, usual_loss=0.1, loss=0.3, high_looks=STAYED)
    assert sign_of_collapse(state, {"score": 0.7}, finite=True) is None
    assert (state.usual_loss, state.high_looks) == (0.3, 0)


def test_a_loss_counts_as_high_when_it_jumped_and_stayed():
    state = State()
    assert not any(loss_stays_high(state, loss) for loss in (0.5, 0.3, 0.2, 0.2))
    usual = state.usual_loss
    looks = [loss_stays_high(state, 1.01 * JUMP * usual) for _ in range(STAYED)]
    assert looks == [False] * (STAYED - 1) + [True]
    assert state.usual_loss == usual  # a high loss does not become the usual one
    assert not loss_stays_high(state, usual)
    assert state.high_looks == 0


def test_a_loss_below_zero_has_no_multiple():
    state = State()
    assert not any(loss_stays_high(state, loss) for loss in [0.1, -0.1, *[5.0] * (STAYED + 1)])

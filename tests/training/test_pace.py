"""The pace of training: how much slower the machine has become."""

import pytest

from denn.training.pace import STEPS, Pace


def test_nothing_known_is_no_slower():
    assert Pace().slower() == 1.0


def test_a_machine_that_slows_down_is_slower_by_the_factor_of_its_steps():
    pace = Pace()
    for _ in range(STEPS):
        pace.note(seconds=2.0, tokens=100)
    assert pace.slower() == 1.0
    for _ in range(STEPS):
        pace.note(seconds=9.0, tokens=150)
    assert pace.slower() == pytest.approx(3.0)
    for _ in range(STEPS):
        pace.note(seconds=1.0, tokens=100)
    assert pace.slower() == 1.0


def test_a_measurement_makes_the_pace_of_the_moment_the_usual_one():
    pace = Pace()
    for seconds in (1.0, 5.0):
        for _ in range(STEPS):
            pace.note(seconds, 1)
    pace.forget()
    assert pace.slower() == 1.0
    pace.note(7.0, 1)
    assert pace.slower() == 1.0

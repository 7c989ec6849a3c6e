"""Calibration curves: recovered from samples, monotone, and dependent on label frequency."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denn.witnesses.calibration import Calibration


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_the_curves_that_made_the_labels_are_found():
    random, share = np.random.default_rng(0), np.array([0.5, 0.05, 0.005])
    made = Calibration(np.array([[-1.0, -1.5, -2.0], [3.0, 4.0, 5.0], [6.0, 5.0, 4.0]], dtype=np.float32))
    decisions = random.normal(-0.5, 0.7, size=(60_000, 3))
    gold = random.random(decisions.shape) < sigmoid(made(decisions))
    found = Calibration.fit(decisions, gold, share, share)
    wanted, got = sigmoid(made(decisions)), sigmoid(found(decisions))
    assert np.abs(wanted - got).max() < 0.05
    assert got.mean() == pytest.approx(gold.mean(), abs=0.002)


@given(st.integers(0, 10**6), st.floats(0.0, 1.0))
def test_a_larger_decision_never_means_less(seed, rate):
    random = np.random.default_rng(seed)
    decisions, share = random.normal(size=(20, 4)), random.uniform(1e-4, 1, size=4)
    found = Calibration.fit(decisions, random.random((20, 4)) < rate, share, share)
    assert np.isfinite(found.curves).all()
    steps = found(np.repeat(np.linspace(-3, 3, 50, dtype=np.float32)[:, None], 4, axis=1))
    assert (np.diff(steps, axis=0) > 0).all()


def test_separated_decisions_stay_finite():
    decisions = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    found = Calibration.fit(decisions, decisions > 0, np.array([0.5]), np.array([0.5, 0.01]))
    assert np.isfinite(found.curves).all() and found.curves.shape == (3, 2)


def test_the_loss_is_the_mean_log_loss():
    found = Calibration(np.array([[0.0], [2.0], [4.0]], dtype=np.float32))
    decisions, gold = np.array([[-1.0], [0.5]], dtype=np.float32), np.array([[True], [False]])
    wanted = -(np.log(sigmoid(2.0 * -0.5)) + np.log(1 - sigmoid(4.0 * 1.0))) / 2
    assert found.loss(decisions, gold) == pytest.approx(wanted)
    assert found.loss(decisions[:0], gold[:0]) == 0.0

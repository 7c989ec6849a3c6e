"""Calibration error and log loss on numbers that can be checked by hand."""

import math

import pytest
import torch

from denn.core.calibration import calibration_error, log_loss


def test_scores_that_are_shares_have_no_error():
    scores = torch.full((4, 1), 0.25)
    assert calibration_error(scores, torch.tensor([[True], [False], [False], [False]])) == 0


def test_the_error_is_the_mean_gap_of_the_bins():
    scores = torch.tensor([[0.95, 0.95, 0.35, 0.01]])
    gold = torch.tensor([[True, False, False, True]])  # gaps 2 · 0.45 and 0.35; 0.01 is not counted
    assert calibration_error(scores, gold) == pytest.approx((2 * 0.45 + 0.35) / 3, abs=1e-6)


def test_no_score_worth_showing_is_no_error():
    assert calibration_error(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)) == 0
    assert calibration_error(torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.bool)) == 0


def test_log_loss_sums_over_labels_and_stays_finite():
    scores = torch.tensor([[0.5, 0.25], [1.0, 0.0]])
    gold = torch.tensor([[True, False], [False, False]])
    expected = (-math.log(0.5) - math.log(0.75) - math.log(1e-6)) / 2
    assert log_loss(scores, gold) == pytest.approx(expected, rel=1e-6)

"""The expected errors of a decision, and a diverse selection, against sums written out in loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from denn.core.choice import expected_errors, spread_out, suspicion


@given(st.integers(0, 5), st.integers(0, 4), st.integers(0, 100))
def test_expected_errors_add_what_speaks_against_each_decision(n, labels, seed):
    generator = torch.Generator().manual_seed(seed)
    scores, chosen = torch.rand(n, labels, generator=generator), torch.rand(n, labels, generator=generator) > 0.5
    expected = [
        sum((1 - scores[i, j] if chosen[i, j] else scores[i, j]).item() for j in range(labels)) for i in range(n)
    ]
    torch.testing.assert_close(expected_errors(scores, chosen), torch.tensor(expected, dtype=torch.float32))


def test_without_likeness_the_highest_values_are_chosen_in_order():
    assert spread_out(torch.tensor([0.2, 0.9, 0.5]), torch.eye(3), 2) == [1, 2]


def test_a_row_like_a_chosen_one_comes_later_than_a_different_one_of_less_value():
    vectors = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), dim=1)
    assert spread_out(torch.tensor([0.9, 0.8, 0.3]), vectors, 3) == [0, 2, 1]


def test_rows_without_value_are_chosen_once_each():
    assert sorted(spread_out(torch.zeros(3), torch.ones(3, 1), 5)) == [0, 1, 2]
    assert spread_out(torch.zeros(0), torch.zeros(0, 2), 5) == []


def test_what_points_the_other_way_counts_for_no_more_than_what_is_unlike():
    vectors = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    assert spread_out(torch.tensor([1.0, 0.4, 0.5]), vectors, 3) == [0, 2, 1]


def test_a_missing_label_is_as_suspicious_as_its_score_and_a_given_one_by_how_it_compares_with_its_share():
    scores = torch.tensor([[0.9, 0.2, 0.0, 1.0]])
    share = torch.tensor([0.5, 0.01, 0.3, 0.3])
    missing = suspicion(scores, torch.zeros(1, 4, dtype=torch.bool), share)
    assert missing[0].tolist() == pytest.approx([0.9, 0.2, 0.0, 1.0], abs=1e-5)
    given = suspicion(scores, torch.ones(1, 4, dtype=torch.bool), share)

    def expected(p, s):
        odds = math.e * s / (1 - s) * (1 - p) / p
        return odds / (1 + odds)

    assert given[0, :2].tolist() == pytest.approx([expected(0.9, 0.5), expected(0.2, 0.01)])
    assert given[0, 2:].tolist() == pytest.approx([1.0, 0.0], abs=1e-5)


def test_a_rare_label_with_a_low_score_is_less_suspicious_than_a_frequent_one():
    rare, frequent = suspicion(
        torch.full((1, 2), 0.05), torch.ones(1, 2, dtype=torch.bool), torch.tensor([0.001, 0.3])
    )[0]
    assert rare < 0.1 < 0.9 < frequent

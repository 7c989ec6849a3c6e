"""Log-odds of labels, against counts."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from denn_bench.core.prior import log_odds


@given(st.integers(1, 6), st.integers(1, 4), st.data())
def test_log_odds_are_those_of_the_shares(n, width, data):
    cells = data.draw(st.lists(st.booleans(), min_size=n * width, max_size=n * width))
    labels = torch.tensor(cells).view(n, width)
    counts = [sum(column) for column in zip(*labels.tolist(), strict=True)]
    for found, count in zip(log_odds(labels).tolist(), counts, strict=True):
        count = min(max(count, 0.5), n - 0.5)
        assert found == pytest.approx(math.log(count / (n - count)), abs=1e-5)
    (shared,) = log_odds(labels, shared=True).tolist()
    count = min(max(sum(counts) / width, 0.5), n - 0.5)
    assert shared == pytest.approx(math.log(count / (n - count)), abs=1e-5)

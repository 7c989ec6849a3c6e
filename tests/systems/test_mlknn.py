"""ML-kNN's counts and posteriors against the definition in loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from denn_bench.core.mlknn import neighbour_histograms, posterior


def cases(seed: int, n: int, width: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, k + 1, (n, width), generator=generator), torch.rand(n, width, generator=generator) < 0.4


@given(st.integers(0, 10_000), st.integers(0, 12), st.integers(0, 4), st.integers(1, 5))
def test_histograms_count_documents_by_their_neighbours(seed: int, n: int, width: int, k: int) -> None:
    near, labels = cases(seed, n, width, k)
    with_label, without_label = neighbour_histograms(near, labels, k)
    assert with_label.shape == without_label.shape == (width, k + 1)
    for label in range(width):
        for count in range(k + 1):
            here = [i for i in range(n) if near[i, label] == count]
            assert with_label[label, count] == sum(bool(labels[i, label]) for i in here)
            assert without_label[label, count] == sum(not labels[i, label] for i in here)


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 4), st.integers(1, 5), st.floats(0.01, 5))
def test_the_posterior_is_bayes_rule_on_smoothed_frequencies(seed: int, m: int, width: int, k: int, s: float) -> None:
    near, labels = cases(seed, m, width, k)
    asked, _ = cases(seed + 1, 3, width, k)
    found = posterior(asked, *neighbour_histograms(near, labels, k), s)
    assert found.dtype == torch.float64
    for label in range(width):
        carriers = [i for i in range(m) if labels[i, label]]
        others = [i for i in range(m) if not labels[i, label]]
        prior = (s + len(carriers)) / (2 * s + m)
        for text in range(3):
            j = int(asked[text, label])
            if_yes = (s + sum(int(near[i, label]) == j for i in carriers)) / (s * (k + 1) + len(carriers))
            if_no = (s + sum(int(near[i, label]) == j for i in others)) / (s * (k + 1) + len(others))
            yes, no = prior * if_yes, (1 - prior) * if_no
            assert float(found[text, label]) == pytest.approx(yes / (yes + no))


def test_numbers_written_out() -> None:
    # Ten documents, k = 2, s = 1. Of the four with the label 0, 1 and 3 have 0, 1 and 2 such neighbours.
    histograms = torch.tensor([[0, 1, 3]]), torch.tensor([[4, 2, 0]])
    found = posterior(torch.tensor([[0], [1], [2]]), *histograms, 1.0).flatten().tolist()
    yes = [5 / 12 * count / 7 for count in (1, 2, 4)]
    no = [7 / 12 * count / 9 for count in (5, 3, 1)]
    assert found == pytest.approx([a / (a + b) for a, b in zip(yes, no, strict=True)])
    assert found[0] < 0.5 < found[2]


def test_a_label_that_no_document_carries_is_unlikely() -> None:
    near, labels = torch.zeros(1000, 1, dtype=torch.int64), torch.zeros(1000, 1, dtype=torch.bool)
    assert float(posterior(near[:1], *neighbour_histograms(near, labels, 10), 1.0)) < 0.001

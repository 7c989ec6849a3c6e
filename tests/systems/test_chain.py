"""Chains against the definition, label by label and text by text."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from denn_bench.core.chain import follow_chain


@given(st.integers(0, 10_000), st.integers(0, 6), st.integers(1, 5))
def test_every_label_hears_the_decisions_before_it_and_no_others(seed: int, n: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(n, width, generator=generator, dtype=torch.float64)
    links = torch.randn(width, width, generator=generator, dtype=torch.float64)
    order = torch.randperm(width, generator=generator).tolist()
    expected = torch.zeros_like(values)
    for text in range(n):
        said: dict[int, float] = {}
        for column in order:
            total = float(values[text, column])
            for before, yes in said.items():
                total += float(links[before, column]) * yes
            said[column] = 1.0 if total > 0 else 0.0
            expected[text, column] = total
    kept = values.clone()
    assert torch.allclose(follow_chain(values, links, order), expected)
    assert torch.equal(values, kept)


def test_a_decision_turns_the_next() -> None:
    values = torch.tensor([[0.5, -1.0], [-0.5, -1.0], [0.0, -1.0]])
    links = torch.tensor([[9.0, 2.0], [9.0, 9.0]])
    assert follow_chain(values, links, [0, 1]).tolist() == [[0.5, 1.0], [-0.5, -1.0], [0.0, -1.0]]
    assert torch.equal(follow_chain(values, links, [1, 0]), values)

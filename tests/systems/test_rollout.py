"""A decoder that writes by its own choice: masks, ends, draws."""

import itertools

import pytest
import torch

from denn_bench.systems.rollout import write

LABELS = 3
END, START = LABELS, LABELS + 1


def decoder(table):
    """A decoder whose (V,) logits at each step are those of the table, for every row alike; the state counts steps."""

    def step(last, state):
        (count,) = state
        return table[int(count[0])].expand(len(last), -1), (count + 1,)

    return step


def run(table, rows=1, **extra):
    torch.manual_seed(0)
    step, state = decoder(table), (torch.zeros(rows, dtype=torch.long),)
    return write(step, state, limit=len(table), start=START, end=END, **extra)


def test_greedy_takes_the_likeliest_that_is_left_and_stops_at_the_end():
    table = torch.tensor([[3.0, 2, 1, 0], [3, 2, 1, 0], [9, 8, 1, 2], [9, 9, 9, 0]])
    tokens, logits = run(table, rows=2, greedy=True)
    assert tokens.tolist() == [[0, 1, END]] * 2
    assert torch.equal(logits[0], table[:3])  # as the step gave them, nothing masked


def test_what_has_not_ended_is_cut_at_the_limit():
    tokens, _ = run(torch.tensor([[3.0, 2, 1, -9], [3, 2, 1, -9]]), greedy=True)
    assert tokens.tolist() == [[0, 1]]


def test_the_end_is_all_that_is_left_when_every_label_is_written():
    tokens, _ = run(torch.tensor([[0.0, 0, 0, -90]] * (LABELS + 1)), rows=50)
    assert all(sorted(row) == [0, 1, 2, END] and row[-1] == END for row in tokens.tolist())


def test_draws_follow_the_softmax_of_what_is_left():
    table = torch.tensor([[0.5, -0.3, 0.1, 0.2], [1.0, 0.0, -1.0, 0.4]])
    tokens, _ = run(table, rows=20_000)
    drawn = [tuple(row) for row in tokens.tolist()]
    first = torch.softmax(table[0], 0)
    for label, later in itertools.product(range(LABELS), range(LABELS + 1)):
        left = table[1].clone()
        left[label] = -torch.inf
        expected = float(first[label] * torch.softmax(left, 0)[later])
        assert drawn.count((label, later)) / len(drawn) == pytest.approx(expected, abs=0.012)  # about four deviations
    assert drawn.count((END, END)) / len(drawn) == pytest.approx(float(first[END]), abs=0.012)


def test_draws_follow_the_generator():
    table = torch.zeros(4, LABELS + 1)
    first, second = run(table, rows=30)[0], run(table, rows=30)[0]
    assert torch.equal(first, second)
    torch.manual_seed(1)
    other, _ = write(decoder(table), (torch.zeros(30, dtype=torch.long),), limit=4, start=START, end=END)
    assert other.shape != first.shape or not torch.equal(first, other)


def test_gradients_reach_the_logits_and_nothing_else():
    table = torch.zeros(2, LABELS + 1, requires_grad=True)
    tokens, logits = run(table, rows=3)
    assert not tokens.requires_grad
    logits.sum().backward()
    assert bool((table.grad[: logits.shape[1]] == 3).all())


def test_logits_that_are_no_numbers_are_left_to_the_loss():
    tokens, logits = run(torch.full((2, LABELS + 1), torch.nan))
    assert bool(logits.isnan().all() and (tokens <= END).all())

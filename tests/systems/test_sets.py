"""What written label sets are worth and what their steps should have been, against loops and written-out numbers."""

import itertools
import math

import pytest
import torch

from denn_bench.core.sets import (
    emitted_before,
    live,
    members,
    optimal_completion_loss,
    optimal_distribution,
    sample_f1,
    self_critical_loss,
)

LABELS = 4
END = LABELS
TOKENS = torch.tensor([[2, 0, END, END], [END, END, END, END], [1, 3, 0, 2]])  # the last one was cut at the limit


def test_places_are_live_up_to_the_first_end():
    expected = [[True, True, True, False], [True, False, False, False], [True] * 4]
    assert live(TOKENS, END).tolist() == expected


def test_what_was_emitted_before_by_loops():
    found = emitted_before(TOKENS, LABELS)
    for text, place, label in itertools.product(range(3), range(4), range(LABELS)):
        assert bool(found[text, place, label]) == (label in TOKENS[text, :place].tolist())


def test_members():
    assert members(TOKENS, LABELS).int().tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("found", "gold", "expected"),
    [
        ({0, 2}, {0, 2}, 1.0),
        ({0, 2}, {0}, 2 / 3),  # P 1/2, R 1
        ({1}, {0, 1, 3}, 1 / 2),  # P 1, R 1/3
        ({0, 1, 2}, {2, 3}, 2 / 5),  # P 1/3, R 1/2
        ({1}, {0}, 0.0),
        (set(), {0}, 0.0),  # nothing found
        ({0}, set(), 0.0),  # nothing to find
        (set(), set(), 1.0),
    ],
)
def test_f1_of_a_set(found, gold, expected):
    rows = [torch.tensor([[label in labels for label in range(LABELS)]]) for labels in (found, gold)]
    assert float(sample_f1(*rows)) == pytest.approx(expected)


def test_f1_of_several_sets_stays_in_its_rows():
    sets = torch.tensor(list(itertools.product([False, True], repeat=3)))
    found, gold = sets.repeat_interleave(8, 0), sets.repeat(8, 1)
    alone = torch.cat([sample_f1(a[None], b[None]) for a, b in zip(found, gold, strict=True)])
    assert torch.equal(sample_f1(found, gold), alone)


def test_the_self_critical_loss_by_loops():
    torch.manual_seed(0)
    logits, advantage = torch.randn(3, 4, LABELS + 1), torch.tensor([0.5, -0.25, 1.0])
    expected = 0.0
    for text in range(3):
        for place in range(4):
            before = TOKENS[text, :place].tolist()
            if END in before:
                break
            allowed = [token for token in range(LABELS + 1) if token not in before]
            norm = sum(math.exp(logits[text, place, token]) for token in allowed)
            chosen = math.exp(logits[text, place, TOKENS[text, place]]) / norm
            expected -= float(advantage[text]) * math.log(chosen) / 3
    assert float(self_critical_loss(logits, TOKENS, advantage)) == pytest.approx(expected, abs=1e-5)


def test_the_self_critical_gradient_in_numbers():
    """Two labels and the end, all logits 0. The sample is label 0, then the end; r = 1 against 1/2.

    The first step chose of three, the second of two, label 0 being gone. With A = 1/2 the gradient of a step is
    A (p − [chosen]): what was chosen becomes likelier, a label that is masked and a step behind the end get nothing.
    """
    logits = torch.zeros(1, 3, 3, requires_grad=True)
    tokens = torch.tensor([[0, 2, 2]])
    loss = self_critical_loss(logits, tokens, torch.tensor([1.0 - 0.5]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.5 * (math.log(3) + math.log(2)))
    expected = torch.tensor([[-1 / 3, 1 / 6, 1 / 6], [0.0, 1 / 4, -1 / 4], [0.0, 0.0, 0.0]])
    assert torch.allclose(logits.grad[0], expected)


def test_the_self_critical_gradient_is_that_of_the_expected_reward():
    """Summed over every sequence by its probability, the gradients are those of −E[r], whatever the baseline."""
    torch.manual_seed(1)
    table = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)  # the logits of two steps, labels 0, 1 and end
    gold = torch.tensor([[True, False]])
    sequences = [[0, 1], [0, 2], [1, 0], [1, 2], [2, 2]]
    expected_reward, summed = torch.zeros((), dtype=torch.float64), torch.zeros_like(table)
    for sequence in sequences:
        tokens = torch.tensor([sequence])
        minus_log = self_critical_loss(table[None], tokens, torch.ones(1))
        reward = sample_f1(members(tokens, 2), gold)
        expected_reward = expected_reward + torch.exp(-minus_log) * reward[0]
        loss = self_critical_loss(table[None], tokens, reward - 0.4)
        summed += torch.exp(-minus_log).detach() * torch.autograd.grad(loss, table)[0]
    assert torch.allclose(summed, torch.autograd.grad(-expected_reward, table)[0], atol=1e-9)


def test_an_advantage_passes_no_gradient():
    logits, advantage = torch.zeros(1, 1, 3, requires_grad=True), torch.ones(1, requires_grad=True)
    self_critical_loss(logits, torch.tensor([[0]]), advantage).backward()
    assert advantage.grad is None


def test_the_optimal_distribution_of_every_sequence_by_loops():
    every = torch.tensor(list(itertools.product(range(LABELS + 1), repeat=3)))
    for gold in itertools.product([False, True], repeat=LABELS):
        found = optimal_distribution(every, torch.tensor([gold]).expand(len(every), LABELS))
        for text, place in itertools.product(range(0, len(every), 7), range(3)):
            written = every[text, :place].tolist()
            missing = [label for label in range(LABELS) if gold[label] and label not in written]
            best = missing or [END]
            expected = [1 / len(best) if token in best else 0.0 for token in range(LABELS + 1)]
            assert found[text, place].tolist() == pytest.approx(expected)


def test_the_optimal_distribution_in_numbers():
    gold = torch.tensor([[1, 0, 1, 1]]).bool()
    written = torch.tensor([[1, 2, 0, 3, END]])  # label 1 is wrong: nothing is lost but the step
    third, half = 1 / 3, 1 / 2
    expected = [[third, 0, third, third, 0], [third, 0, third, third, 0], [half, 0, 0, half, 0]]
    expected += [[0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    assert torch.allclose(optimal_distribution(written, gold)[0], torch.tensor(expected))
    nothing = torch.zeros(1, LABELS).bool()
    assert optimal_distribution(written, nothing)[0].tolist() == [[0, 0, 0, 0, 1]] * 5


def test_the_optimal_completion_loss_by_loops():
    torch.manual_seed(2)
    logits = torch.randn(3, 4, LABELS + 1, requires_grad=True)
    gold = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]]).bool()
    total, places = 0.0, 0
    for text, place in itertools.product(range(3), range(4)):
        written = TOKENS[text, :place].tolist()
        if END in written:
            continue
        places += 1
        shares = torch.softmax(logits[text, place], 0).tolist()  # over all tokens, those written too
        missing = [label for label in range(LABELS) if gold[text, label] and label not in written] or [END]
        total += sum(math.log(1 / len(missing) / shares[token]) / len(missing) for token in missing)
    assert places == 3 + 1 + 4
    loss = optimal_completion_loss(logits, TOKENS, gold)
    assert float(loss.detach()) == pytest.approx(total / places, abs=1e-5)
    loss.backward()
    assert bool((logits.grad[0, 3] == 0).all() and (logits.grad[1, 1:] == 0).all())  # behind the end
    assert bool((logits.grad[0, 1] != 0).all())  # and nowhere else


def test_the_optimal_completion_loss_is_0_at_the_optimum():
    gold = torch.tensor([[1, 0, 1, 0]]).bool()
    tokens = torch.tensor([[2, 0, END]])
    logits = optimal_distribution(tokens, gold).log().clamp(min=-60)
    assert float(optimal_completion_loss(logits, tokens, gold)) == pytest.approx(0, abs=1e-6)

"""Beam search against every sequence there is, its masks, its states, and texts side by side."""

import itertools
import math

import pytest
import torch

from denn_bench.core.beam import Beams, beam_search, best_labels, label_marginals

LABELS = 3
END, START = LABELS, LABELS + 1
HIDDEN = 4


class Toy:
    """A decoder with random weights whose state, and so whose next choice, depends on everything emitted so far."""

    def __init__(self, seed=0, outputs=LABELS + 1):
        generator = torch.Generator().manual_seed(seed)
        self.inputs = 2 * torch.randn(LABELS + 2, HIDDEN, generator=generator)
        self.turn = torch.randn(HIDDEN, HIDDEN, generator=generator)
        self.outputs = 2 * torch.randn(HIDDEN, outputs, generator=generator)

    def step(self, last, state):
        hidden, emitted = state
        hidden = torch.tanh(hidden @ self.turn + self.inputs[last])
        return hidden @ self.outputs, (hidden, emitted + 1)

    def start(self, count, seed=1):
        hidden = torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))
        return hidden, torch.zeros(count, 1)

    def log_probability(self, hidden, sequence, fusion=None):
        """Go through one sequence token by token; labels of earlier steps cannot be chosen."""
        total, state, last = 0.0, (hidden[None], torch.zeros(1, 1)), START
        for place, token in enumerate(sequence):
            logits, state = self.step(torch.tensor([last]), state)
            allowed = [t for t in range(LABELS + 1) if t not in sequence[:place]]
            norm = math.log(sum(math.exp(float(logits[0, t])) for t in allowed))
            total += float(logits[0, token]) - norm + (0.0 if fusion is None else float(fusion[token]))
            last = token
        return total


def all_sequences():
    """List every sequence of different labels with its end."""
    return [(*labels, END) for size in range(LABELS + 1) for labels in itertools.permutations(range(LABELS), size)]


def search(toy, state, width=64, limit=LABELS + 1, **extra):
    return beam_search(toy.step, state, len(state[0]), width=width, limit=limit, start=START, end=END, **extra)


def cut(tokens):
    """Return a beam's tokens up to its first end, included."""
    tokens = tokens.tolist()
    return tuple(tokens[: tokens.index(END) + 1]) if END in tokens else tuple(tokens)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_a_wide_beam_finds_every_sequence(normalise, fused):
    toy, count = Toy(), 3
    state = toy.start(count)
    fusion = torch.randn(count, LABELS + 1, generator=torch.Generator().manual_seed(5)) if fused else None
    found = search(toy, state, fusion=fusion, normalise=normalise)
    for text in range(count):
        mine = None if fusion is None else fusion[text]
        exact = {s: toy.log_probability(state[0][text], s, mine) for s in all_sequences()}
        rank = {s: value / len(s) if normalise else value for s, value in exact.items()}
        order = sorted(exact, key=rank.__getitem__, reverse=True)
        assert [cut(row) for row in found.tokens[text, : len(order)]] == order
        assert found.logs[text, : len(order)].tolist() == pytest.approx([exact[s] for s in order], abs=1e-5)
        assert found.scores[text, : len(order)].tolist() == pytest.approx([rank[s] for s in order], abs=1e-5)
        assert bool((found.logs[text, len(order) :] == -math.inf).all())
        if not fused:
            assert sum(math.exp(value) for value in exact.values()) == pytest.approx(1, abs=1e-5)


def test_width_one_is_greedy():
    toy = Toy(seed=2)
    state = toy.start(5)
    found = search(toy, state, width=1)
    for text in range(5):
        expected, last, now = [], START, (state[0][text : text + 1], state[1][:1])
        while last != END:
            logits, now = toy.step(torch.tensor([last]), now)
            logits[0, expected] = -math.inf
            last = int(logits.argmax())
            expected.append(last)
        assert cut(found.tokens[text, 0]) == tuple(expected)


def test_no_label_twice_and_no_start():
    toy = Toy(seed=3, outputs=LABELS + 2)  # the start is among the choices
    toy.outputs[:, START] += 50 * torch.sign(toy.outputs[:, START])
    found = search(toy, toy.start(4), width=7)
    alive = found.logs.isfinite()
    for sequence in map(cut, found.tokens[alive]):
        assert len(set(sequence)) == len(sequence)
        assert START not in sequence and sequence[-1] == END


def test_narrow_beams_carry_their_own_states():
    toy = Toy(seed=4)
    state = toy.start(6)
    found = search(toy, state, width=3)
    for text, beam in itertools.product(range(6), range(3)):
        exact = toy.log_probability(state[0][text], cut(found.tokens[text, beam]))
        assert float(found.logs[text, beam]) == pytest.approx(exact, abs=1e-5)


def test_several_texts_are_found_as_one_at_a_time():
    toy = Toy(seed=5)
    state = toy.start(6)
    together = search(toy, state, width=3)
    for text in range(6):
        alone = search(toy, tuple(part[text : text + 1] for part in state), width=3)
        assert [cut(row) for row in alone.tokens[0]] == [cut(row) for row in together.tokens[text]]
        assert torch.allclose(alone.scores[0], together.scores[text], atol=1e-5)
        assert torch.allclose(label_marginals(alone, LABELS)[0], label_marginals(together, LABELS)[text], atol=1e-5)


def test_a_limit_cuts_what_has_not_ended():
    toy = Toy(seed=6)
    toy.outputs[:, END] = 0
    toy.outputs[:, :LABELS] = 10 * toy.outputs[:, :LABELS].abs()
    toy.turn, toy.inputs = toy.turn.abs(), toy.inputs.abs()  # states are positive, so labels win against the end
    found = search(toy, (toy.start(2)[0].abs(), torch.zeros(2, 1)), width=2, limit=2)
    assert found.tokens.shape == (2, 2, 2)
    assert not bool((found.tokens[:, 0] == END).any())


def test_marginals_and_best_labels_by_hand():
    tokens = torch.tensor([[[1, 0, END], [1, END, END], [END, END, END]], [[2, END, END], [0, END, END], [1, 1, 1]]])
    logs = torch.tensor([[0.2, 0.1, 0.1], [0.3, 0.1, 0.0]]).log()
    beams = Beams(tokens, logs, logs)
    expected = torch.tensor([[0.5, 0.75, 0.0], [0.25, 0.0, 0.75]])
    assert torch.allclose(label_marginals(beams, LABELS), expected)
    assert best_labels(beams, LABELS).tolist() == [[1, 1, 0], [0, 0, 1]]


def test_marginals_of_all_sequences_are_exact():
    toy = Toy(seed=7)
    state = toy.start(2)
    found = label_marginals(search(toy, state), LABELS)
    for text, label in itertools.product(range(2), range(LABELS)):
        held = [s for s in all_sequences() if label in s]
        exact = sum(math.exp(toy.log_probability(state[0][text], s)) for s in held)
        assert float(found[text, label]) == pytest.approx(exact, abs=1e-5)

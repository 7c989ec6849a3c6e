"""Attention of labels over words: each sum written out in loops."""

import math

import torch

from denn_bench.core.label_attention import at_the_end, attend, attend_plainly, interact


def test_attention_is_a_softmax_over_the_real_words():
    torch.manual_seed(0)
    scores, states = torch.randn(2, 4, 3), torch.randn(2, 4, 5)
    real = torch.tensor([[True] * 4, [True, True, False, False]])
    found = attend(scores, real, states)
    for text, size in enumerate((4, 2)):
        for label in range(3):
            whole = sum(math.exp(scores[text, t, label]) for t in range(size))
            for column in range(5):
                expected = sum(
                    math.exp(scores[text, t, label]) / whole * float(states[text, t, column]) for t in range(size)
                )
                assert math.isclose(float(found[text, label, column]), expected, abs_tol=1e-5)


def test_padding_has_no_part_and_no_gradient():
    torch.manual_seed(0)
    scores, states = torch.randn(1, 4, 3, requires_grad=True), torch.randn(1, 4, 5, requires_grad=True)
    real = torch.tensor([[True, True, False, False]])
    found = attend(scores, real, states)
    found.sum().backward()
    torch.testing.assert_close(found, attend(scores[:, :2], real[:, :2], states[:, :2]))
    assert not scores.grad[:, 2:].any() and not states.grad[:, 2:].any()
    assert states.grad[:, :2].all()


def test_plain_attention_weighs_words_by_their_products():
    torch.manual_seed(0)
    labels, states = torch.randn(3, 5), torch.randn(2, 4, 5)
    states[1, 2:] = 0  # behind the second text
    found = attend_plainly(labels, states)
    for text, size in enumerate((4, 2)):
        for label in range(3):
            expected = torch.zeros(5)
            for t in range(size):
                expected += (labels[label] @ states[text, t]) * states[text, t]
            torch.testing.assert_close(found[text, label], expected, rtol=1e-4, atol=1e-5)


def test_interaction_maps_the_row_of_products_padded_with_zeros_before():
    torch.manual_seed(0)
    labels, states, weight = torch.randn(3, 5), torch.randn(2, 4, 5), torch.randn(6, 7)
    states[1, 2:] = 0
    found = interact(labels, states, weight)
    assert found.shape == (2, 3, 6)
    for text, size in enumerate((4, 2)):
        for label in range(3):
            row = torch.zeros(7)
            for t in range(size):
                row[3 + t] = labels[label] @ states[text, t]
            torch.testing.assert_close(found[text, label], weight @ row, rtol=1e-4, atol=1e-5)


def test_texts_move_to_the_end_of_their_rows():
    states, real = torch.randn(3, 4, 2), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]).bool()
    moved = at_the_end(states * real[:, :, None], real)
    torch.testing.assert_close(moved[0], states[0])
    torch.testing.assert_close(moved[1, 2:], states[1, :2])
    torch.testing.assert_close(moved[2, 3], states[2, 0])
    assert not moved[1, :2].any() and not moved[2, :3].any()

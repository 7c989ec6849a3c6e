"""EXAM: the interaction by hand, one judge for all labels, places before a text."""

import torch

from denn_bench.encoders.words import WordEncoder
from denn_bench.systems import exam
from denn_bench.systems.exam import ExamNetwork, ExamParameters

from .made import packed

TEXTS = ["goal match team", "the violin", "oven goal the butter sauce of the chef"]
LABELS = 4


def network_of(**settings) -> ExamNetwork:
    """A small network in evaluation mode."""
    torch.manual_seed(0)
    encoder = WordEncoder.of(TEXTS, size=50, width=6, max_length=12, precision="float32")
    parameters = ExamParameters(word_width=6, state_width=5, hidden=3, max_length=12, **settings)
    return ExamNetwork(encoder, LABELS, parameters).eval()


@torch.no_grad()
def test_logits_are_the_formulas_by_hand():
    made = network_of()
    found = made(*packed(made, TEXTS))
    for row, text in enumerate(TEXTS):
        vectors, _ = made.encoder(*packed(made, [text]))
        states = vectors[0]
        for layer in made.layers.layers:
            states = layer(states)[0]  # (T,5)
        for label in range(LABELS):
            meetings = torch.zeros(12)  # all places, zeros before the text
            for place, state in enumerate(states, 12 - len(states)):
                meetings[place] = made.label_vectors[label] @ state
            expected = made.head(torch.relu(made.aggregate(meetings)))[0]
            torch.testing.assert_close(found[row, label], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_one_judge_for_all_labels():
    made = network_of()
    made.label_vectors[1] = made.label_vectors[0]
    found = made(*packed(made, TEXTS))
    torch.testing.assert_close(found[:, 1], found[:, 0])
    assert not torch.allclose(found[:, 2], found[:, 0], atol=1e-3)
    swapped = made.label_vectors[[3, 1, 2, 0]]
    made.label_vectors.copy_(swapped)
    torch.testing.assert_close(made(*packed(made, TEXTS)), found[:, [3, 1, 2, 0]])


def test_more_labels_add_only_their_vectors():
    encoder = WordEncoder(("a",), 6, 12)
    few, many = (ExamNetwork(encoder, labels, ExamParameters(state_width=5)) for labels in (4, 9))
    sizes = [sum(weight.numel() for weight in made.parameters()) for made in (few, many)]
    assert sizes[1] - sizes[0] == 5 * 5


def test_sizes_are_those_of_the_script():
    p = ExamParameters()
    assert (p.word_width, p.state_width, p.layers, p.hidden, p.max_length) == (256, 1024, 2, 60, 320)
    made = network_of(layers=2)
    assert [layer.bidirectional for layer in made.layers.layers] == [False, False]
    assert tuple(made.aggregate.weight.shape) == (3, 12) and tuple(made.head.weight.shape) == (1, 3)


def test_many_texts_go_through_in_turns(monkeypatch):
    together = network_of()
    monkeypatch.setattr(exam, "AT_ONCE", 2 * LABELS * 3)
    in_turns = network_of()
    assert in_turns.at_once == 2
    with torch.no_grad():
        torch.testing.assert_close(in_turns(*packed(in_turns, TEXTS)), together(*packed(together, TEXTS)))

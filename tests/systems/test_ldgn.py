"""LDGN: attention and both graphs by hand, the counts it starts from, and what is too large."""

import math

import pytest
import torch
import torch.nn.functional as F

import denn
from denn.errors import ConfigError
from denn_bench.encoders.words import WordEncoder
from denn_bench.systems import ldgn
from denn_bench.systems.ldgn import Ldgn, LdgnNetwork, LdgnParameters

from .made import packed

TEXTS = ["goal match team", "the violin", "oven goal the butter sauce of the chef"]
NAMES = ("the goal", "violin team", "unheard", "never seen")
LABELS = len(NAMES)
TRAIN = [
    denn.Document("goal", NAMES[:2]),
    denn.Document("violin", NAMES[:1]),
    denn.Document("oven", NAMES[1:3]),
    denn.Document("of"),
]


def network_of() -> LdgnNetwork:
    """A small network in evaluation mode."""
    torch.manual_seed(0)
    encoder = WordEncoder.of(TEXTS, size=50, width=6, max_length=20, precision="float32")
    made = LdgnNetwork(encoder, LABELS, LdgnParameters(word_width=6, graph_width=5, max_length=20, batch_size=2)).eval()
    made.prepare(denn.Corpus(train=TRAIN, labels=denn.types.LabelSpace(NAMES)))
    return made


def convolve(graph: list[list[float]], features: list[torch.Tensor]) -> list[torch.Tensor]:
    """Sum over neighbours by D^-½ (A + S) D^-½, S the larger of 1 and the sum of a label's edges; leaky relu."""
    size = len(graph)
    graph = [[graph[i][j] + (i == j) * max(1, sum(graph[i])) for j in range(size)] for i in range(size)]
    degree = [sum(row) for row in graph]
    return [
        F.leaky_relu(sum(graph[i][j] / math.sqrt(degree[i] * degree[j]) * features[j] for j in range(size)))
        for i in range(size)
    ]


@torch.no_grad()
def test_logits_are_the_formulas_by_hand():
    made = network_of()
    found = made(*packed(made, TEXTS))
    for row, text in enumerate(TEXTS):
        vectors, _ = made.encoder(*packed(made, [text]))
        states = made.layers.layers[0](vectors[0])[0]  # (T,12)
        components = []
        for label in range(LABELS):
            scores = [math.exp(made.label_vectors[label] @ state) for state in states]
            components.append(sum(s / sum(scores) * state for s, state in zip(scores, states, strict=True)))
        first = convolve(made.adjacency.tolist(), [made.static(u) for u in components])
        edges = [[float(torch.sigmoid(made.source(u) @ made.target(v))) for v in components] for u in components]
        second = convolve(edges, [made.dynamic(v) for v in first])
        for label in range(LABELS):
            both = torch.cat([first[label], second[label]])
            expected = made.head.weight[label] @ both + made.head.bias[label]
            torch.testing.assert_close(found[row, label], expected, rtol=1e-4, atol=1e-5)


def test_the_first_graph_is_counted_in_the_training_part():
    made = network_of()
    expected = torch.tensor([[0, 1 / 2, 0, 0], [1 / 2, 0, 1, 0], [0, 1 / 2, 0, 0], [0, 0, 0, 0]])
    torch.testing.assert_close(made.adjacency, expected)
    assert "adjacency" in made.state_dict() and not made.adjacency.requires_grad


def test_labels_start_from_their_words_in_both_directions():
    made = network_of()
    weight = made.encoder.embedding.weight
    start = (weight[made.encoder.index["violin"]] + weight[made.encoder.index["team"]]) / 2
    torch.testing.assert_close(made.label_vectors[1], torch.cat([start, start]))
    assert made.label_vectors.requires_grad


def test_attention_and_edges_differ_from_the_start():
    made = network_of()
    tokens = made.tokenize(TEXTS)
    with torch.no_grad():
        made.start(tokens, torch.ones(4, LABELS, dtype=torch.bool), made.settings, None, 3)
        states, real = made.read(*packed(made, TEXTS))
        scores = states @ made.label_vectors.T
        found = ldgn.attend(scores, real, states)
        edges = made.source(found) @ made.target(found).transpose(1, 2)
    assert scores[real].std() == pytest.approx(1, rel=1e-4)
    assert edges.square().mean().sqrt() == pytest.approx(1, rel=1e-4)


def test_many_texts_go_through_in_turns(monkeypatch):
    together = network_of()
    monkeypatch.setattr(ldgn, "MOST_BYTES", 4 * 2 * LABELS * 20)
    in_turns = network_of()
    assert in_turns.at_once == 2
    with torch.no_grad():
        torch.testing.assert_close(in_turns(*packed(in_turns, TEXTS)), together(*packed(together, TEXTS)))


def test_graphs_that_do_not_fit_are_refused_with_their_size(monkeypatch):
    encoder = WordEncoder(("a",), 6, 20)
    said = r"Got 4271 labels and batches of 256 texts: .* 18,679,235,584 bytes, .* batch_size to at most 109"
    with pytest.raises(ConfigError, match=said):
        Ldgn(LdgnParameters(batch_size=256)).make(encoder, 4271)
    with pytest.raises(ConfigError, match=r"batches of 1 texts: .* Use a method without them, such as lsan"):
        Ldgn(LdgnParameters(batch_size=1)).make(encoder, 50_000)
    monkeypatch.setattr(ldgn, "MOST_BYTES", 4 * 7 * 3 * 3)
    assert Ldgn(LdgnParameters(batch_size=7)).make(encoder, 3).head.out_features == 3
    with pytest.raises(ConfigError, match="batch_size to at most 7"):
        Ldgn(LdgnParameters(batch_size=8)).make(encoder, 3)

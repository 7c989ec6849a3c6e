"""LSAN: both attentions, their mixture and both scorers by hand, label vectors, sizes."""

import pytest
import torch
from torch import nn

import denn
from denn_bench.encoders.words import WordEncoder
from denn_bench.systems import lsan
from denn_bench.systems.lsan import LsanNetwork, LsanParameters

from .made import packed

TEXTS = ["goal match team", "the violin", "oven goal the butter sauce of the chef"]
NAMES = ("the goal", "violin_team", "unheard", "!?")


def network_of(scorer: str = "per_label") -> LsanNetwork:
    """A small network in evaluation mode."""
    torch.manual_seed(0)
    encoder = WordEncoder.of(TEXTS, size=50, width=6, max_length=20, precision="float32")
    parameters = LsanParameters(word_width=6, attention_width=5, scorer=scorer, scorer_width=4, max_length=20)
    made = LsanNetwork(encoder, len(NAMES), parameters).eval()
    made.prepare(denn.Corpus(train=[denn.Document("goal", NAMES)], labels=denn.types.LabelSpace(NAMES)))
    return made


def by_hand(made: LsanNetwork, text: str) -> list[torch.Tensor]:
    """Mix both attentions label by label and word by word, for one text alone."""
    vectors, _ = made.encoder(*packed(made, [text]))
    states = made.layers.layers[0](vectors[0])[0]  # (T,12)
    mixed = []
    for label in range(len(NAMES)):
        scores = [made.outer(torch.tanh(made.inner(state)))[label].exp() for state in states]
        own = sum(score / sum(scores) * state for score, state in zip(scores, states, strict=True))
        forward, backward = torch.zeros(6), torch.zeros(6)
        for state in states:
            forward = forward + (made.label_vectors[label] @ state[:6]) * state[:6]
            backward = backward + (made.label_vectors[label] @ state[6:]) * state[6:]
        by_label = torch.cat([forward, backward])
        a, b = torch.sigmoid(made.weigh_label(by_label)), torch.sigmoid(made.weigh_self(own))
        a, b = a / (a + b), b / (a + b)
        mixed.append(a * by_label + b * own)
    return mixed


@torch.no_grad()
def test_logits_are_the_formulas_by_hand():
    paper, code = network_of(), network_of("mean")
    found, averaged = paper(*packed(paper, TEXTS)), code(*packed(code, TEXTS))
    assert found.shape == averaged.shape == (3, len(NAMES))
    for row, text in enumerate(TEXTS):
        expected = torch.cat([paper.head(view) for view in by_hand(paper, text)])  # one scorer for every label
        torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-5)
        mean = torch.stack(by_hand(code, text)).mean(0)
        torch.testing.assert_close(averaged[row], code.head(mean), rtol=1e-4, atol=1e-5)


def test_label_vectors_are_means_of_words_and_frozen():
    made = network_of()
    word = {name: made.encoder.embedding.weight[made.encoder.index[name]] for name in ("the", "goal", "violin", "team")}
    torch.testing.assert_close(made.label_vectors[0], (word["the"] + word["goal"]) / 2)
    torch.testing.assert_close(made.label_vectors[1], (word["violin"] + word["team"]) / 2)
    assert made.label_vectors[2:].any(dim=1).all() and not made.label_vectors.requires_grad
    assert "label_vectors" in made.state_dict()


def test_many_texts_go_through_in_turns(monkeypatch):
    together = network_of()
    monkeypatch.setattr(lsan, "AT_ONCE", 2 * len(NAMES) * 20)
    in_turns = network_of()
    assert in_turns.at_once == 2 and together.at_once > 2
    with torch.no_grad():
        torch.testing.assert_close(in_turns(*packed(in_turns, TEXTS)), together(*packed(together, TEXTS)))


def test_sizes_on_aapd_are_the_published_ones():
    encoder = WordEncoder(("a",), 300, 500)
    made = LsanNetwork(encoder, 54, LsanParameters(scorer="mean"))
    paper = LsanNetwork(encoder, 54, LsanParameters())

    def size(*modules: nn.Module) -> int:
        return sum(weight.numel() for module in modules for weight in module.parameters())

    assert size(made.layers) == 1_444_800
    assert size(made.inner) == 120_200
    assert size(made.outer) == 10_854
    assert size(made.weigh_label, made.weigh_self) == 1_202
    assert size(made.head) == 32_454
    assert made.label_vectors.numel() == 16_200
    assert size(made) - size(made.encoder) == 1_444_800 + 120_200 + 10_854 + 1_202 + 32_454
    assert size(paper.head) == 600 * 256 + 256 + 256 + 1


def test_adam_has_the_moments_of_the_code():
    made = network_of()
    groups = made.groups(made.settings)
    assert [group["betas"] for group in groups] == [(0.9, 0.99)] * 2
    assert sum(len(group["params"]) for group in groups) == len(list(made.parameters()))


@pytest.mark.slow
def test_the_mean_of_all_labels_learns_and_survives_disk(tiny_corpus, tmp_path):
    sizes = {"word_width": 16, "attention_width": 16, "scorer": "mean", "dropout": 0.0}
    training = {"learning_rate": 2e-2, "batch_size": 16, "epochs": 15, "device": "cpu", "precision": "float32"}
    with denn.train(tiny_corpus, method="lsan", out=tmp_path / "model", **sizes, **training) as model:
        assert model.card.metrics["micro_f1"] > 0.6
        expected = model.scores(["goal", "violin oven"]).final
    with denn.load(tmp_path / "model") as again:
        assert torch.equal(again.scores(["goal", "violin oven"]).final, expected)

"""LEAM: both variants by hand, the labels' own loss, what padding may not change, and what is too large."""

import math

import pytest
import torch
import torch.nn.functional as F

import denn
from denn.errors import ConfigError
from denn.training.network import Batch
from denn_bench.encoders.words import WordEncoder
from denn_bench.systems import leam
from denn_bench.systems.leam import Leam, LeamParameters

from .made import packed

TEXTS = ["goal match team", "the violin", "oven goal the butter sauce of the chef"]
NAMES = ("the goal", "violin team", "unheard")


def network_of(variant: str, **settings):
    """A small network in evaluation mode."""
    torch.manual_seed(0)
    encoder = WordEncoder.of(TEXTS, size=50, width=6, max_length=20, precision="float32")
    parameters = LeamParameters(variant=variant, word_width=6, hidden=5, window=4, label_window=5, **settings)
    made = Leam(parameters).make(encoder, len(NAMES)).eval()
    made.prepare(denn.Corpus(train=[denn.Document("goal", NAMES)], labels=denn.types.LabelSpace(NAMES)))
    return made


def convolve(convolution, rows: torch.Tensor, before: int) -> torch.Tensor:
    """Sum over windows of (T,c) rows that begin `before` places earlier, zeros around; relu."""
    out = torch.zeros(len(rows), convolution.out_channels)
    for place in range(len(rows)):
        out[place] = convolution.bias
        for offset in range(convolution.kernel_size[0]):
            other = place - before + offset
            if 0 <= other < len(rows):
                out[place] += convolution.weight[:, :, offset] @ rows[other]
    return out.clamp(min=0)


@torch.no_grad()
def test_per_label_logits_are_the_formulas_by_hand():
    made = network_of("per_label")
    found = made(*packed(made, TEXTS))
    for row, text in enumerate(TEXTS):
        words, _ = made.encoder(*packed(made, [text]))
        states = convolve(made.convolution, words[0], before=1)  # windows of 4: one word before, two behind
        for label in range(len(NAMES)):
            scores = [math.exp(made.label_vectors[label] @ state) for state in states]
            seen = sum(score / sum(scores) * state for score, state in zip(scores, states, strict=True))
            expected = made.head.weight[label] @ seen + made.head.bias[label]
            torch.testing.assert_close(found[row, label], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_joint_logits_are_the_formulas_by_hand():
    made = network_of("joint")
    found = made(*packed(made, TEXTS))
    for row, text in enumerate(TEXTS):
        words = made.encoder(*packed(made, [text]))[0][0]  # (T,6)
        cosine = torch.stack([F.cosine_similarity(word[None], made.label_vectors) for word in words])  # (T,L)
        nearest = convolve(made.convolution, cosine, before=2).max(1).values.tolist()
        whole = sum(math.exp(value) for value in nearest)
        summed = sum(math.exp(value) / whole * word for value, word in zip(nearest, words, strict=True))
        torch.testing.assert_close(found[row], made.head(torch.relu(made.hidden(summed))), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
def test_labels_must_be_classified_as_themselves(weight):
    made = network_of("joint", label_weight=weight)
    ids, layout = packed(made, TEXTS)
    gold = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 1]]).bool()
    loss = made.loss(Batch(ids, layout, gold, None))

    def entropy(logit: float, wanted: bool) -> float:
        chance = 1 / (1 + math.exp(-logit))
        return -math.log(chance if wanted else 1 - chance)

    texts, labels = made(ids, layout).tolist(), made.classify(made.label_vectors).tolist()
    cells = [(i, j) for i in range(3) for j in range(3)]
    expected = sum(entropy(texts[i][j], bool(gold[i, j])) for i, j in cells) / 3
    expected += weight * sum(entropy(labels[i][j], i == j) for i, j in cells) / 3
    assert math.isclose(loss.item(), expected, rel_tol=1e-5)


def test_the_default_has_no_loss_of_the_labels():
    made = network_of("per_label")
    ids, layout = packed(made, TEXTS)
    gold = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 1]]).bool()
    expected = F.binary_cross_entropy_with_logits(made(ids, layout), gold.float(), reduction="sum") / 3
    torch.testing.assert_close(made.loss(Batch(ids, layout, gold, None)), expected)
    assert LeamParameters().variant == "per_label"


def test_labels_start_from_their_words_and_train():
    for variant in ("joint", "per_label"):
        made = network_of(variant)
        weight = made.encoder.embedding.weight
        start = (weight[made.encoder.index["violin"]] + weight[made.encoder.index["team"]]) / 2
        torch.testing.assert_close(made.label_vectors[1], start)
        made.loss(Batch(*packed(made, TEXTS), torch.ones(3, 3, dtype=torch.bool), None)).backward()
        assert made.label_vectors.grad.any(dim=1).all()


def test_many_texts_go_through_in_turns(monkeypatch):
    together = network_of("per_label")
    monkeypatch.setattr(leam, "AT_ONCE", 2 * len(NAMES) * 20)
    in_turns = network_of("per_label")
    assert in_turns.at_once == 2
    with torch.no_grad():
        torch.testing.assert_close(in_turns(*packed(in_turns, TEXTS)), together(*packed(together, TEXTS)))


def test_too_many_labels_for_the_joint_variant(monkeypatch):
    encoder = WordEncoder(("a",), 6, 20)
    with pytest.raises(ConfigError, match=r"Got 4271 labels, .* 1,003,279,255 weights; expected at most 200,000,000"):
        Leam(LeamParameters(variant="joint")).make(encoder, 4271)
    assert Leam(LeamParameters()).make(encoder, 4271).head.out_features == 4271
    monkeypatch.setattr(leam, "MOST_WEIGHTS", 3 * 3 * 5)
    assert Leam(LeamParameters(variant="joint", label_window=5)).make(encoder, 3).head.out_features == 3
    with pytest.raises(ConfigError, match="Got 4 labels"):
        Leam(LeamParameters(variant="joint", label_window=5)).make(encoder, 4)


@pytest.mark.slow
def test_the_joint_variant_learns_and_survives_disk(tiny_corpus, tmp_path):
    settings = {"variant": "joint", "word_width": 32, "learning_rate": 1e-2, "batch_size": 16, "epochs": 20}
    settings |= {"device": "cpu", "precision": "float32"}
    with denn.train(tiny_corpus, method="leam", out=tmp_path / "model", **settings) as model:
        assert model.card.metrics["micro_f1"] > 0.7
        expected = model.scores(["goal", "", "violin oven and " * 9]).final
        for row, text in enumerate(["goal", "", "violin oven and " * 9]):
            torch.testing.assert_close(model.scores([text]).final[0], expected[row], rtol=0, atol=1e-5)
    with denn.load(tmp_path / "model") as again:
        assert torch.equal(again.scores(["goal", "", "violin oven and " * 9]).final, expected)

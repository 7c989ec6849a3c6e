"""ML-Reasoner: its rounds in loops, its parameters, the gradient through them, and the convolutions over words."""

import math

import pytest
import torch

import denn
from denn.config import make_recipe
from denn.encoders.transformer import TransformerEncoder
from denn_bench.encoders.words import WordEncoder
from denn_bench.systems.mlr import WIDTHS, MlrNetwork, MlrTextCnnNetwork, Reasoner, over_rounds

TEXTS = ["goal match coach of the team with oven butter", "violin", "", "kyoto comet drizzle"]


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


def rounds_by_loops(reasoner, text, plain, rounds):
    """Return the logits of every round for one text, one number at a time."""
    vectors = reasoner.label_vectors.tolist()
    attention, bias = reasoner.attention.weight[0].tolist(), reasoner.attention.bias.item()
    context_map = reasoner.context.weight.tolist()
    labels, width = len(vectors), len(vectors[0])
    believed, found = [0.0] * labels, []
    for _ in range(rounds):
        scaled = [[believed[j] * x for x in vectors[j]] for j in range(labels)]  # l'
        scores = [sum(w * x for w, x in zip(attention, [*text, *scaled[j]], strict=True)) + bias for j in range(labels)]
        total = sum(math.exp(score) for score in scores)
        attended = [sum(math.exp(scores[j]) / total * scaled[j][i] for j in range(labels)) for i in range(width)]
        logits = [plain[c] + sum(w * x for w, x in zip(context_map[c], attended, strict=True)) for c in range(labels)]
        believed = [sigmoid(logit) for logit in logits]
        found.append(logits)
    return found


def test_the_rounds_are_those_of_the_paper():
    torch.manual_seed(0)
    reasoner = Reasoner(width=4, labels=5, label_width=3)
    with torch.no_grad():
        for weight in reasoner.parameters():
            weight.copy_(2 * torch.randn_like(weight))
    text, plain = torch.randn(2, 4), torch.randn(2, 5)
    found = reasoner(text, plain, 3).detach()
    for row in range(2):
        expected = rounds_by_loops(reasoner, text[row].tolist(), plain[row].tolist(), 3)
        torch.testing.assert_close(found[:, row], torch.tensor(expected), rtol=1e-4, atol=1e-5)
    assert torch.equal(found[0], plain), "the first round knows of no label"
    assert not torch.allclose(found[1], found[2], atol=1e-2)


def test_the_loss_is_the_mean_over_rounds_and_its_gradient_goes_through_them():
    logits, labels = torch.randn(2, 4, 3), torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]).bool()
    expected = 0.0
    for t in range(2):
        for n in range(3):  # the fourth document is padding
            for c in range(3):
                p = sigmoid(float(logits[t, n, c]))
                expected -= math.log(p if labels[n, c] else 1 - p) / 18
    assert float(over_rounds(logits, labels)) == pytest.approx(expected, rel=1e-5)
    reasoner, plain = Reasoner(4, 3, 5), torch.randn(2, 3, requires_grad=True)
    (through,) = torch.autograd.grad((reasoner(torch.randn(2, 4), plain, 2)[1] - plain).sum(), plain)
    assert bool((through != 0).any())


@pytest.fixture
def on_transformer(tiny_encoder):
    """A function that makes the network on the tiny BERT, 32 wide."""

    def make(labels=6, **settings):
        encoder = TransformerEncoder.load(str(tiny_encoder), precision="float32")
        return MlrNetwork(encoder, labels, make_recipe("mlr", settings).parameters).eval()

    return make


@pytest.fixture
def on_words():
    """A network on words, 8 filters of each width."""
    encoder = WordEncoder.of(TEXTS, size=50, width=6, max_length=20)
    return MlrTextCnnNetwork(encoder, 5, make_recipe("mlr-textcnn", {"filters": 8, "label_width": 7}).parameters).eval()


def test_parameters_beyond_an_encoder_with_a_head(on_transformer, on_words):
    network = on_transformer()
    sizes = {name: weight.numel() for name, weight in network.named_parameters() if not name.startswith("encoder.")}
    head = sizes.pop("head.weight") + sizes.pop("head.bias")
    assert head == 32 * 6 + 6
    assert sum(sizes.values()) == (32 * 32 + 32) + 6 * 300 + (32 + 300 + 1) + 300 * 6
    reasoner = sum(weight.numel() for weight in on_words.reasoner.parameters())
    assert reasoner == (24 * 24 + 24) + 5 * 7 + (24 + 7 + 1) + 7 * 5


def test_it_begins_as_the_plain_classifier(on_transformer):
    network = on_transformer(rounds=1)
    ids, layout = network.tokenize(TEXTS).pack(torch.arange(4))
    expected = network.head(network.scaled_embeddings(ids, layout))
    torch.testing.assert_close(network(ids, layout), expected)


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_scores_are_those_of_the_last_round(on_transformer, rounds):
    network = on_transformer(rounds=rounds)
    ids, layout = network.tokenize(TEXTS).pack(torch.arange(4))
    every = network.reason(ids, layout)
    assert every.shape == (rounds, 4, 6)
    torch.testing.assert_close(network.infer(ids, layout)["final"], torch.sigmoid(every[-1]))


def test_the_number_of_labels_costs_no_cube(on_transformer):
    network = on_transformer(labels=4271, rounds=2)
    ids, layout = network.tokenize(TEXTS * 8).pack(torch.arange(32))  # (32, 4271, 300) floats would be 164 MB a round
    assert network.reason(ids, layout).shape == (2, 32, 4271)


def test_a_filter_answers_with_its_strongest_place_in_the_text(on_words):
    tokens = on_words.tokenize(TEXTS)
    found = on_words.features(*tokens.pack(torch.arange(len(TEXTS)))).detach()
    table = on_words.encoder.embedding.weight.detach()
    for row in range(len(TEXTS)):
        words = table[tokens.flat[tokens.offsets[row] : tokens.offsets[row + 1]].long()]
        answers = []
        for size, convolution in zip(WIDTHS, on_words.convolutions, strict=True):
            padded = torch.cat([words, torch.zeros(max(0, size - len(words)), 6)])
            for weight, bias in zip(convolution.weight.detach(), convolution.bias.detach(), strict=True):
                places = range(len(padded) - size + 1)
                answers.append(max(0.0, *(float((weight.T * padded[p : p + size]).sum() + bias) for p in places)))
        torch.testing.assert_close(found[row], torch.tensor(answers), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 3])
def test_other_numbers_of_rounds_learn_too(tiny_corpus, tiny_settings, tmp_path, rounds):
    settings = {name: value for name, value in tiny_settings.items() if name not in ("k", "gamma")}
    with denn.train(tiny_corpus, method="mlr", out=tmp_path / "m", rounds=rounds, **settings) as model:
        assert model.evaluate(tiny_corpus.test).systems["final"]["tuned"]["micro_f1"] > 0.6

"""CORE: its attention by hand, padding without weight, its size, its loss and its learning rates."""

import math

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

import denn
from denn.encoders.tokenizer_file import load_tokenizer
from denn.encoders.transformer import TransformerEncoder
from denn.errors import ConfigError
from denn.training.network import Batch
from denn_bench.measure import _parameters
from denn_bench.systems.core_network import CORE, CoreNetwork, CoreParameters, summed_loss
from denn_bench.systems.label_tokens import States
from denn_bench.systems.laco import ConditionalNetwork, ConditionalParameters, PairNetwork, PairParameters

pytestmark = pytest.mark.slow  # transformers

TEXTS = ["goal match", "", "the violin and the oven in kyoto with a comet", "goal " * 100]


@pytest.fixture
def make(tiny_encoder, tiny_corpus):
    """A function that makes a network for the tiny corpus."""

    def network(**extra) -> CoreNetwork:
        encoder = TransformerEncoder.load(str(tiny_encoder), max_length=30, precision="float32")
        with torch.random.fork_rng():
            torch.manual_seed(0)
            made = CORE(CoreParameters(**extra)).make(encoder, len(tiny_corpus.labels))
            made.prepare(tiny_corpus)
        return made.eval()

    return network


@pytest.fixture(scope="module")
def as_wide_as_bert(tiny_encoder) -> TransformerEncoder:
    """An encoder of one layer, 768 wide."""
    tokenizer = load_tokenizer(tiny_encoder)
    sizes = {"hidden_size": 768, "num_hidden_layers": 1, "num_attention_heads": 12, "intermediate_size": 16}
    config = BertConfig(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=128, **sizes)
    return TransformerEncoder(BertModel(config, add_pooling_layer=False), tokenizer, pooling="mean", max_length=128)


def states_of(network, texts=TEXTS) -> States:
    with torch.no_grad():
        return network.read(*network.tokenize(texts).pack(torch.arange(len(texts))))


def size_of(module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def cosine(a, b) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def weights_by_hand(network, text, labels) -> list[float]:
    """Weigh the (T,d) tokens of one text, one by one, with a convolution over nine tokens."""
    kernel, bias, count = network.convolution.weight, network.convolution.bias, len(labels)
    likeness = [[cosine(token, label) for label in labels] for token in text]
    weights = []
    for place in range(len(text)):
        channels = []
        for out in range(count):
            total = float(bias[out])
            for step in range(9):
                if 0 <= place + step - 4 < len(text):
                    near = likeness[place + step - 4]
                    total += sum(float(kernel[out, label, step]) * near[label] for label in range(count))
            channels.append(max(0.0, total))
        weights.append(math.tanh(max(channels)))
    return weights


def weights_on_the_plane(network, text, labels) -> list[float]:
    """The same with a convolution over ten tokens and ten labels, four before and five behind."""
    kernel, bias, count = network.convolution.weight, network.convolution.bias, len(labels)
    plane = torch.zeros(len(text) + 9, count + 9)
    for place in range(len(text)):
        for label in range(count):
            plane[place + 4, label + 4] = cosine(text[place], labels[label])
    weights = []
    for place in range(len(text)):
        found = [
            float((kernel[out, 0] * plane[place : place + 10, label : label + 10]).sum() + bias[out])
            for out in range(count)
            for label in range(count)
        ]
        weights.append(math.tanh(max(0.0, *found)))
    return weights


@torch.no_grad()
@pytest.mark.parametrize(("convolution", "by_hand"), [("tokens", weights_by_hand), ("plane", weights_on_the_plane)])
def test_attention_and_logits_are_those_of_loops(make, convolution, by_hand):
    network = make(convolution=convolution)
    states = states_of(network)
    weights, logits = network.attention(states), network.classify(states)
    assert float(weights.max()) > 0
    for row in range(len(TEXTS)):
        size = int(states.real[row].sum())
        expected = by_hand(network, states.text[row, :size], states.labels[row])
        assert weights[row, :size].tolist() == pytest.approx(expected, abs=1e-5)
        document = sum(a * token / token.norm() for a, token in zip(expected, states.text[row, :size], strict=True))
        torch.testing.assert_close(logits[row], network.head(document), rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("convolution", ["tokens", "plane"])
def test_padding_weighs_nothing_and_changes_nothing(make, convolution):
    network = make(convolution=convolution)
    network.convolution.bias.fill_(0.5)  # would give padding a weight
    states = states_of(network)
    weights, logits = network.attention(states), network.classify(states)
    assert not weights[~states.real].any() and bool((weights[states.real] > 0).any())
    for row, text in enumerate(TEXTS):
        alone = states_of(network, [text])
        size = alone.real.shape[1]
        assert bool(alone.real.all())
        torch.testing.assert_close(network.attention(alone)[0], weights[row, :size], rtol=0, atol=1e-5)
        torch.testing.assert_close(network.classify(alone)[0], logits[row], rtol=0, atol=1e-4)


def test_the_loss_is_a_sum_over_labels_and_a_mean_over_texts(make):
    logits, labels = torch.tensor([[0.0, 2.0], [-1.0, 3.0]]), torch.tensor([[True, False], [False, True]])
    rows = [math.log(2) + math.log(1 + math.exp(2)), math.log(1 + math.exp(-1)) + math.log(1 + math.exp(-3))]
    assert float(summed_loss(logits, labels)) == pytest.approx(sum(rows) / 2)
    network = make()
    ids, layout = network.tokenize(TEXTS).pack(torch.arange(4))
    gold = torch.rand(4, len(network.label_ids), generator=torch.Generator().manual_seed(0)) < 0.5
    expected = summed_loss(network(ids, layout), gold)
    torch.testing.assert_close(network.loss(Batch(ids, layout, gold, None)), expected)
    few = network.loss(Batch(ids, layout, gold[:3], None))  # the last document is padding
    torch.testing.assert_close(few, summed_loss(network(ids, layout)[:3], gold[:3]))


def test_gradients_reach_everything_and_are_finite(make):
    network = make()
    ids, layout = network.tokenize(TEXTS).pack(torch.arange(4))
    gold = torch.zeros(4, len(network.label_ids), dtype=torch.bool)
    network.loss(Batch(ids, layout, gold, None)).backward()
    for name, weight in network.named_parameters():
        assert weight.grad is not None and bool(weight.grad.isfinite().all()), name
    assert bool(network.convolution.weight.grad.any())


@pytest.mark.parametrize(
    ("network", "parameters", "extra"),
    [
        (CoreNetwork, CoreParameters(), {54: 26_298, 103: 95_584}),
        (CoreNetwork, CoreParameters(convolution="plane"), {54: 5_454, 103: 10_403}),
        (PairNetwork, PairParameters(), {54: 27_834, 103: 97_120}),
        (ConditionalNetwork, ConditionalParameters(), {54: 27_834, 103: 97_120}),
    ],
)
def test_extra_parameters_are_those_of_the_papers_table(as_wide_as_bert, network, parameters, extra):
    for labels, expected in extra.items():
        made = network(as_wide_as_bert, labels, parameters)
        assert _parameters(made) == {"encoder": size_of(made.encoder), "head": 769 * labels, "extra": expected}


def test_rates_fall_from_layer_to_layer(make):
    network, parameters = make(), CoreParameters(learning_rate=1e-3, head_learning_rate=1e-2, layer_decay=0.5)
    groups = network.groups(parameters)
    rates = {id(weight): group["lr"] for group in groups for weight in group["params"]}
    model = network.encoder.model
    for part, rate in (
        (model.embeddings, 1e-3 / 16), (model.encoder.layer[0], 1e-3 / 8), (model.encoder.layer[1], 1e-3 / 4),
        (network.convolution, 1e-2), (network.head, 1e-2),
    ):  # fmt: skip
        assert {rates[id(weight)] for weight in part.parameters()} == {rate}
    assert rates[id(network.token_vectors)] == 1e-3  # the labels' vectors are new
    weights = [weight for group in groups for weight in group["params"]]
    assert len(weights) == len(rates) == len(list(network.parameters()))


def test_the_bias_starts_at_the_log_odds(make):
    network = make()
    labels = torch.tensor([[1, 0, 0, 1, 1, 0], [1, 0, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0]]).bool()
    network.start(None, labels, None, None, 4)
    odds = [7, 1 / 7, 1, 3, 1 / 3, 1 / 7]  # all or none of four count as half a text less or more
    assert network.head.bias.tolist() == pytest.approx([math.log(value) for value in odds])


def test_biases_and_normalisation_do_not_decay(make):
    network, parameters = make(), CoreParameters()
    decays = {id(weight): group["weight_decay"] for group in network.groups(parameters) for weight in group["params"]}
    for name, weight in network.named_parameters():
        plain = name.endswith("bias") or "LayerNorm" in name
        assert decays[id(weight)] == (0.0 if plain else 0.01)
    assert (parameters.epsilon, parameters.clip) == (1e-6, 1.0)


def test_the_frozen_bias_of_mpnet_has_no_rate(tiny_mpnet, tiny_corpus):
    network = CoreNetwork(TransformerEncoder.load(str(tiny_mpnet), max_length=30), 6, CoreParameters())
    trained = {id(weight) for group in network.groups(CoreParameters()) for weight in group["params"]}
    assert id(network.encoder.model.encoder.relative_attention_bias.weight) not in trained
    assert len(trained) == sum(weight.requires_grad for weight in network.parameters())


def test_too_many_labels_are_refused_before_training(tiny_encoder, tmp_path):
    documents = [denn.Document(f"goal {i}", (f"label {i}",), str(i)) for i in range(27)]
    with pytest.raises(ConfigError, match=r"Got 27 labels and a length of 30 tokens: .* such as bert"):
        denn.train(
            denn.Corpus(train=documents), method="core", out=tmp_path / "m", encoder=str(tiny_encoder), max_length=30
        )


def test_the_convolution_is_over_tokens_by_default(make):
    assert isinstance(make().convolution, nn.Conv1d) and isinstance(make(convolution="plane").convolution, nn.Conv2d)

"""SpanEmo: names before the text, states of first pieces, and the correlation loss in loops."""

import math

import pytest
import torch

import denn
from denn.encoders.transformer import TransformerEncoder
from denn.errors import ConfigError
from denn.training.network import Batch
from denn_bench.systems.spanemo import SpanEmo, SpanEmoNetwork, SpanEmoParameters, correlation_loss

TEXTS = ["goal match", "", "the violin and the oven in kyoto with a comet", "goal " * 100]
NAMES = ("music", "goal match", " ", "Космос")  # five pieces, two, none, one that is unknown


@pytest.fixture
def corpus() -> denn.Corpus:
    documents = [denn.Document("goal", NAMES[: i + 1], str(i)) for i in range(len(NAMES))]
    return denn.Corpus(train=documents)


@pytest.fixture
def make(tiny_encoder, corpus):
    """A function that makes a network for the names above."""

    def network(max_length=30, **extra) -> SpanEmoNetwork:
        encoder = TransformerEncoder.load(str(tiny_encoder), max_length=max_length, precision="float32")
        with torch.random.fork_rng():
            torch.manual_seed(0)
            made = SpanEmo(SpanEmoParameters(**extra)).make(encoder, len(corpus.labels))
            made.prepare(corpus)
        return made.eval()

    return network


def test_names_come_before_every_text(make):
    network = make()
    tokens, plain = network.tokenize(TEXTS), network.encoder.tokenizer
    plain.no_truncation()
    start, end = plain.encode("").ids
    names = [*plain.encode("music").ids[1:-1], *plain.encode("goal match").ids[1:-1], end, plain.token_to_id("[UNK]")]
    assert len(names) == 9
    for row, text in enumerate(TEXTS):
        ids = tokens.flat[tokens.offsets[row] : tokens.offsets[row + 1]].tolist()
        whole = plain.encode(text).ids[1:-1]
        assert ids == [start, *names, end, *whole[: 30 - 12], end]
    assert network.places.tolist() == [1, 6, 8, 9]
    assert tokens.truncated == 1
    assert len(network.tokenize([])) == 0


@torch.no_grad()
def test_a_logit_comes_from_the_first_piece_of_the_name(make):
    network = make()
    ids, layout = network.tokenize(TEXTS).pack(torch.tensor([2, 0, 3, 1]))
    states, logits = network.encoder.states(ids, layout), network(ids, layout)
    for row, start in enumerate(layout.starts.tolist()[:-1]):
        for label, place in enumerate((1, 6, 8, 9)):
            expected = network.head(torch.tanh(network.hidden(states[start + place])))
            assert float(logits[row, label]) == pytest.approx(float(expected), abs=1e-5)


def correlation_in_loops(probabilities, labels) -> float:
    total = 0.0
    for row, gold in zip(probabilities.tolist(), labels.tolist(), strict=True):
        pairs = [
            math.exp(absent - present)
            for absent, no in zip(row, gold, strict=True)
            for present, yes in zip(row, gold, strict=True)
            if yes and not no
        ]
        total += sum(pairs) / len(pairs) if pairs else 0.0
    return total / len(labels)


@pytest.mark.parametrize("seed", range(3))
def test_the_correlation_loss_is_that_of_loops(seed):
    chance = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(6, 5, generator=chance)
    labels = torch.rand(6, 5, generator=chance) < 0.4
    labels[0], labels[1] = False, True  # no label, and every one
    found = float(correlation_loss(probabilities, labels))
    assert found == pytest.approx(correlation_in_loops(probabilities, labels), rel=1e-5)


def test_the_correlation_loss_of_one_document_written_out():
    probabilities, labels = torch.tensor([[0.9, 0.2, 0.4]]), torch.tensor([[True, False, False]])
    expected = (math.exp(0.2 - 0.9) + math.exp(0.4 - 0.9)) / 2
    assert float(correlation_loss(probabilities, labels)) == pytest.approx(expected)
    for gold in (True, False):
        assert float(correlation_loss(probabilities, torch.full((1, 3), gold))) == 0


@torch.no_grad()
@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_both_losses_are_mixed_by_the_share(make, share):
    network = make(correlation=share)
    ids, layout = network.tokenize(TEXTS).pack(torch.arange(4))
    labels = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    scores = torch.sigmoid(network(ids, layout))
    entropy = torch.nn.functional.binary_cross_entropy(scores, labels.float())
    expected = (1 - share) * float(entropy) + share * correlation_in_loops(scores, labels)
    assert float(network.loss(Batch(ids, layout, labels, None))) == pytest.approx(expected, rel=1e-5)
    few = network.loss(Batch(ids, layout, labels[:3], None))  # the last document is padding
    entropy = torch.nn.functional.binary_cross_entropy(scores[:3], labels[:3].float())
    expected = (1 - share) * float(entropy) + share * correlation_in_loops(scores[:3], labels[:3])
    assert float(few) == pytest.approx(expected, rel=1e-5)


def test_loading_needs_no_names(make, tmp_path):
    network = make()
    network.save(tmp_path)
    encoder = TransformerEncoder.load(str(tmp_path / "encoder"), max_length=30, precision="float32")
    again = SpanEmo(SpanEmoParameters()).make(encoder, len(NAMES))
    again.load(tmp_path)
    assert torch.equal(again.tokenize(TEXTS).flat, network.tokenize(TEXTS).flat)
    assert torch.equal(again.places, network.places)


def test_names_that_do_not_fit_are_refused_with_their_number(make):
    make(max_length=13)
    with pytest.raises(
        ConfigError, match=r"Got 4 labels and a length of 12 tokens: their names are 9 tokens .* most 8"
    ):
        make(max_length=12)
    with pytest.raises(ConfigError, match=r"Got 27 labels and a length of 30 tokens: every label is a token"):
        SpanEmo(SpanEmoParameters()).make(make().encoder, 27)


def test_the_bias_starts_at_the_log_odds_of_the_mean_share(make):
    network = make()
    network.start(None, torch.tensor([[1, 0, 0, 0], [1, 0, 0, 0]]).bool(), None, None, 2)
    assert network.head.bias.tolist() == pytest.approx([math.log(0.25 / 0.75)])


def test_the_rates_of_the_released_code_are_the_default(make):
    network = make()
    encoder, rest = network.groups(SpanEmoParameters())
    assert (encoder["lr"], rest["lr"]) == (2e-5, 1e-3)

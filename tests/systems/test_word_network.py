"""Networks with features for each label: gradients that Adam can use, and biases at the log-odds."""

import pytest
import torch

import denn
from denn.training.network import Batch
from denn_bench.encoders.words import WordEncoder
from denn_bench.systems.exam import Exam, ExamParameters
from denn_bench.systems.ldgn import Ldgn, LdgnParameters
from denn_bench.systems.leam import Leam, LeamParameters
from denn_bench.systems.lsan import Lsan, LsanParameters

LABELS = 300
TEXTS = [f"word{i} word{3 * i % 50} the word{7 * i % 50} of word{i + 1}" for i in range(50)]
KINDS = {
    "ldgn": (Ldgn, LdgnParameters, {"graph_width": 12}),
    "exam": (Exam, ExamParameters, {"state_width": 16, "hidden": 8}),
    "leam": (Leam, LeamParameters, {}),
    "leam, joint": (Leam, LeamParameters, {"variant": "joint", "hidden": 12, "label_window": 3}),
    "lsan": (Lsan, LsanParameters, {"attention_width": 8, "scorer_width": 8}),
    "lsan, mean": (Lsan, LsanParameters, {"attention_width": 8, "scorer": "mean"}),
}


@pytest.fixture(params=KINDS)
def started(request):
    """A network of each kind after `start`, with its training labels and a batch of its texts."""
    method, kind, settings = KINDS[request.param]
    torch.manual_seed(0)
    names = tuple(f"word{i} label" for i in range(LABELS))
    documents = [denn.Document(text, (names[i], names[(5 * i + 1) % LABELS])) for i, text in enumerate(TEXTS)]
    corpus = denn.Corpus(train=documents, labels=denn.types.LabelSpace(names))
    parameters = kind(word_width=16, max_length=12, **settings)
    encoder = WordEncoder.of(TEXTS, size=80, width=16, max_length=12, precision="float32")
    network = method(parameters).make(encoder, LABELS)
    network.prepare(corpus)
    tokens, labels = network.tokenize(TEXTS), corpus.labels.matrix(documents)
    network.start(tokens, labels, parameters, None, len(TEXTS))
    batch = Batch(*tokens.pack(torch.arange(len(TEXTS))), labels, None)
    return network, parameters, labels, batch


def test_every_gradient_is_far_above_epsilon(started):
    network, parameters, _, batch = started
    network.train().loss(batch).backward()
    sizes = {name: float(weight.grad.square().mean().sqrt()) for name, weight in network.named_parameters()}
    sizes.pop("outer.bias", None)  # the same for all words, so a softmax over them ignores it
    assert {name: size for name, size in sizes.items() if size < 1000 * parameters.epsilon} == {}


def test_the_loss_is_the_sum_over_labels(started):
    network, _, labels, batch = started
    network.eval()
    chances = torch.sigmoid(network(batch.ids, batch.layout)).clamp(1e-12, 1 - 1e-7)
    expected = -torch.where(labels, chances, 1 - chances).log().sum(1).mean()
    if hasattr(network, "hidden"):  # LEAM's joint form adds a loss of the labels themselves
        assert network.loss(batch) > expected
    else:
        torch.testing.assert_close(network.loss(batch), expected, rtol=1e-3, atol=1e-3)


def test_biases_start_at_the_log_odds(started):
    network, _, labels, _ = started
    shares = labels.double().mean(0)
    if len(network.bias) == 1:
        shares = shares.mean(0, keepdim=True)
    shares = shares.clamp(0.5 / len(TEXTS), 1 - 0.5 / len(TEXTS))
    torch.testing.assert_close(network.bias.double(), torch.log(shares / (1 - shares)), rtol=1e-4, atol=1e-4)

"""SCL and JSCL: what they add to cross-entropy, in loops over the network's embeddings, logits and label tokens."""

import math

import pytest
import torch

import denn
from denn.config import make_recipe
from denn.encoders.transformer import TransformerEncoder
from denn.errors import ConfigError
from denn.progress import Silent
from denn.registry import METHODS, lookup
from denn.training.session import Training

ROWS = torch.tensor([7, 1, 22, 2, 11, 0, 9])  # one has no labels, two pairs have the same


@pytest.fixture
def training(tiny_corpus, tiny_settings):
    """A function that makes the training of a method's tiny network, not yet begun, without dropout."""

    def make(method, corpus=tiny_corpus, **extra) -> Training:
        settings = {name: value for name, value in tiny_settings.items() if name not in ("k", "gamma")}
        made = lookup(METHODS, method, "method")(make_recipe(method, {**settings, **extra}).parameters)
        torch.manual_seed(0)
        encoder = TransformerEncoder.load(str(tiny_settings["encoder"]), max_length=64, precision="float32")
        network = made.make(encoder, len(corpus.labels)).eval()
        network.prepare(corpus)
        return Training(network, corpus, made.parameters)

    return make


def added(made: Training, rows=ROWS) -> float:
    """Return what the loss of rows is beyond (1 − α) times the cross-entropy."""
    ids, starts, labels, seeds = made.prepare(rows)
    layout = made.on_device.pack(rows[made.train_tokens.lengths[rows].argsort(stable=True)])[1]
    logits = made.network(ids, layout).detach()
    bce = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.float())
    return float(made.compute(ids, starts, labels, seeds).detach() - (1 - made.parameters.alpha) * bce)


def by_loops(vectors, weight_of, temperature, *, cosine=True) -> float:
    """Average −Σ w log share over the anchors, the weights of each anchor divided by their sum."""
    if cosine:
        vectors = vectors / vectors.norm(dim=1, keepdim=True)
    z = (vectors @ vectors.T / temperature).tolist()
    losses = []
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        total = sum(weight_of(i, j) for j in others)
        below = math.log(sum(math.exp(z[i][k]) for k in others))
        losses.append(-sum(weight_of(i, j) * (z[i][j] - below) for j in others) / total if total else 0.0)
    return sum(losses) / len(losses)


def sets_of(made: Training):
    return [set(made.corpus.train[row].labels) for row in ROWS.tolist()]


def index_of(sets):
    return lambda i, j: len(sets[i] & sets[j]) / max(len(sets[i] | sets[j]), 1)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_scl_is_over_texts_of_the_same_label_set(training, similarity):
    made = training("scl", alpha=0.3, temperature=0.4, similarity=similarity)
    made.network.scale.fill_(0.25)
    sets, h = sets_of(made), 0.25 * made.network.encode(made.train_tokens)[ROWS].double()
    expected = by_loops(h, lambda i, j: float(sets[i] == sets[j]), 0.4, cosine=similarity == "cosine")
    assert any(sets[i] == sets[j] for i in range(7) for j in range(i))
    assert added(made) == pytest.approx(0.3 * expected, rel=1e-3)


def test_jscl_is_over_embeddings_and_jspcl_over_logits(training):
    for contrast in ("jscl", "jspcl"):
        made = training("jscl", alpha=0.3, temperature=0.4, contrast=contrast)
        vectors = made.network.encode(made.train_tokens)[ROWS]
        if contrast == "jspcl":
            vectors = made.network.head(vectors).detach()
        expected = by_loops(vectors.double(), index_of(sets_of(made)), 0.4)
        assert added(made) == pytest.approx(0.3 * expected, rel=1e-3)


def test_the_form_of_the_code_weighs_the_denominator(training):
    made = training("jscl", alpha=0.3, temperature=0.4, form="code")
    sets, h = sets_of(made), made.network.encode(made.train_tokens)[ROWS].double()
    h = h / h.norm(dim=1, keepdim=True)
    z, index, total = (h @ h.T / 0.4).tolist(), index_of(sets), 0.0
    for i in range(7):
        others = [j for j in range(7) if j != i]
        below = math.log(1e-20 + sum(index(i, k) * math.exp(z[i][k]) for k in others))
        total -= sum(z[i][j] - below for j in others) / 6
    assert set() in sets  # whose row is the constant
    assert added(made) == pytest.approx(0.3 * total / 7, rel=1e-3)


def test_slcl_goes_label_by_label(training):
    made = training("jscl", alpha=0.3, temperature=0.4, contrast="slcl")
    sets, h = sets_of(made), made.network.encode(made.train_tokens)[ROWS].double()
    names = made.corpus.labels.names
    expected = sum(by_loops(h, lambda i, j, c=c: float((c in sets[i]) == (c in sets[j])), 0.4) for c in names)
    assert added(made) == pytest.approx(0.3 * expected / len(names), rel=1e-3)


def test_icl_contrasts_the_label_tokens_of_each_text(training):
    made = training("jscl", alpha=0.3, temperature=0.4, contrast="icl")
    states = made.network.read(*made.on_device.pack(ROWS))
    names, total = made.corpus.labels.names, 0.0
    for vectors, labels in zip(states.labels.detach().double(), sets_of(made), strict=True):
        total += by_loops(vectors, lambda c, d, of=labels: float((names[c] in of) == (names[d] in of)), 0.4)
    assert added(made) == pytest.approx(0.3 * total / len(ROWS), rel=1e-3)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_icl_classifies_the_pooled_tokens_of_the_text_alone(training, pooling):
    made = training("jscl", contrast="icl")
    network = made.network
    network.encoder.pooling = pooling
    network.scale.fill_(0.5)
    ids, layout = made.on_device.pack(ROWS)
    states, logits = network.read(ids, layout), network(ids, layout)
    for row, size in enumerate(layout.lengths):
        text = states.text[row, : size - len(network.label_ids) - 1]
        pooled = text.mean(0) if pooling == "mean" else text[0]
        torch.testing.assert_close(logits[row], network.head(0.5 * pooled), rtol=1e-4, atol=1e-5)


def test_icl_starts_like_the_plain_classifier(training, tmp_path):
    made = training("jscl", contrast="icl", embedding_norm=2.5)
    made.network.start(made.train_tokens, made.labels, made.parameters, Silent(), 512)
    pooled = made.network.pool(made.network.read(*made.on_device.pack(torch.arange(60))))
    assert float((made.network.scale * pooled).norm(dim=1).mean().detach()) == pytest.approx(2.5, rel=1e-4)
    share = made.labels.float().mean(0).clamp(0.5 / 60, 1 - 0.5 / 60)
    torch.testing.assert_close(made.network.head.bias.detach(), torch.logit(share))
    assert all(weight.requires_grad and not weight.is_inference() for weight in made.network.head.parameters())


@pytest.mark.parametrize("contrast", ["jscl", "jspcl", "slcl", "icl"])
def test_what_fills_a_pass_up_does_not_count(training, contrast):
    found = []
    for multiple in (1, 64):
        made = training("jscl", alpha=0.4, contrast=contrast)
        made.multiple = multiple
        loss = made.compute(*made.prepare(ROWS))
        weights = [weight for weight in made.network.parameters() if weight.requires_grad]
        found.append((loss, *torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("contrast", ["jscl", "jspcl", "slcl", "icl"])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_a_batch_of_one_has_a_finite_gradient(training, contrast, similarity):
    made = training("jscl", contrast=contrast, similarity=similarity)
    for row in (0, 1):
        made.compute(*made.prepare(torch.tensor([row]))).backward()
    assert all(w.grad is None or bool(w.grad.isfinite().all()) for w in made.network.parameters())


def test_there_are_no_parameters_beyond_the_classifier(training):
    names = {name for name, _ in training("jscl").network.named_parameters() if not name.startswith("encoder.")}
    assert names == {"head.weight", "head.bias"}


def test_what_does_not_go_together_is_refused(training, tiny_corpus):
    with pytest.raises(ConfigError, match="form 'code' with contrast 'slcl', expected 'jscl' or 'jspcl'"):
        training("jscl", contrast="slcl", form="code")
    with pytest.raises(ConfigError, match="Got head_start 3 with contrast 'icl', expected 0"):
        training("jscl", contrast="icl", head_start=3)
    many = denn.Corpus(train=[denn.Document("goal", tuple(f"label {n}" for n in range(80)))])
    with pytest.raises(ConfigError, match="Got 80 labels and a length of 64 tokens"):
        training("jscl", corpus=many, contrast="icl")


@pytest.mark.slow
@pytest.mark.parametrize("contrast", ["jspcl", "slcl", "icl"])
def test_every_contrast_trains_and_survives_disk(tiny_corpus, tiny_settings, tmp_path, contrast):
    settings = {name: value for name, value in tiny_settings.items() if name not in ("k", "gamma")}
    texts = [document.text for document in tiny_corpus.test]
    with denn.train(tiny_corpus, method="jscl", out=tmp_path / "m", contrast=contrast, **settings) as model:
        scores = model.scores(texts).final
        assert model.evaluate(tiny_corpus.test).systems["final"]["tuned"]["micro_f1"] > 0.6
    with denn.load(tmp_path / "m") as again:
        assert torch.equal(again.scores(texts).final, scores)

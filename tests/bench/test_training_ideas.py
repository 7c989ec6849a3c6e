"""The study of training ideas: its losses against sums in loops, and a run of every idea."""

import json
import math
import sys

import pytest
import torch

from denn import registry
from denn.config import make_recipe
from denn.errors import ConfigError
from denn.progress import Silent
from denn_bench.studies import training_ideas
from denn_bench.studies.training_ideas import IDEAS, asymmetric, stretch, zlpr


@pytest.fixture
def logits():
    return torch.tensor([[1.5, -0.5, 0.2], [-2.0, 3.0, 0.0]], dtype=torch.float64)


@pytest.fixture
def labels():
    return torch.tensor([[True, False, True], [False, False, False]])


def test_zlpr_is_its_definition(logits, labels):
    for found, scores, given in zip(zlpr(logits, labels), logits.tolist(), labels.tolist(), strict=True):
        others = sum(math.exp(score) for score, one in zip(scores, given, strict=True) if not one)
        own = sum(math.exp(-score) for score, one in zip(scores, given, strict=True) if one)
        assert float(found) == pytest.approx(math.log(1 + others) + math.log(1 + own))


def test_the_asymmetric_loss_is_its_definition(logits, labels):
    for found, scores, given in zip(asymmetric(logits, labels), logits.tolist(), labels.tolist(), strict=True):
        expected = 0.0
        for score, one in zip(scores, given, strict=True):
            share = 1 / (1 + math.exp(-score))
            shifted = max(share - 0.05, 0)
            expected -= math.log(share) if one else shifted**4 * math.log(1 - shifted)
        assert float(found) == pytest.approx(expected)


@pytest.fixture
def network(tiny_encoder, tiny_corpus):
    """Make the network of an idea for the tiny corpus."""
    settings = {"encoder": str(tiny_encoder), "max_length": 8, "alpha": 0, "precision": "float32", "device": "cpu"}
    parameters = make_recipe("denn", settings).parameters

    def make(idea):
        made = IDEAS[idea](parameters.new_encoder(tiny_corpus), len(tiny_corpus.labels), parameters)
        made.prepare(tiny_corpus)
        return made

    return make


def test_both_ends_keeps_the_last_tokens_of_long_texts(network):
    both, texts = network("both-ends"), ["match goal team vote law tax bank stock", "goal"]
    both.encoder.tokenizer.no_truncation()
    whole = [both.encoder.tokenizer.encode(text).ids for text in texts]
    long, short = (part.tolist() for part in torch.split(both.tokenize(texts).flat, [8, len(whole[1])]))
    assert len(whole[0]) > 8 and long == whole[0][:4] + whole[0][-4:]
    assert short == whole[1]


def test_the_head_starts_at_the_label_names(network, tiny_corpus):
    made = network("names")
    tokens = made.tokenize([document.text for document in tiny_corpus.train])
    labels = tiny_corpus.labels.matrix(tiny_corpus.train)
    made.start(tokens, labels, made.settings, Silent(), len(tokens))
    names = made.encoder.encode(made.tokenize(list(tiny_corpus.labels.names)))
    centred = names - names.mean(0)
    assert torch.cosine_similarity(made.head.weight, centred).min() > 0.999
    mean = made.scale * made.encoder.encode(tokens).mean(0)
    shares = labels.float().mean(0).clamp(min=0.5 / len(labels))
    assert made.head(mean).allclose(torch.logit(shares), atol=1e-4)


def test_long_texts_have_positions_between_the_known_ones(network):
    made, before = network("long"), network("none").encoder.model.embeddings.position_embeddings.weight
    first, places = made.encoder.first_position, made.encoder.model.embeddings.position_embeddings.weight
    assert torch.equal(places, before)  # there are enough for 16 tokens
    longest = 2 * (len(before) - first)
    stretch(made.encoder, longest)
    places = made.encoder.model.embeddings.position_embeddings.weight
    assert made.encoder.max_length == longest and len(places) == first + longest and places.requires_grad
    assert torch.equal(places[:first], before[:first])
    for place in range(longest):
        exact = place * (len(before) - first - 1) / (longest - 1)
        low, part = first + int(exact), exact - int(exact)
        expected = before[low] if part < 1e-9 else torch.lerp(before[low], before[low + 1], part)
        assert places[first + place].allclose(expected, atol=1e-5)
    tokens = made.tokenize(["match goal " * longest])
    assert len(tokens.flat) == longest and made.encode(tokens).isfinite().all()


@pytest.mark.parametrize("spread", [0.0, 3.0])
@torch.no_grad()
def test_each_label_attends_to_the_tokens(network, tiny_corpus, spread):
    made = network("label-attention").eval()
    torch.nn.init.normal_(made.queries, std=spread)
    tokens = made.tokenize(["match goal", "law tax bank stock vote"])
    ids, layout = tokens.pack(torch.arange(2))
    logits, states = made(ids, layout), made.scale * made.encoder.states(ids, layout)
    usual = made.classify(made.scaled_embeddings(ids, layout))
    assert logits.allclose(usual, atol=1e-5) == (spread == 0)  # it starts as the mean of the tokens
    for row, of_text in enumerate(states.split(list(layout.lengths))):
        for label in range(len(tiny_corpus.labels)):
            weights = [math.exp(float(made.queries[label] @ state) / made.encoder.width**0.5) for state in of_text]
            votes = [float(made.head.weight[label] @ state) for state in of_text]
            expected = sum(w * vote for w, vote in zip(weights, votes, strict=True)) / sum(weights)
            assert float(logits[row, label]) == pytest.approx(expected + float(made.head.bias[label]), abs=1e-3)


@pytest.mark.parametrize("change", [{"alpha": 0.1}, {"select": "combined"}])
def test_label_attention_refuses_what_it_cannot_learn_from(tiny_encoder, change):
    settings = {"encoder": str(tiny_encoder), "max_length": 8, "alpha": 0, "device": "cpu", **change}
    parameters = make_recipe("denn", settings).parameters
    with pytest.raises(ConfigError, match="learns from one view"):
        IDEAS["label-attention"](parameters.new_encoder(None), 3, parameters)


def test_every_idea_trains(tiny_corpus, tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.setitem(registry.CORPORA.own, "tiny", f"{__name__}:load")
    monkeypatch.setattr(sys.modules[__name__], "load", lambda folder: tiny_corpus, raising=False)
    out = tmp_path / "ideas.jsonl"
    settings = ["alpha=0", "epochs=2", "max_length=8", 'witnesses=["classifier", "neighbours"]', "device=cpu"]
    settings += ["precision=float32", "learning_rate=0.005", "head_learning_rate=0.05"]
    given = [part for setting in settings for part in ("--set", setting)]
    command = ["training_ideas", str(tmp_path), "--corpus", "tiny", "--encoder", str(tiny_encoder), "--out", str(out)]
    for _ in range(2):  # the second time, every run has its line
        monkeypatch.setattr(sys, "argv", [*command, *given, "--scores", str(tmp_path / "scores")])
        training_ideas.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["idea"] for row in rows] == list(IDEAS)
    without, *others = [row["systems"] for row in rows]
    assert all(other != without for other in others)
    assert (tmp_path / "scores" / f"tiny-defaults-{tiny_encoder.name}-zlpr-0" / "valid.npz").exists()

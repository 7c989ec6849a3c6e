"""OCD: learning from its own samples, the logistic decoder beside it, and decoding with its odds."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

import denn
from denn.errors import ConfigError
from denn.training.network import Batch
from denn_bench.core.beam import Beams, best_labels, label_marginals
from denn_bench.core.sets import optimal_completion_loss
from denn_bench.encoders.words import WordEncoder
from denn_bench.systems.ocd import Ocd, OcdNetwork, OcdParameters, rescored
from denn_bench.systems.rollout import write

from .made import packed, scattered
from .small import SMALL as SIZES

TEXTS = ["goal match team", "oven", "orbit rocket planet comet goal match", ""]
SMALL = OcdParameters(word_width=5, hidden=3, dropout=0.0, beam=40, precision="float32", logistic_width=4)
GOLD = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]]).bool()


def network(labels=3, **changes) -> OcdNetwork:
    torch.manual_seed(0)
    p = replace(SMALL, **changes)
    encoder = WordEncoder.of(TEXTS, size=20, width=p.word_width, max_length=9, precision=p.precision)
    made = Ocd(p).make(encoder, labels)
    return scattered(made)


def batch_of(made, texts=TEXTS, gold=GOLD) -> Batch:
    return Batch(*packed(made, texts), gold, None)


@torch.no_grad()
def test_the_loss_is_that_of_what_the_decoder_wrote():
    made = network(logistic_weight=0.0)
    memory, state = made.read(*packed(made, TEXTS))
    torch.manual_seed(5)
    tokens, logits = write(lambda last, now: made.step(last, now, memory), state, limit=4, start=4, end=3)
    torch.manual_seed(5)
    assert float(made.loss(batch_of(made))) == pytest.approx(float(optimal_completion_loss(logits, tokens, GOLD)))
    losses = set()
    for seed in range(5):
        torch.manual_seed(seed)
        losses.add(round(float(made.loss(batch_of(made))), 6))
    assert len(losses) > 1  # no teacher: what is learnt depends on what was drawn


@torch.no_grad()
def test_the_logistic_decoder_adds_its_weighted_cross_entropy():
    found = []
    for weight in (1.0, 3.0):
        made = network(logistic_weight=weight)
        torch.manual_seed(5)
        found.append(float(made.loss(batch_of(made))))
    scores = made.infer(*packed(made, TEXTS))["logistic"]
    cross = 0.0
    for text, label in itertools.product(range(4), range(3)):
        p = float(scores[text, label])
        cross -= math.log(p if GOLD[text, label] else 1 - p) / 12
    assert found[1] - found[0] == pytest.approx(2 * cross, abs=1e-4)


@torch.no_grad()
def test_the_logistic_decoder_reads_the_last_real_word():
    made = network(logistic_layers=1)
    decoder = made.logistic
    norm = decoder.layers[1]
    norm.running_mean.normal_()
    norm.running_var.fill_(2.0)
    memory, _ = made.read(*packed(made, TEXTS))
    found = decoder(memory)
    for text, size in enumerate([3, 1, 6, 1]):
        states = memory.states[text, :size]
        x = decoder.layers[0](states[-1])
        x = (x - norm.running_mean) / math.sqrt(2.0 + norm.eps) * norm.weight + norm.bias
        query = decoder.back(torch.where(x > 0, x, 0.01 * x))
        shares = torch.softmax(states @ torch.tanh(decoder.attention.query(query)), 0)
        context = sum(share * state for share, state in zip(shares, states, strict=True))
        expected = decoder.head(torch.tanh(decoder.joined(torch.cat([query, context]))))
        assert torch.allclose(found[text], expected, atol=1e-5)


def test_batch_norm_keeps_half_of_what_was():
    made = network().train()
    norm, x = made.logistic.layers[1], torch.randn(6, 4)
    norm(x)
    assert torch.allclose(norm.running_mean, 0.5 * x.mean(0), atol=1e-6)


def test_a_batch_of_one_text_is_normalised_by_earlier_ones():
    made = network().train()
    made.loss(batch_of(made)).backward()
    kept = made.logistic.layers[1].running_mean.clone()
    loss = made.loss(batch_of(made, TEXTS[:1], GOLD[:1]))
    assert bool(loss.isfinite()) and torch.equal(made.logistic.layers[1].running_mean, kept)


def every_sequence(labels=3):
    return [(*some, labels) for size in range(labels + 1) for some in itertools.permutations(range(labels), size)]


def log_probability(made, text, sequence) -> float:
    """Go through a sequence step by step, alone; labels of earlier steps cannot be chosen."""
    memory, state = made.read(*packed(made, [text]))
    total, last = 0.0, made.start_token
    for place, token in enumerate(sequence):
        logits, state = made.step(torch.tensor([last]), state, memory)
        logits[0, list(sequence[:place])] = -math.inf
        total += float(torch.log_softmax(logits[0], 0)[token])
        last = token
    return total


@pytest.mark.parametrize("decoding", ["beam", "rescoring", "joint"])
@torch.no_grad()
def test_decoding_against_every_sequence(decoding):
    made = network(decoding=decoding)
    found = made.infer(*packed(made, TEXTS))
    for row, text in enumerate(TEXTS):
        odds = [p / (1 - p) for p in made.infer(*packed(made, [text]))["logistic"][0].tolist()]
        weights = {}
        for sequence in every_sequence():
            weight = 1.0 if decoding == "rescoring" else math.exp(log_probability(made, text, sequence))
            for label in sequence[:-1] if decoding != "beam" else ():
                weight *= odds[label]  # the end's are 1
            weights[sequence] = weight
        whole = sum(weights.values())
        expected = [sum(w for s, w in weights.items() if label in s) / whole for label in range(3)]
        assert found["final"][row].tolist() == pytest.approx(expected, abs=1e-4)
        best = max(weights, key=weights.__getitem__)  # with rescoring, all orders of a set are equally good
        assert found["sequence"][row].nonzero().flatten().tolist() == sorted(best[:-1])


@torch.no_grad()
def test_joint_decoding_finds_what_a_narrow_beam_would_lose():
    """The logistic decoder is sure of the label that the sequence decoder ranks last."""
    found = {}
    for decoding in ("beam", "rescoring", "joint"):
        made = network(decoding=decoding, beam=1)
        made.head.weight.zero_()
        made.head.bias.copy_(torch.tensor([2.0, 1.0, 0.0, 1.5]))
        made.logistic.head.weight.zero_()
        made.logistic.head.bias.copy_(torch.tensor([-4.0, -4.0, 8.0]))
        found[decoding] = made.infer(*packed(made, TEXTS))["sequence"][0].tolist()
    # Alone: label 0, then the end. Jointly: label 2 at log-odds 8, then the end, which costs least.
    assert found == {"beam": [1, 0, 0], "rescoring": [1, 0, 0], "joint": [0, 0, 1]}


def test_the_odds_alone_choose_among_the_beams():
    end = 3
    tokens = torch.tensor([[[0, 1, end], [2, end, end], [end, end, end], [1, 0, end]]])
    logs, odds = torch.tensor([[-1.0, -2.0, -9.0, -1.5]]), torch.tensor([[1.0, -3.5, -2.0]])
    found = rescored(Beams(tokens, logs, logs), odds)
    assert found.tokens[0].tolist() == tokens[0, [2, 1, 0, 3]].tolist()  # of equal ones, the likelier first
    assert found.logs[0].tolist() == found.scores[0].tolist() == [0.0, -2.0, -2.5, -2.5]
    assert best_labels(found, end)[0].tolist() == [0, 0, 0]


def test_rescoring_leaves_beams_that_do_not_exist_behind():
    tokens = torch.tensor([[[0, 3], [3, 3], [1, 1]]])
    logs = torch.tensor([[-0.1, -3.0, -math.inf]])
    found = rescored(Beams(tokens, logs, logs), torch.tensor([[-9.0, 9.0, 0.0]]))
    assert found.logs[0].tolist() == pytest.approx([0.0, -9.0, -math.inf])
    assert bool(label_marginals(found, 3).isfinite().all())


def test_dropout_and_widths_are_those_of_the_release():
    p = OcdParameters()
    assert (p.label_width, p.label_dropout, p.head_dropout) == (512, 0.5, 0.0)
    assert (p.batch_size, p.epochs, p.learning_rate, p.schedule) == (128, 50, 5e-4, "constant")
    made = network(label_width=7)
    assert made.label_vectors.embedding_dim == made.cells.cells[0].input_size == 7  # the context is not an input
    batch = batch_of(made)
    memory, state = made.eval().read(batch.ids, batch.layout)
    start = torch.full((len(memory.states),), made.start_token)
    made.train()
    made.p = replace(made.p, dropout=0.0, label_dropout=0.0)
    assert torch.equal(made.step(start, state, memory)[0], made.step(start, state, memory)[0])
    made.p = replace(made.p, label_dropout=0.5)
    assert not torch.equal(made.step(start, state, memory)[0], made.step(start, state, memory)[0])


@torch.no_grad()
def test_correct_labels_come_first_if_they_should():
    made = network(labels=3, roll_in="correct_first", logistic_weight=0.0, decoding="beam")
    memory, state = made.read(*packed(made, TEXTS))
    orders = set()
    for seed in range(10):
        torch.manual_seed(seed)
        tokens, logits = write(
            lambda last, now: made.step(last, now, memory), state, limit=4, start=4, end=3, first=GOLD
        )
        for row, gold in enumerate(GOLD):
            wanted = set(gold.nonzero().flatten().tolist())
            assert set(tokens[row, : len(wanted)].tolist()) == wanted
        orders.add(tuple(tokens[2, :3].tolist()))
        torch.manual_seed(seed)
        assert float(made.loss(batch_of(made))) == pytest.approx(float(optimal_completion_loss(logits, tokens, GOLD)))
    assert len(orders) > 1  # the decoder chooses the order


def test_writes_at_most_24_tokens():
    assert network(labels=60).limit == 24
    assert network(labels=3).limit == 4  # every label and the end
    made = network(labels=9, max_labels=None)
    made.prepare(denn.Corpus(train=[denn.Document("goal", ("a", "b", "c"))]))
    assert made.limit == 3 + 2 + 1


def test_the_logistic_decoder_starts_at_the_log_odds():
    made = network()
    made.start(None, GOLD, None, None, 4)
    assert made.logistic.head.bias.tolist() == pytest.approx([0.0, 0.0, 0.0])
    made.start(None, GOLD[:3], None, None, 3)
    assert made.logistic.head.bias.tolist() == pytest.approx([math.log(2), math.log(0.5), math.log(2)], abs=1e-6)
    network(logistic_weight=0.0).start(None, GOLD, None, None, 4)


def test_without_weight_there_is_no_logistic_decoder():
    made = network(logistic_weight=0.0)
    assert not any("logistic" in name for name in made.state_dict())
    assert set(made.infer(*packed(made, TEXTS))) == {"final", "sequence"}
    assert set(network().infer(*packed(made, TEXTS))) == {"final", "sequence", "logistic"}


@pytest.mark.parametrize("decoding", ["rescoring", "joint"])
def test_odds_need_the_logistic_decoder(decoding):
    with pytest.raises(ConfigError, match=f"'{decoding}' with logistic_weight 0.*Set logistic_weight=1"):
        network(logistic_weight=0.0, decoding=decoding)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_weight_learns_in_both_precisions(precision):
    made = network(precision=precision).train()
    with made.encoder.autocast():
        loss = made.loss(batch_of(made))
    loss.backward()
    assert loss.dtype == torch.float32 and all(weight.grad is not None for weight in made.parameters())
    for part in made.score(made.tokenize(TEXTS)).values():
        assert bool(((part >= 0) & (part <= 1)).all())


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"decoding": "joint"}, {"decoding": "rescoring"}, {"logistic_weight": 0.0}])
def test_options_learn_and_survive_disk(settings, tiny_corpus, tmp_path):
    sizes = {**SIZES["ocd"], "device": "cpu", "batch_size": 12, "epochs": 12, "learning_rate": 2e-2}
    with denn.train(tiny_corpus, method="ocd", out=tmp_path / "model", **sizes, **settings) as model:
        assert model.card.metrics["micro_f1"] > 0.6
        texts = [document.text for document in tiny_corpus.test]
        expected = model.scores(texts)
    with denn.load(tmp_path / "model") as again:
        assert torch.equal(again.scores(texts).final, expected.final)

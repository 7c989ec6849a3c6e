"""What sequence methods share: targets, losses, attention, states of the decoder, and search against teaching."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

import denn
from denn.core.metrics import multilabel_scores
from denn.training.network import Batch
from denn.training.session import Training, spread
from denn_bench.core.beam import label_marginals
from denn_bench.encoders.words import WordEncoder
from denn_bench.systems.seq2seq import Seq2Seq
from denn_bench.systems.sequences import (
    NOTHING,
    AdditiveAttention,
    Cells,
    DotAttention,
    Memory,
    SequenceNetwork,
    SequenceParameters,
    sequence_loss,
    target_sequences,
)

from .made import packed, scattered

TEXTS = ["goal match team", "oven", "orbit rocket planet comet goal match", ""]
SMALL = SequenceParameters(word_width=5, hidden=3, dropout=0.0, beam=40, precision="float32")


def network(labels=3, kind="gru", p=SMALL, attention=None) -> SequenceNetwork:
    torch.manual_seed(0)
    encoder = WordEncoder.of(TEXTS, size=20, width=p.word_width, max_length=9, precision=p.precision)
    made = SequenceNetwork(encoder, labels, p, kind, attention)
    made.longest.fill_(labels)
    return scattered(made)


LABELS = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]]).bool()


def test_targets_stand_in_column_order_and_end():
    assert target_sequences(LABELS).tolist() == [
        [0, 2, 3, 4],
        [4, NOTHING, NOTHING, NOTHING],  # no labels: the end alone
        [1, 4, NOTHING, NOTHING],
    ]


def test_targets_in_reverse_order():
    assert target_sequences(LABELS, "rare_first")[0].tolist() == [3, 2, 0, 4]


def test_targets_of_so_many_steps():
    assert target_sequences(LABELS, steps=2).tolist() == [[0, 2], [4, NOTHING], [1, 4]]
    assert target_sequences(LABELS, steps=6)[0].tolist() == [0, 2, 3, 4, NOTHING, NOTHING]


def test_targets_of_no_labels_at_all():
    assert target_sequences(torch.zeros(2, 3).bool()).tolist() == [[3], [3]]


def test_the_loss_leaves_out_what_lies_behind_the_end():
    torch.manual_seed(1)
    logits = torch.randn(3, 4, 5)
    targets = target_sequences(LABELS)
    expected = 0.0
    for text, place in itertools.product(range(3), range(4)):
        if targets[text, place] != NOTHING:
            norm = math.log(sum(math.exp(z) for z in logits[text, place].tolist()))
            expected += norm - float(logits[text, place, targets[text, place]])
    assert float(sequence_loss(logits, targets)) == pytest.approx(expected / 3, abs=1e-5)
    changed = torch.where((targets == NOTHING)[:, :, None], 100 * logits, logits)
    assert float(sequence_loss(changed, targets)) == pytest.approx(expected / 3, abs=1e-5)


def memory_of(attention, n=2, longest=4, width=6) -> Memory:
    states = torch.randn(n, longest, width)
    real = torch.arange(longest) < torch.tensor([[longest], [2]])
    return Memory(states, real, attention.keys(states))


@pytest.mark.parametrize("queries", [1, 3])
@torch.no_grad()
def test_additive_attention_by_loops(queries):
    torch.manual_seed(2)
    attention = AdditiveAttention(5, 6, 7)
    memory, asked = memory_of(attention), torch.randn(2 * queries, 5)
    found = attention(asked, memory)
    for text, query in itertools.product(range(2), range(queries)):
        row, words = text * queries + query, [4, 2][text]
        scores = []
        for place in range(words):
            inner = attention.query.weight @ asked[row] + attention.query.bias
            inner = torch.tanh(inner + attention.key.weight @ memory.states[text, place])
            scores.append(math.exp(float(attention.value.weight[0] @ inner)))
        expected = sum(s / sum(scores) * memory.states[text, i] for i, s in enumerate(scores))
        assert torch.allclose(found[row], expected, atol=1e-5)


@torch.no_grad()
def test_dot_attention_by_loops():
    torch.manual_seed(3)
    attention = DotAttention(5, 6)
    memory, asked = memory_of(attention), torch.randn(4, 5)
    found = attention(asked, memory)
    for row in range(4):
        text, words = row // 2, [4, 2][row // 2]
        key = torch.tanh(attention.query.weight @ asked[row] + attention.query.bias)
        scores = [math.exp(float(key @ memory.states[text, place])) for place in range(words)]
        expected = sum(s / sum(scores) * memory.states[text, i] for i, s in enumerate(scores))
        assert torch.allclose(found[row], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_cells_take_the_steps_of_torch_layers(kind):
    torch.manual_seed(4)
    cells = Cells(kind, 5, 3, 2, 0.5).eval()
    whole = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[kind](5, 3, 2)
    for layer, cell in enumerate(cells.cells):
        for name, weight in cell.named_parameters():
            getattr(whole, f"{name}_l{layer}").data = weight.data
    inputs, state = torch.randn(6, 4, 5), tuple(torch.zeros(4, 3) for _ in range(cells.parts))
    expected, _ = whole(inputs)
    for place in range(6):
        output, state = cells(inputs[place], state)
        assert torch.allclose(output, expected[place], atol=1e-6)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_decoder_starts_from_the_encoders_last_states(kind, layers):
    made = network(kind=kind, p=replace(SMALL, decoder_layers=layers))
    memory, state = made.read(*packed(made, TEXTS))
    assert len(state) == made.cells.parts + 1
    shown = layers if layers < 3 else 2
    top = state[shown - 1]  # of the encoder's last layer
    sizes = [3, 1, 6, 1]
    for text, size in enumerate(sizes):
        forward, backward = memory.states[text, size - 1, :3], memory.states[text, 0, 3:]
        assert torch.allclose(top[text], torch.cat([forward, backward]), atol=1e-6)
    assert layers < 3 or bool(state[2].eq(0).all())  # the encoder has two layers
    assert torch.equal(state[-1], made.attention(state[layers - 1], memory))


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("bounded", [False, True])
@torch.no_grad()
def test_search_and_teaching_agree(kind, bounded):
    made = network(kind=kind, attention=DotAttention(6, 6) if bounded else None)
    beams = made.beams(*packed(made, TEXTS))
    every = torch.tensor(list(itertools.product([False, True], repeat=3)))
    for text, wanted in itertools.product(range(4), every):
        ids, layout = packed(made, [TEXTS[text]])
        memory, state = made.read(ids, layout)
        targets = target_sequences(wanted[None])
        logits = made.teach(targets, memory, state)[0]
        expected = 0.0
        for place, token in enumerate(targets[0].tolist()):
            logits[place, targets[0, :place]] = -math.inf  # decoding repeats no label
            expected += float(torch.log_softmax(logits[place], 0)[token])
        sequence = torch.nn.functional.pad(targets[0], (0, beams.tokens.shape[2] - targets.shape[1]), value=made.end)
        (beam,) = (beams.tokens[text] == sequence).all(1).logical_and(beams.logs[text].isfinite()).nonzero().flatten()
        assert float(beams.logs[text, beam]) == pytest.approx(expected, abs=1e-4)


def test_the_loss_is_that_of_teaching():
    made = network(labels=4)
    ids, layout = packed(made, TEXTS[:3])
    targets = target_sequences(LABELS)
    expected = sequence_loss(made.teach(targets, *made.read(ids, layout)), targets)
    assert torch.allclose(made.loss(Batch(ids, layout, LABELS, None)), expected)
    backwards = network(labels=4, p=replace(SMALL, order="rare_first"))
    assert not torch.allclose(backwards.loss(Batch(ids, layout, LABELS, None)), expected)


def test_inference_returns_marginals_and_the_best_sequence():
    made = network()
    found = made.infer(*packed(made, TEXTS))
    beams = made.beams(*packed(made, TEXTS))
    assert torch.equal(found["final"], label_marginals(beams, 3))
    for text in range(4):
        best = {token for token in beams.tokens[text, 0].tolist() if token < made.end}
        assert set(found["sequence"][text].nonzero().flatten().tolist()) == best


def test_no_text_gets_more_labels_than_allowed():
    corpus = denn.Corpus(train=[denn.Document("goal", ("a", "b")), denn.Document("oven", tuple("cdefgh"[:1]))])
    made = network(labels=9, p=replace(SMALL, beam=4))
    made.head.bias.data[made.end] = -50.0  # never ends by itself
    made.prepare(corpus)
    assert made.beams(*packed(made, TEXTS)).tokens.shape[2] == 2 + 2 + 1
    few = network(labels=9, p=replace(SMALL, beam=4, max_labels=1))
    few.head.bias.data[few.end] = -50.0
    assert few.beams(*packed(few, TEXTS)).tokens.shape[2] == 2
    all_of_them = network(labels=3, p=replace(SMALL, beam=4, max_labels=99))
    assert all_of_them.beams(*packed(all_of_them, TEXTS)).tokens.shape[2] <= 4


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_runs_in_both_precisions(kind, precision):
    made = network(kind=kind, p=replace(SMALL, precision=precision)).train()
    ids, layout = packed(made, TEXTS)
    with made.encoder.autocast():
        loss = made.loss(Batch(ids, layout, torch.eye(4, 3).bool(), None))
    loss.backward()
    assert loss.dtype == torch.float32 and all(weight.grad is not None for weight in made.parameters())
    found = made.score(made.tokenize(TEXTS))["final"]
    assert bool(((found >= 0) & (found <= 1)).all())


def test_a_pass_holds_no_more_texts_than_its_beams_leave_room_for(monkeypatch):
    monkeypatch.setattr("denn_bench.systems.sequences.AT_ONCE", 3 * SMALL.beam * 4)
    made, passes = network(labels=3), []
    infer = made.infer
    monkeypatch.setattr(made, "infer", lambda ids, layout: passes.append(len(layout.lengths)) or infer(ids, layout))
    assert len(made.score(made.tokenize(["goal"] * 7))["final"]) == 7
    assert passes == [3, 3, 1]


def test_words_are_dropped_as_often_as_said():
    for p, same in (
        (replace(SMALL, word_dropout=0.9), False),
        (replace(SMALL, word_dropout=0.0), True),
        (replace(SMALL, dropout=0.9, encoder_layers=1), False),
        (replace(SMALL, dropout=0.9, encoder_layers=1, word_dropout=0.0), True),
    ):
        made = network(p=p).train()
        first, second = (made.read(*packed(made, TEXTS))[0].states for _ in range(2))
        assert torch.equal(first, second) == same


def test_the_generated_sets_select_the_weights_and_their_shares_are_watched(tiny_corpus):
    p = SequenceParameters(word_width=5, hidden=3, dropout=0.0, precision="float32", max_length=20)
    torch.manual_seed(0)
    made = scattered(Seq2Seq(p).make(p.new_encoder(tiny_corpus), len(tiny_corpus.labels)))
    made.prepare(tiny_corpus)
    session = Training(made, tiny_corpus, p)
    found, parts = session.validate(), made.score(session.valid_tokens)
    generated = multilabel_scores(parts["sequence"] > 0.5, session.valid_labels)["micro_f1"]
    assert found["score"] == found["micro_f1"] == pytest.approx(generated)
    assert found["spread"] == pytest.approx(spread(parts["final"]))

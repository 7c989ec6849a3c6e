"""Labels as tokens behind the text: which ones, where their states lie, and what does not fit."""

import pytest
import torch

from denn.encoders.transformer import TransformerEncoder
from denn.errors import ConfigError
from denn_bench.systems.label_tokens import LabelTokens, _add_tokens, table_of

TEXTS = ["goal match", "", "the violin and the oven in kyoto with a comet", "goal " * 100]


@pytest.fixture
def network(tiny_encoder, tiny_corpus) -> LabelTokens:
    encoder = TransformerEncoder.load(str(tiny_encoder), max_length=30, precision="float32")
    made = LabelTokens(encoder, len(tiny_corpus.labels)).eval()
    made.prepare(tiny_corpus)
    return made


def test_labels_without_reserved_tokens_get_new_ones(network, tiny_corpus):
    size = network.encoder.tokenizer.get_vocab_size()
    assert network.label_ids.tolist() == list(range(size, size + len(tiny_corpus.labels)))
    assert network.encoder.model.config.vocab_size == size + len(tiny_corpus.labels)


def test_reserved_tokens_come_first(tiny_encoder, tiny_corpus):
    encoder = TransformerEncoder.load(str(tiny_encoder), max_length=30)
    encoder.tokenizer.add_tokens(["[unused0]", "[unused7]"])
    before = encoder.tokenizer.get_vocab()["[unused0]"]
    _add_tokens(encoder, 2)
    made = LabelTokens(encoder, 2)
    made.prepare(tiny_corpus)
    assert made.label_ids.tolist() == [before, before + 1]


def test_labels_have_vectors_of_their_own(network):
    table, vectors = table_of(network.encoder), network.token_vectors
    torch.testing.assert_close(vectors.std(), table.weight[:-6].std(), rtol=0.3, atol=0)
    assert torch.cosine_similarity(vectors[0], vectors[1], dim=0).abs() < 0.5  # unlike unused tokens of MPNet
    ids, layout = network.tokenize(TEXTS).pack(torch.arange(4))
    torch.testing.assert_close(table(network.label_ids[[4, 1]]), vectors[[4, 1]])
    assert torch.equal(table(torch.arange(3)), table.weight[:3])
    network.read(ids, layout).labels.sum().backward()
    assert bool(vectors.grad.any(1).all())
    assert not table.weight.grad[network.label_ids].any() and bool(table.weight.grad.any())


def test_the_vectors_of_labels_are_fixed_if_the_embeddings_are(tiny_encoder, tiny_corpus):
    encoder = TransformerEncoder.load(str(tiny_encoder), max_length=30, precision="float32")
    encoder.freeze_below(1)
    made = LabelTokens(encoder, len(tiny_corpus.labels))
    made.prepare(tiny_corpus)
    assert not made.token_vectors.requires_grad and not table_of(encoder).weight.requires_grad


def test_every_text_ends_with_the_labels(network):
    tokens = network.tokenize(TEXTS)
    count, end = len(network.label_ids), int(tokens.flat[-1])
    for row, text in enumerate(TEXTS):
        ids = tokens.flat[tokens.offsets[row] : tokens.offsets[row + 1]].tolist()
        assert ids[-count - 1 :] == [*network.label_ids.tolist(), end]
        plain = network.encoder.tokenizer
        plain.no_truncation()
        assert ids[: -count - 1][:-1] == plain.encode(text).ids[: len(ids) - count - 2]
        assert ids[-count - 2] == end and len(ids) <= 30
    assert tokens.truncated == 1
    assert len(network.tokenize([])) == 0


def test_states_lie_where_their_tokens_lie(network):
    tokens = network.tokenize(TEXTS)
    rows = torch.tensor([2, 0, 1, 3])
    ids, layout = tokens.pack(rows)
    found = network.read(ids, layout)
    count = len(network.label_ids)
    kinds = torch.cat([torch.tensor([0] * (size - count - 1) + [1] * count + [0]) for size in layout.lengths])
    states = network.encoder.states(ids, layout, types=kinds)
    for place, (start, size) in enumerate(zip(layout.starts.tolist(), layout.lengths, strict=False)):
        end = start + size - count - 1
        torch.testing.assert_close(found.text[place, : end - start], states[start:end])
        torch.testing.assert_close(found.labels[place], states[end : end + count])
        assert not found.text[place, end - start :].any()
        assert int(found.real[place].sum()) == end - start
    fewer = network.read(ids, layout, count=3)
    assert torch.equal(fewer.labels, found.labels[:3]) and fewer.text.shape[0] == 3


def test_the_kind_of_a_token_counts(network):
    ids, layout = network.tokenize(TEXTS).pack(torch.arange(4))
    states = network.encoder.states(ids, layout)
    assert torch.equal(states, network.encoder.states(ids, layout, types=torch.zeros_like(ids)))
    assert not torch.allclose(states, network.encoder.states(ids, layout, types=torch.ones_like(ids)), atol=1e-3)


def test_too_many_labels_are_refused_with_their_number(tiny_encoder):
    encoder = TransformerEncoder.load(str(tiny_encoder), max_length=30)
    LabelTokens(encoder, 26)
    with pytest.raises(ConfigError, match=r"Got 27 labels and a length of 30 tokens: .* at most 26 fit"):
        LabelTokens(encoder, 27)

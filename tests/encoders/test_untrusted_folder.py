"""Untrusted encoder folders: no code, no network, no endless work, and memory limited by the size of the files."""

import base64
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, BertForMaskedLM

from denn.encoders import tokenizer_file
from denn.encoders.tokenizer_file import load_tokenizer
from denn.encoders.transformer import TransformerEncoder
from denn.errors import EncoderError

pytestmark = pytest.mark.slow  # transformers, and what they are made of

CODE = """
from pathlib import Path
Path({canary!r}).touch()
from transformers import BertConfig, BertModel, BertTokenizerFast
class EvilConfig(BertConfig): model_type = "evil"
class EvilModel(BertModel): config_class = EvilConfig
class EvilTokenizer(BertTokenizerFast): pass
"""
AUTO_MAP = {"AutoConfig": "evil.EvilConfig", "AutoModel": "evil.EvilModel", "AutoTokenizer": ["evil.EvilTokenizer"] * 2}


DISTILBERT = {  # its name for a setting or a weight of BERT
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
    "encoder.layer.1.attention.self.query.weight": "transformer.layer.1.attention.q_lin.weight",
}
by_either_reader = pytest.mark.parametrize("folder", ["bert", "distilbert"], indirect=True)


@pytest.fixture
def folder(request, tiny_encoder, tiny_distilbert, tmp_path) -> Path:
    """A copy of a tiny encoder that may be damaged: BERT for our own modules, or another for transformers."""
    kind = getattr(request, "param", "bert")
    return Path(shutil.copytree({"bert": tiny_encoder, "distilbert": tiny_distilbert}[kind], tmp_path / kind))


def own(folder: Path, name: str) -> str:
    """Return the folder's name for a setting or a weight of BERT."""
    return DISTILBERT.get(name, name) if folder.name == "distilbert" else name


@pytest.fixture
def offline(monkeypatch) -> list[object]:
    """The addresses of attempted connections; none succeeds."""
    tried: list[object] = []

    def connect(self: socket.socket, address: object) -> None:
        tried.append(address)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *where, **_: connect(None, where))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return tried


def edit(file: Path, **changes: object) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | changes))


def load(folder: Path) -> TransformerEncoder:
    return TransformerEncoder.load(str(folder), precision="float32")


def refusal(folder: Path) -> str:
    begun = time.monotonic()
    with pytest.raises(EncoderError) as caught:
        load(folder)
    assert time.monotonic() - begun < 5
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["evil", "bert", "distilbert"])
def test_code_in_a_folder_is_refused_and_not_run(folder, tmp_path, kind):
    (folder / "evil.py").write_text(CODE.format(canary=str(tmp_path / "canary")))
    edit(folder / "config.json", model_type=kind, auto_map=AUTO_MAP)
    assert refusal(folder).endswith(
        "wants to run its own code (auto_map in config.json). denn never runs code from a model folder; use an "
        "architecture that transformers includes."
    )
    assert not (tmp_path / "canary").exists()


def test_code_for_a_tokenizer_is_refused_and_not_run(folder, tmp_path):
    vocabulary = load_tokenizer(folder).get_vocab()
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)))
    (folder / "evil.py").write_text(CODE.format(canary=str(tmp_path / "canary")))
    edit(folder / "tokenizer_config.json", auto_map=AUTO_MAP, tokenizer_class="EvilTokenizer")
    assert "auto_map in tokenizer_config.json" in refusal(folder)
    edit(folder / "tokenizer_config.json", auto_map=None)
    assert not (tmp_path / "canary").exists()


def test_the_texts_on_standard_input_consent_to_nothing(folder, tiny_model, tmp_path):
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    (model / "encoder" / "evil.py").write_text(CODE.format(canary=str(tmp_path / "canary")))
    edit(model / "encoder" / "config.json", model_type="evil", auto_map=AUTO_MAP)
    edit(model / "bundle.json", digests={})
    ended = subprocess.run(
        [sys.executable, "-m", "denn", "predict", str(model), "-"],
        input="an editor\n1\ny\nyes\n", capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, "")
    assert len(ended.stderr.splitlines()) == 1 and "wants to run its own code" in ended.stderr
    assert not (tmp_path / "canary").exists()


@by_either_reader
def test_pickled_weights_are_refused(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    expected = load(folder).encode(load(folder).tokenize(["goal"]))
    assert expected.isfinite().all(), "beside safetensors they are not read"
    (folder / "model.safetensors").unlink()
    assert "pytorch_model.bin, a format that can run code" in refusal(folder)
    assert "save_pretrained" in refusal(folder)


@by_either_reader
def test_what_else_a_folder_may_name_is_not_read(folder, offline):
    plain = load(folder)
    expected = plain.encode(plain.tokenize(["goal match"]))
    edit(
        folder / "config.json", _attn_implementation="attacker/kernel", attn_implementation="attacker/kernel",
        _name_or_path="attacker/model", base_model_name_or_path="attacker/model", use_kernels=True,
        kernel_config={"a": "b"}, fusion_config={"a": "b"}, transformers_weights="other.bin", return_dict=False,
        torch_dtype="float16", dtype="float16", experts_implementation="attacker/kernel",
    )  # fmt: skip
    edit(folder / "adapter_config.json", base_model_name_or_path="attacker/model", peft_type="LORA")
    edit(folder / "generation_config.json", custom_generate="attacker/model")
    edit(folder / "tokenizer_config.json", auto_map=AUTO_MAP, chat_template="{{ evil }}")
    edit(folder / "processor_config.json", auto_map=AUTO_MAP)
    (folder / "chat_template.jinja").write_text("{{ evil }}")
    found = load(folder)
    assert torch.equal(found.encode(found.tokenize(["goal match"])), expected)
    assert getattr(found.model.config, "_attn_implementation", "eager") in ("sdpa", "eager")
    assert not offline


def test_models_that_fetch_other_models_are_refused(folder, offline):
    for kind in ("detr", "vision-encoder-decoder", "timm_backbone", "rag", "musicgen"):
        edit(folder / "config.json", model_type=kind, use_pretrained_backbone=True, backbone="attacker/model")
        refusal(folder)
    assert not offline


def test_a_model_type_is_a_name(folder):
    for kind in (None, 3, ["bert"], {"bert": 1}, ""):
        edit(folder / "config.json", model_type=kind)
        assert "model" in refusal(folder)


@by_either_reader
def test_quantized_weights_are_refused(folder):
    edit(folder / "config.json", quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    assert "is quantized" in refusal(folder)


@pytest.mark.parametrize(
    "name", ["hidden_size", "vocab_size", "num_hidden_layers", "max_position_embeddings", "intermediate_size"]
)
@pytest.mark.parametrize("number", [10**5, 10**9, 10**30, "x", float("nan")])
@by_either_reader
def test_sizes_that_the_weights_do_not_have_are_refused(folder, name, number):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    edit(folder / "config.json", **{own(folder, name): number})
    refusal(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18, "KiB"


@by_either_reader
def test_weights_that_are_missing_or_of_another_shape_are_not_made_up(folder):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = own(folder, "encoder.layer.1.attention.self.query.weight")
    extra = {"other.weight": torch.zeros(64, 64)}
    save_file({key: value for key, value in tensors.items() if key != name} | extra, file)
    assert f"lacks 1 of the weights that config.json describes, such as {name!r}" in refusal(folder)
    save_file(tensors | extra | {name: torch.zeros(16, 64)}, file)
    assert "the weights do not match config.json" in refusal(folder)
    save_file(tensors | {name: torch.full((32, 32), float("nan"))}, file)
    assert f"{name!r} contains values that are not finite" in refusal(folder)
    save_file(tensors | {own(folder, "embeddings.LayerNorm.weight"): torch.full((32,), 3e38)}, file)
    assert "is not finite" in refusal(folder)


@by_either_reader
def test_a_header_that_declares_more_than_the_file_has(folder):
    declared = {"w": {"dtype": "F32", "shape": [10**9, 10**3], "data_offsets": [0, 4 * 10**12]}}
    text = json.dumps(declared).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    assert "is not a safetensors file" in refusal(folder)
    (folder / "model.safetensors").write_bytes((10**15).to_bytes(8, "little") + text)
    assert "is not a safetensors file" in refusal(folder)


def test_a_file_of_holes_and_one_of_headers_are_not_read(folder):
    file = folder / "model.safetensors"
    size = 2**40
    declared = {"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}
    text = json.dumps(declared).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(file, 8 + len(text) + size)
    assert "are not on disk" in refusal(folder)
    text = b"{}" + b" " * 2**25
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    assert "its header is too large" in refusal(folder)


def test_weights_far_beyond_the_model_are_not_read(folder):
    file = folder / "model.safetensors"
    save_file(load_file(file) | {"other": torch.zeros(12_000_000)}, file)
    assert "describes only" in refusal(folder)


def test_modules_that_no_weight_belongs_to_are_not_made(folder):
    for kind, name in (("albert", "inner_group_num"), ("mobilebert", "num_feedforward_networks")):
        edit(folder / "config.json", model_type=kind, **{name: 10**6})
        assert "expected at most" in refusal(folder) or "modules" in refusal(folder)


@by_either_reader
def test_weights_in_several_files_are_those_of_the_folder(folder):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    names = sorted(tensors)
    expected = load(folder).encode(load(folder).tokenize(["goal"]))
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for part, some in parts.items():
        save_file({name: tensors[name] for name in some}, folder / part)
    file.unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: part for part, some in parts.items() for name in some}}))
    assert torch.equal(load(folder).encode(load(folder).tokenize(["goal"])), expected)
    for evil in ("../model-1.safetensors", "/etc/passwd", "model-1.bin", "missing.safetensors"):
        index.write_text(json.dumps({"weight_map": dict.fromkeys(names, evil)}))
        refusal(folder)


def test_weights_of_a_masked_language_model_with_the_oldest_names(folder):
    plain = load(folder)
    whole = BertForMaskedLM(AutoConfig.from_pretrained(folder))
    whole.bert.load_state_dict(plain.model.state_dict())
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor.clone()
        for name, tensor in whole.state_dict().items()
    }
    save_file(old, folder / "model.safetensors")
    assert torch.equal(load(folder).encode(plain.tokenize(["goal"])), plain.encode(plain.tokenize(["goal"])))


@pytest.mark.parametrize("content", ["[]", "3", '{"a": NaN}', "{}", '{"model": 3}', "[" * 100_000, "\udcff"])
@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "1_Pooling/config.json"])
def test_files_that_are_not_what_they_should_be(folder, name, content):
    (folder / name).write_bytes(content.encode(errors="surrogateescape"))
    if name.startswith("1_Pooling") and content.startswith("{"):
        assert load(folder).pooling == "cls"
    else:
        refusal(folder)


def test_a_pipe_keeps_nobody_waiting(folder):
    for name in ("config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"):
        (folder / name).rename(folder / "aside")
        os.mkfifo(folder / name)
        assert str(folder) in refusal(folder)
        (folder / name).unlink()
        (folder / "aside").rename(folder / name)
    assert load(folder).encode(load(folder).tokenize(["goal"])).isfinite().all()  # nothing else was wrong


def change_tokenizer(folder: Path, **changes: object) -> None:
    edit(folder / "tokenizer.json", **changes)


def replacing(pattern: object, content: str = "") -> dict[str, object]:
    return {"type": "Replace", "pattern": pattern, "content": content}


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": replacing({"Regex": "(a*)*$"})},
        {"normalizer": replacing({"Regex": "(.|.)*\\n\\n$"})},
        {"normalizer": replacing({"Regex": "\\S*\\S*x"})},
        {"normalizer": replacing({"Regex": "(a)\\1"})},
        {"normalizer": replacing({"String": ""}, "x")},
        {"normalizer": {"type": "Sequence", "normalizers": [replacing({"String": "a"}, "aa")] * 40}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 1000}},
        {"model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a", "max_input_chars_per_word": 10**6}},
        {"normalizer": replacing({"String": "a"}, "b" * 10**6)},
        {
            "normalizer": {
                "type": "Precompiled",
                "precompiled_charsmap": base64.b64encode(bytes(4) + b"x" * 999).decode(),
            }
        },
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xff" * 9).decode()}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated", "invert": False}},
    ],
)
def test_tokenizers_that_never_end_or_grow_are_refused(folder, changes):
    change_tokenizer(folder, **changes)
    assert "is damaged (it" in refusal(folder)


def test_tokenizers_of_another_model_are_refused(folder):
    ids = json.loads((folder / "tokenizer.json").read_text())
    template = ids["post_processor"]
    template["single"] = template["single"][:1] * 100 + template["single"]
    change_tokenizer(folder, post_processor=template)
    assert "does not belong to the encoder: it returns 10" in refusal(folder)
    template["single"] = template["single"][100:]
    template["special_tokens"]["[CLS]"]["ids"] = [4_000_000_000]
    change_tokenizer(folder, post_processor=template)
    assert "with ids up to 4000000000" in refusal(folder)


def test_absurd_lengths_in_a_tokenizer_are_not_ours(folder):
    expected = load(folder).tokenize(["goal match"])
    change_tokenizer(
        folder,
        truncation={"direction": "Right", "max_length": 10**15, "strategy": "LongestFirst", "stride": 10**14},
        padding={"strategy": {"Fixed": 10**15}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                 "pad_type_id": 0, "pad_token": "[PAD]"},
    )  # fmt: skip
    assert torch.equal(load(folder).tokenize(["goal match"]).flat, expected.flat)


def test_a_text_without_a_token_is_one_token(folder):
    change_tokenizer(folder, post_processor=None)
    encoder = load(folder)
    assert encoder.tokenize(["", "goal"]).lengths.tolist() == [1, 1]


def test_a_vocabulary_that_is_none_is_refused(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"\x80\x04nonsense")
    assert "tokenizer" in refusal(folder)


@pytest.mark.parametrize(
    "pattern",
    [" {2,}", "\\s+", "[\\r\\n]+", "\\p{L}+| ?\\d", "\\s+(?!\\S)|\\s+", "'s|'t|'re| ?\\p{L}+| ?[^\\s\\p{L}\\p{N}]+",
     *tokenizer_file.KNOWN],
)  # fmt: skip
def test_regular_expressions_of_published_tokenizers_are_taken(pattern):
    assert tokenizer_file._is_tame(pattern)

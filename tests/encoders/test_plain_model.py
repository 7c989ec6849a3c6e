"""Our own modules for BERT, RoBERTa and MPNet: the same weights under the same names as those of transformers."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from transformers import AutoModel
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from denn.encoders.checkpoint_folder import load_model
from denn.encoders.plain_model import KINDS, PlainModel, _buckets
from denn.encoders.tokenizer_file import load_tokenizer
from denn.encoders.transformer import TransformerEncoder
from denn.errors import MissingExtraError

pytestmark = pytest.mark.slow  # transformers


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory, encoder_writer):
    return encoder_writer(tmp_path_factory.mktemp(request.param), request.param)


def described(model):
    """Names, order and shapes of the weights, which checkpoints rely on, and rows without a gradient."""
    weights = [(name, tuple(weight.shape), weight.requires_grad) for name, weight in model.named_parameters()]
    tables = {name: table.padding_idx for name, table in model.named_modules() if isinstance(table, torch.nn.Embedding)}
    return weights, tables, model.training


def test_weights_are_those_of_transformers(folder):
    ours, theirs = load_model(folder), AutoModel.from_pretrained(folder, add_pooling_layer=False)
    assert isinstance(ours, PlainModel)
    assert described(ours) == described(theirs)
    assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))
    assert (ours.device, ours.get_input_embeddings().weight.shape) == (
        theirs.device,
        theirs.embeddings.word_embeddings.weight.shape,
    )


def test_transformers_reads_what_we_write(folder, tmp_path):
    ours = load_model(folder)
    ours.save_pretrained(tmp_path / "ours")
    theirs, report = AutoModel.from_pretrained(tmp_path / "ours", add_pooling_layer=False, output_loading_info=True)
    assert not any(report.values()), report
    assert type(theirs).__name__ == json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"][0]
    assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))
    expected = AutoModel.from_pretrained(folder, add_pooling_layer=False).config
    settings = ours.config.model_dump().keys() & expected.to_dict().keys()
    assert {name: getattr(theirs.config, name) for name in settings} == {n: getattr(expected, n) for n in settings}
    again = load_model(tmp_path / "ours")
    assert again.config == ours.config


def test_relative_positions_are_those_of_mpnet():
    distance = torch.arange(-600, 601)
    assert torch.equal(_buckets(distance), MPNetEncoder.relative_position_bucket(distance))


def test_half_precision_is_read_in_single_precision(tiny_encoder, tmp_path):
    AutoModel.from_pretrained(tiny_encoder, dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    weights = load_model(tmp_path / "half").state_dict()
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    for name, weight in load_model(tiny_encoder).state_dict().items():
        assert torch.equal(weights[name], weight.bfloat16().float())


def test_another_activation_is_left_to_transformers(tiny_encoder, tmp_path):
    folder = shutil.copytree(tiny_encoder, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu_new"}))
    model = load_model(folder)
    assert type(model).__name__ == "BertModel" and not model.training
    assert described(model)[0] == described(load_model(tiny_encoder))[0]


def test_an_encoder_that_needs_transformers_says_so(tiny_distilbert, tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    with pytest.raises(MissingExtraError, match=r"'distilbert' needs .* Run: pip install 'denn\[transformers\]'"):
        TransformerEncoder.load(str(tiny_distilbert))
    old = shutil.copytree(tiny_encoder, tmp_path / "old")
    vocabulary = load_tokenizer(old).get_vocab()
    (old / "tokenizer.json").unlink()
    (old / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)))
    with pytest.raises(MissingExtraError, match=r"older format needs .*denn\[transformers\]"):
        TransformerEncoder.load(str(old))
    assert TransformerEncoder.load(str(tiny_encoder)).width == 32


def test_a_prediction_imports_nothing_that_it_does_without(tiny_model):
    code = (
        "import sys, denn\n"
        "with denn.load(sys.argv[1]) as model:\n"
        "    print(model.predict(['goal match team'])[0].labels)\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & set(sys.argv[2:])))"
    )
    heavy = ["transformers", "huggingface_hub", "sklearn", "pyarrow", "pandas", "faiss", "fastapi", "rich", "sympy"]
    ran = subprocess.run([sys.executable, "-c", code, tiny_model, *heavy], capture_output=True, text=True, check=True)
    labels, imported = ran.stdout.splitlines()
    assert "sport" in labels
    assert imported == "[]"

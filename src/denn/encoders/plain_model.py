"""BERT, RoBERTa and MPNet as modules that hold weights under Hugging Face's names, for the packed forward.

transformers takes seconds to import; models of these types do not need it, but write folders that it can read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import save_file
from torch import Tensor, nn

# Model type → its class in transformers, and the encoder's name within a larger model
KINDS = {
    "bert": ("BertModel", "bert"),
    "roberta": ("RobertaModel", "roberta"),
    "xlm-roberta": ("XLMRobertaModel", "roberta"),
    "camembert": ("CamembertModel", "roberta"),
    "mpnet": ("MPNetModel", "mpnet"),
}
ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}
BUCKETS, FARTHEST = 32, 128  # for MPNet's relative positions

Size = Annotated[int, Field(strict=True, gt=0, lt=2**31)]
Share = Annotated[float, Field(strict=True, ge=0, lt=1)]


class ModelSettings(BaseModel):
    """The part of config.json that defines an encoder, with the defaults of transformers."""

    model_config = ConfigDict(protected_namespaces=())

    model_type: str
    vocab_size: Size
    hidden_size: Size = 768
    num_hidden_layers: Size = 12
    num_attention_heads: Size = 12
    intermediate_size: Size = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: Share = 0.1
    attention_probs_dropout_prob: Share = 0.1
    max_position_embeddings: Size = 512
    type_vocab_size: Size = 2
    layer_norm_eps: Share = 1e-12
    relative_attention_num_buckets: Size = BUCKETS
    pad_token_id: Annotated[int, Field(strict=True)] | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> ModelSettings:
        """Check a configuration; the ValueError says what is wrong with it."""
        defaults = {"pad_token_id": 0 if content["model_type"] == "bert" else 1}
        try:
            found = cls.model_validate({**defaults, **content})
        except ValidationError as error:
            first = error.errors()[0]
            name, value = ".".join(map(str, first["loc"])), repr(first["input"])[:40]
            raise ValueError(f"its {name} is {value}: {first['msg']}") from error
        if found.hidden_size % found.num_attention_heads:
            raise ValueError(
                f"its hidden_size {found.hidden_size} is not a multiple of the {found.num_attention_heads} heads"
            )
        return found


def is_plain(content: Mapping[str, Any]) -> bool:
    """Return whether this module supports a configuration; all others need transformers."""
    return content["model_type"] in KINDS and str(content.get("hidden_act", "gelu")) in ACTIVATIONS


class PlainModel(nn.Module):
    """The weights of a transformer, in modules named and ordered as in transformers, without pooler and forward."""

    def __init__(self, config: ModelSettings) -> None:
        super().__init__()
        self.config = config
        self.embeddings = _embeddings(config)
        self.encoder = _Layers(config)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the token embeddings."""
        return cast(nn.Embedding, self.embeddings.word_embeddings)

    def set_input_embeddings(self, table: nn.Embedding) -> None:
        """Replace the token embeddings."""
        self.embeddings.word_embeddings = table

    def take(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Load the weights of a file, in float32; return the names of those that it lacks.

        The file may be from a larger model around the encoder, and use the oldest names of norms.
        """
        prefix = f"{KINDS[self.config.model_type][1]}."
        own = {_newest_name(name.removeprefix(prefix)): tensor for name, tensor in tensors.items()}
        wanted = self.state_dict()
        missing = sorted(wanted.keys() - own.keys())
        for name in wanted.keys() & own.keys():
            found, expected = own[name], wanted[name]
            if found.shape != expected.shape or not found.is_floating_point():
                kind = str(found.dtype).removeprefix("torch.")
                raise ValueError(f"{name} is {tuple(found.shape)} of {kind}, expected {tuple(expected.shape)}")
        if not missing:
            self.load_state_dict({name: own[name].float() for name in wanted}, assign=True)
        return missing

    def save_pretrained(self, folder: Path) -> None:
        """Write config.json and model.safetensors as transformers does."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.cpu().contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        content = {"architectures": [KINDS[self.config.model_type][0]], "dtype": "float32", **self.config.model_dump()}
        if self.config.model_type == "mpnet":
            del content["type_vocab_size"]
        else:
            del content["relative_attention_num_buckets"]
        (folder / "config.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _newest_name(name: str) -> str:
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


class _Layers(nn.Module):
    """The layers, and MPNet's bias by relative position."""

    def __init__(self, config: ModelSettings) -> None:
        super().__init__()
        self.layer = nn.ModuleList([_layer(config) for _ in range(config.num_hidden_layers)])
        if config.model_type == "mpnet":
            self.relative_attention_bias = _table(config.relative_attention_num_buckets, config.num_attention_heads)

    def compute_position_bias(self, x: Tensor) -> Tensor:
        """Return the attention bias of (1,L,d) states by relative position: (1,heads,L,L)."""
        places = torch.arange(x.shape[1], device=x.device)
        values: Tensor = self.relative_attention_bias(_buckets(places - places[:, None]))
        return values.permute(2, 0, 1)[None].contiguous()


def _buckets(distance: Tensor) -> Tensor:
    """Return the buckets of signed distances, as in T5 and MPNet: one each for short ones, then ever wider ones."""
    half, size = BUCKETS // 2, distance.abs()
    exact = half // 2
    far = torch.log(size.float() / exact) / math.log(FARTHEST / exact) * (half - exact)
    wide = (exact + far.long()).clamp(max=half - 1)
    return torch.where(size < exact, size, wide) + half * (distance > 0)


def _embeddings(config: ModelSettings) -> nn.Module:
    """Return the embeddings of tokens, positions and token types, in each model's own order."""
    width, pad = config.hidden_size, 1 if config.model_type == "mpnet" else config.pad_token_id
    words = _table(config.vocab_size, width, pad)
    places = _table(config.max_position_embeddings, width, None if config.model_type == "bert" else pad)
    norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
    if config.model_type == "mpnet":
        return _group(word_embeddings=words, position_embeddings=places, LayerNorm=norm)
    kinds = _table(config.type_vocab_size, width)
    if config.model_type == "bert":
        return _group(word_embeddings=words, position_embeddings=places, token_type_embeddings=kinds, LayerNorm=norm)
    return _group(word_embeddings=words, token_type_embeddings=kinds, LayerNorm=norm, position_embeddings=places)


def _layer(config: ModelSettings) -> nn.Module:
    """Return the linear maps and norms of one layer; see `layers.parts_of`."""
    width, inner = config.hidden_size, config.intermediate_size
    square, norm = partial(nn.Linear, width, width), partial(nn.LayerNorm, width, eps=config.layer_norm_eps)
    if config.model_type == "mpnet":
        attention = _group(attn=_group(q=square(), k=square(), v=square(), o=square()), LayerNorm=norm())
    else:
        maps = _group(query=square(), key=square(), value=square())
        attention = _group(self=maps, output=_group(dense=square(), LayerNorm=norm()))
    activation = ACTIVATIONS[config.hidden_act]()
    return _group(
        attention=attention,
        intermediate=_group(dense=nn.Linear(width, inner), intermediate_act_fn=activation),
        output=_group(dense=nn.Linear(inner, width), LayerNorm=norm()),
    )


def _table(rows: int, width: int, pad: int | None = None) -> nn.Embedding:
    """Return uninitialised embeddings: initialising them on the device `meta` would make torch import its compiler."""
    made = nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False, padding_idx=pad)  # type: ignore[no-untyped-call]
    return cast(nn.Embedding, made)


def _group(**modules: nn.Module) -> nn.Module:
    """Return a module of these modules."""
    group = nn.Module()
    for name, module in modules.items():
        group.add_module(name, module)
    return group

"""The text encoder: tokens in, one vector per text out; the same in training and inference."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from denn.encoders import packed, quantised
from denn.encoders.checkpoint_folder import load_model
from denn.encoders.layers import FIRST_POSITION, Layer, Parts, layers_of, parts_of
from denn.encoders.layout import Layout, send
from denn.encoders.padded import padded_states
from denn.encoders.precision import Precision, matrix_dtype
from denn.encoders.quantised import QuantisedLayer, Ranges
from denn.encoders.sentence_folder import Pooling, read_folder, write_settings
from denn.encoders.tokenizer_file import load_tokenizer
from denn.encoders.tokens import Tokens, tokenize
from denn.encoders.weights import CARRIED, locate
from denn.errors import ConfigError, EncoderError
from denn.untrusted import first_line

log = logging.getLogger(__name__)

MOST_BIAS = 2**28  # numbers that MPNet adds to attention, one for each head and pair of positions
HEAD_SIZES = (16, 32, 64, 128)  # supported by our CUDA kernels
# Tokens per pass: small enough for a CPU's caches, large enough to fill an accelerator.
INFERENCE_TOKENS = {"cpu": 1024, "cuda": 65_535}
SAMPLE_TOKENS = 4096  # for measuring the ranges of 8-bit integers


class TransformerEncoder(nn.Module):
    """A pre-trained transformer with its tokenizer and pooling."""

    def __init__(
        self, model: Any, tokenizer: Tokenizer, *, pooling: Pooling, max_length: int, precision: Precision = "auto"
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.first_position = FIRST_POSITION.get(model.config.model_type)
        places = getattr(model.config, "max_position_embeddings", None) or max_length  # some models have no limit
        self.max_length = min(max_length, places - (self.first_position or 0))
        self.limit: int | None = None  # maximum length in tokens according to the encoder's folder
        self.precision = precision
        self.frozen_layers: int | None = None  # lowest ones, with the embeddings; None: everything can be trained
        self._prepared: tuple[torch.dtype, list[Layer]] | None = None
        self._quantised: list[QuantisedLayer] | None = None
        self._bias: tuple[tuple[object, ...], Tensor] | None = None
        if model.config.model_type == "mpnet":
            if model.config.num_attention_heads * self.max_length**2 > MOST_BIAS:
                raise EncoderError(f"{self.max_length} tokens are too many for MPNet. Set max_length=512.")
            # These 384 numbers are not trained: their gradient would cost a tenth of a step.
            model.encoder.relative_attention_bias.requires_grad_(False)

    @classmethod
    def load(
        cls, name: str, *, pooling: Pooling | None = None, max_length: int = 320, precision: Precision = "auto"
    ) -> TransformerEncoder:
        """Load an encoder by name, local folder or hub name; `pooling` defaults to the one it was trained with."""
        folder = locate(name)
        found = read_folder(folder, pooling)
        model, tokenizer = load_model(found.transformer), load_tokenizer(found.transformer, found.lower_case)
        limit = None if name in CARRIED else found.max_length  # all published results of those use max_length
        if limit is not None and limit < max_length:
            log.debug("The encoder in %s was made for texts of %d tokens; longer ones are truncated.", folder, limit)
        try:
            self = cls(
                model,
                tokenizer,
                pooling=found.pooling,
                max_length=min(max_length, limit or max_length),
                precision=precision,
            )
            self.limit = limit
            tried = self.encode(self.tokenize(["one text", ""]))  # also drops the copies of weights that it makes
        except EncoderError:
            raise
        except Exception as error:  # settings that fit the weights but not each other may raise anything
            raise EncoderError(f"The encoder in {folder} cannot be used ({first_line(error)}).") from error
        if not bool(tried.isfinite().all()):
            raise EncoderError(f"The output of the encoder in {folder} is not finite. Download the encoder again.")
        return self

    def save(self, folder: Path) -> None:
        """Write weights, tokenizer and pooling so that `load` reads them back."""
        self.model.save_pretrained(folder)
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        (folder / "tokenizer.json").write_text(self.tokenizer.to_str(pretty=True), encoding="utf-8")
        write_settings(folder, self.pooling, self.limit)

    @property
    def width(self) -> int:
        """The dimension d of the embeddings."""
        return int(self.model.config.hidden_size)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return cast(torch.device, self.model.device)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the matrix products on the current device."""
        return matrix_dtype(self.precision, self.device)

    @property
    def pass_tokens(self) -> int:
        """The number of tokens per inference pass."""
        return INFERENCE_TOKENS[self.device.type]

    @property
    def vocabulary(self) -> int:
        """The number of tokens with an embedding."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def tokenize(self, texts: Sequence[str], reserved: int = 0) -> Tokens:
        """Convert texts to ids on the CPU, truncated to the maximum length minus `reserved`."""
        return tokenize(self.tokenizer, texts, self.max_length - reserved, self.vocabulary)

    def train(self, mode: bool = True) -> TransformerEncoder:
        """Switch dropout on or off, and drop copies of weights for inference, which may be outdated."""
        self._prepared = None
        if mode:
            self._quantised = None
        return super().train(mode)

    def freeze_below(self, trained: int) -> None:
        """Train only the last `trained` layers; freeze the embeddings and lower layers, without dropout."""
        if not self.can_freeze:
            kind = self.model.config.model_type
            raise ConfigError(f"Got trained_layers = {trained}, but {kind} always trains all layers. Leave it out.")
        if trained > self.layers:
            raise ConfigError(
                f"Got trained_layers = {trained}, but the encoder has {self.layers} layers. Use at most that many."
            )
        self.frozen_layers = self.layers - trained
        self.requires_grad_(False)
        for layer in self.model.encoder.layer[self.frozen_layers :]:
            layer.requires_grad_(True)

    @property
    def layers(self) -> int:
        """The number of layers."""
        return int(self.model.config.num_hidden_layers)

    @property
    def can_freeze(self) -> bool:
        """Whether lower layers can be frozen: those of a packed forward can."""
        return self.first_position is not None

    @property
    def trained_share(self) -> float:
        """The share of the layers that can be trained."""
        return 1 - self.frozen_layers / self.layers if self.frozen_layers else 1.0

    def forward(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None) -> Tensor:
        """Embed packed texts in the form that `states` takes: one float32 (n,d) row per document."""
        return packed.pool(self.states(ids, layout, seeds), layout, self.pooling)

    def states(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None, types: Tensor | None = None) -> Tensor:
        """Run packed (T,) ids, or their (T,d) states from `lower`, through the model: (T,d).

        `types` are BERT's (T,) token types, 0 if None; models without token types ignore them. `seeds` come from
        `draw_seeds` and are drawn if None.
        """
        if self.first_position is None:
            with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
                return padded_states(self.model, ids, layout)
        x = ids.to(self.dtype) if ids.is_floating_point() else self.lower(ids, layout, types)
        dropouts = self._dropouts()
        if seeds is None and self.kernels:
            seeds = self.draw_seeds() if any(dropouts) else self._no_seeds()
        return self._run(x, layout, slice(self.frozen_layers or 0, None), dropouts, seeds)

    def lower(self, ids: Tensor, layout: Layout, types: Tensor | None = None) -> Tensor:
        """Run packed (T,) ids through the embeddings and the frozen layers, without dropout if they are frozen."""
        if self.frozen_layers is None:
            return packed.dropout(self._embedded(ids, layout, types), self._dropouts()[0]).to(self.dtype)
        with torch.no_grad():
            x = self._embedded(ids, layout, types).to(self.dtype)
            seeds = self._no_seeds() if self.kernels else None
            return self._run(x, layout, slice(self.frozen_layers), (0.0, 0.0), seeds)

    def autocast(self) -> AbstractContextManager[None]:
        """Leave the precision of the layers on top of the encoder unchanged; its own is `dtype`."""
        return nullcontext()

    def draw_seeds(self) -> Tensor:
        """Draw the seeds of the dropout in one forward pass."""
        return packed.draw_seeds(self.layers, self.device)

    @property
    def kernels(self) -> packed.Kernels | None:
        """Our CUDA kernels if they support this model: in bfloat16, with a supported head size."""
        config = self.model.config
        if self.first_position is None or self.device.type != "cuda" or self.dtype != torch.bfloat16:
            return None
        return packed.kernels() if config.hidden_size // config.num_attention_heads in HEAD_SIZES else None

    @torch.inference_mode()
    def encode(self, tokens: Tokens, report: Callable[[int], None] | None = None, *, in_int8: bool = False) -> Tensor:
        """Embed all texts without dropout, in order: float32 (n,d) on the CPU; `report` gets the number of texts done.

        `in_int8` computes in 8-bit integers, which `quantise` prepares.
        """
        was_training = self.training
        if was_training:
            self.eval()
        out, done = torch.empty(len(tokens), self.width), 0
        for rows, embeddings in self._passes(tokens, in_int8):
            out[rows] = embeddings.cpu()
            done += len(rows)
            if report:
                report(done)
        if was_training:
            self.train()
        return out

    @torch.inference_mode()
    def embed(self, tokens: Tokens, *, in_int8: bool = False) -> Tensor:
        """Embed some texts as `encode` does: float32 (n,d) on the device, without waiting for it."""
        if self.training:
            return self.encode(tokens, in_int8=in_int8).to(self.device)
        out = torch.empty(len(tokens), self.width, device=self.device)
        for rows, embeddings in self._passes(tokens, in_int8):
            out[send(rows, self.device)] = embeddings
        return out

    def _passes(self, tokens: Tokens, in_int8: bool) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows of texts with their embeddings until all are embedded."""
        on_device, embed = tokens.to(self.device), self._in_int8 if in_int8 else self
        for rows in tokens.by_length(self.pass_tokens):
            yield rows, embed(*on_device.pack(rows))

    @property
    def can_quantise(self) -> bool:
        """Whether `quantise` works for this model on this machine."""
        packs = self.first_position is not None and self.device.type == "cpu"
        return packs and self.model.config.hidden_act == "gelu" and quantised.is_available()

    def quantise(self, ranges: Sequence[Ranges]) -> None:
        """Prepare to encode in 8-bit integers; call it again after changing weights."""
        self._quantised = quantised.quantise(layers_of(self._parts(), torch.float32), ranges)

    @torch.inference_mode()
    def measure_ranges(self, samples: Tokens) -> list[Ranges]:
        """Measure on sample texts the ranges that `quantise` needs."""
        fitting = max(1, int((samples.offsets <= SAMPLE_TOKENS).sum()) - 1)
        ids, layout = samples.pack(torch.arange(fitting))
        layers, heads = layers_of(self._parts(), torch.float32), self.model.config.num_attention_heads
        bias = self._position_bias()
        bias = None if bias is None else bias.float()
        return quantised.measure_ranges(self._embedded(ids, layout), layers, layout, heads, bias)

    def _in_int8(self, ids: Tensor, layout: Layout) -> Tensor:
        """Embed packed texts in 8-bit integers."""
        assert self._quantised is not None, "call quantise() before encoding in int8"
        heads, bias = self.model.config.num_attention_heads, self._position_bias()
        bias = None if bias is None else bias.float()
        states = quantised.run_layers(self._embedded(ids, layout), self._quantised, layout, heads, bias)
        return packed.pool(states, layout, self.pooling)

    def _prepared_layers(self) -> list[Layer]:
        """Return the weights for inference, prepared once."""
        prepared = self._prepared  # read once: other threads may encode too
        if prepared is None or prepared[0] != self.dtype:
            prepared = self._prepared = self.dtype, layers_of(self._parts(), self.dtype)
        return prepared[1]

    def _parts(self) -> list[Parts]:
        """Return the modules of every layer."""
        return [parts_of(layer, self.model.config.model_type) for layer in self.model.encoder.layer]

    def _dropouts(self) -> tuple[float, float]:
        """Return the dropout rates of hidden states and attention weights."""
        config = self.model.config
        return (config.hidden_dropout_prob, config.attention_probs_dropout_prob) if self.training else (0.0, 0.0)

    def _embedded(self, ids: Tensor, layout: Layout, types: Tensor | None = None) -> Tensor:
        """Return the embeddings of packed ids: (T,d)."""
        embeddings = self.model.embeddings
        x = embeddings.word_embeddings(ids) + embeddings.position_embeddings(
            layout.positions + (self.first_position or 0)
        )
        if hasattr(embeddings, "token_type_embeddings"):
            kinds = embeddings.token_type_embeddings.weight
            x = x + (kinds[0] if types is None or len(kinds) < 2 else kinds[types])
        return cast(Tensor, embeddings.LayerNorm(x))

    def _run(
        self, x: Tensor, layout: Layout, which: slice, dropouts: tuple[float, float], seeds: Tensor | None
    ) -> Tensor:
        """Run (T,d) states through some of the layers."""
        if torch.is_inference_mode_enabled() and not self.training:
            layers = self._prepared_layers()[which]
        else:
            layers = layers_of(self._parts()[which], self.dtype)
        heads = self.model.config.num_attention_heads
        return packed.run_layers(x, layers, layout, heads, self._position_bias(), dropouts, seeds)

    def _no_seeds(self) -> Tensor:
        return torch.zeros(3 * self.layers, 4, dtype=torch.int32, device=self.device)

    def _position_bias(self) -> Tensor | None:
        """Return MPNet's attention bias by relative position, for the longest text, computed once."""
        if self.model.config.model_type != "mpnet":
            return None
        weight = self.model.encoder.relative_attention_bias.weight
        made_of = (weight._version, self.device, self.dtype)
        kept = self._bias
        if kept is None or kept[0] != made_of:
            with torch.inference_mode(False), torch.no_grad():  # training uses it too
                longest = torch.empty(1, self.max_length, 0, device=self.device)
                bias = self.model.encoder.compute_position_bias(longest)[0]  # (heads, longest, longest)
                prepared = packed.prepare_bias(bias, self.dtype, self.kernels)
                if kept is not None and kept[0][1:] == made_of[1:]:
                    prepared = kept[1].copy_(prepared)  # in place: recorded CUDA graphs read this memory
                kept = self._bias = made_of, prepared
        return kept[1]

"""Shared by methods that score with a network: its parameters, interface, batches and files."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat
from safetensors.torch import save_file
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.encoders.precision import Precision
from denn.encoders.sentence_folder import Pooling
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder
from denn.errors import BundleError, ConfigError
from denn.protocols import Encoder, Progress
from denn.training.bounds import Layers, Length
from denn.training.plan import Plan
from denn.training.share import WHOLE, Share
from denn.types import Corpus
from denn.untrusted import REMEDY, load_weights

LAYER = re.compile(r"\blayer\.(\d+)\.")  # in the name of a weight of a transformer layer
AUTO_SHARE, AUTO_RATE = 3, 2.0  # with auto on a CPU: train a third of the layers, at twice the rate
FORMER = {"head.weight": "weight", "head.bias": "bias"}  # names in bundle format 1
REST = "head.safetensors"  # a network's weights, except the encoder's


@dataclass(frozen=True, kw_only=True)
class NeuralParameters(Plan, ABC):
    """Training parameters of a network, independent of its input."""

    device: str = "auto"
    precision: Precision = "auto"
    learning_rate: PositiveFloat = 1e-3
    draw: Literal["evenly", "as_valid"] = "evenly"  # as_valid: label sets as often as in validation; not in the paper

    @abstractmethod
    def new_encoder(self, corpus: Corpus) -> Encoder:
        """Create the encoder for the texts of a corpus."""

    @abstractmethod
    def load_encoder(self, folder: Path) -> Encoder:
        """Load what a trained encoder's `save` wrote."""

    def encoder_rate(self, encoder: Encoder) -> float:
        """Return the learning rate of the encoder's last layer."""
        return self.learning_rate


@dataclass(frozen=True, kw_only=True)
class TransformerParameters(NeuralParameters):
    """A pre-trained encoder, and how to fine-tune it."""

    encoder: str = "minilm"
    pooling: Pooling | None = None  # None: the pooling that the encoder was trained with
    max_length: Annotated[Length, Field(ge=3)] = 320  # [CLS], one token, [SEP]
    learning_rate: PositiveFloat = 1e-4
    head_learning_rate: PositiveFloat | None = None  # None: the same as the encoder's
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 0.85  # of the learning rate, per layer towards the input
    trained_layers: Layers | Literal["auto"] | None = None  # the last layers; auto: a third on a CPU; None: all

    def freeze(self, encoder: TransformerEncoder, device: torch.device) -> None:
        """Freeze the layers of an encoder that should not be trained on this device."""
        if self.trained_layers == "auto":
            if device.type == "cpu" and encoder.can_freeze:
                encoder.freeze_below(-(-encoder.layers // AUTO_SHARE))
        elif self.trained_layers is not None:
            encoder.freeze_below(self.trained_layers)

    def encoder_rate(self, encoder: Encoder) -> float:
        """Return the learning rate of the encoder's last layer, higher if lower layers were frozen automatically."""
        in_part = isinstance(encoder, TransformerEncoder) and encoder.frozen_layers is not None
        return self.learning_rate * (AUTO_RATE if self.trained_layers == "auto" and in_part else 1.0)

    def new_encoder(self, corpus: Corpus) -> TransformerEncoder:
        """Load the pre-trained encoder."""
        return TransformerEncoder.load(
            self.encoder, pooling=self.pooling, max_length=self.max_length, precision=self.precision
        )

    def load_encoder(self, folder: Path) -> TransformerEncoder:
        """Load a fine-tuned encoder."""
        return TransformerEncoder.load(str(folder), max_length=self.max_length, precision=self.precision)


class Batch(NamedTuple):
    """Texts of a training step. If steps are recorded, the last document of the layout is padding."""

    ids: Tensor  # (T,)
    layout: Layout
    labels: Tensor  # (n,L) bool
    seeds: Tensor | None  # seeds of the dropout in our own kernels
    share: Share = WHOLE  # if several processes share the batch: which documents of it these are


class Network(nn.Module):
    """An encoder with layers on top; a subclass writes `forward(ids, layout, seeds=None)`, or `loss` and `infer`.

    `forward` returns the (n,L) logits of packed texts.

    Everything that loading needs besides the encoder is in parameters and buffers, which `save` writes.
    """

    encoder: Encoder
    views: int = 1  # number of views of each text in a training step, in adjacent rows
    most_texts: int | None = None  # per inference pass, if memory grows with texts rather than tokens
    can_freeze: ClassVar[bool] = False  # whether the head can learn alone, on embeddings of `encode`
    reads_states: bool = False  # whether it accepts states of the encoder's frozen layers as texts
    can_share: ClassVar[bool] = False  # whether the weighted losses of the shares of a batch add up to its loss
    judged: ClassVar[str] = "final"  # part of the scores whose validation selects the weights
    watched: ClassVar[str] = "final"  # part of the scores that shows whether texts still differ: not of 0 and 1 alone
    recordable: ClassVar[bool] = True  # whether `loss` is pure device work that reads no values on the CPU

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean loss of a batch: by default that of its labels alone."""
        return self.classification_loss(self(batch.ids, batch.layout, batch.seeds)[: len(batch.labels)], batch.labels)

    def classification_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of (n,L) logits and bool labels: binary cross-entropy, as the mean over texts and labels."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))

    def infer(self, ids: Tensor, layout: Layout) -> dict[str, Tensor]:
        """Return (n,L) scores of packed texts in [0,1]: `final`, and other parts by name."""
        return {"final": torch.sigmoid(self(ids, layout).float())}

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Turn texts into tokens."""
        return self.encoder.tokenize(texts)

    def alter(self, ids: Tensor, layout: Layout) -> Tensor:
        """Change the ids of a training batch; the default does not."""
        return ids

    def prepare(self, corpus: Corpus) -> None:
        """Fill buffers from the corpus before training; the default has none."""

    def continue_from(self, folder: Path) -> None:
        """Start with what another model learnt about the first labels, besides its encoder."""
        raise ConfigError("This method cannot continue from another model. Train without one, or use the method denn.")

    def start(self, tokens: Tokens, labels: Tensor, parameters: Any, progress: Progress, sampled: int) -> None:
        """Initialise from the training documents, or from `sampled` of them if a sample is enough."""

    def groups(self, parameters: Any) -> list[dict[str, Any]]:
        """Return the parameter groups with their learning rates: encoder layers and the layers on top."""
        rate, decay = parameters.encoder_rate(self.encoder), getattr(parameters, "layer_decay", 1.0)
        depths: dict[int, list[nn.Parameter]] = {}
        for name, weight in self.encoder.named_parameters():
            if weight.requires_grad:
                layer = LAYER.search(name)
                depths.setdefault(int(layer[1]) + 1 if layer and decay < 1 else 0, []).append(weight)
        top = max(depths, default=0)
        mine = {id(weight) for weight in self.encoder.parameters()}
        rest = [w for w in self.parameters() if w.requires_grad and id(w) not in mine]
        return [
            *({"params": depths[depth], "lr": rate * decay ** (top - depth)} for depth in sorted(depths)),
            {"params": rest, "lr": getattr(parameters, "head_learning_rate", None) or parameters.learning_rate},
        ]

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.encoder.device

    @torch.inference_mode()
    def score(self, tokens: Tokens, report: Callable[[int], None] | None = None) -> dict[str, Tensor]:
        """Score all texts without dropout, in order, as `infer` does: on the CPU; `report` gets the texts done."""
        was_training = self.training
        if was_training:
            self.eval()
        found: dict[str, Tensor] = {}
        on_device, done = tokens.to(self.device), 0
        for rows in tokens.by_length(self.encoder.pass_tokens, self.most_texts):
            with self.encoder.autocast():
                parts = self.infer(*on_device.pack(rows))
            for name, values in parts.items():
                found.setdefault(name, torch.empty(len(tokens), values.shape[1]))[rows] = values.float().cpu()
            done += len(rows)
            if report:
                report(done)
        if was_training:
            self.train()
        return found

    def save(self, folder: Path) -> None:
        """Write `encoder/` and all other weights."""
        self.encoder.save(folder / "encoder")
        self.save_rest(folder)

    def save_rest(self, folder: Path) -> None:
        """Write all weights except the encoder's."""
        save_file({name: tensor.cpu().contiguous() for name, tensor in self._rest().items()}, folder / REST)

    def load(self, folder: Path) -> None:
        """Load all weights except the encoder's; the network may be on the device `meta`, without memory."""
        load_weights(self, folder / REST, BundleError, without="encoder.", former=FORMER)
        if not self.is_sound():
            raise BundleError(f"{folder / REST} contains numbers that this network cannot use. {REMEDY}")

    def is_sound(self) -> bool:
        """Return whether the loaded numbers are usable: tokens within the vocabulary, positions within a text."""
        return True

    def _rest(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("encoder.")}

"""What methods share whose scores a network gives: its parameters, what it must do, its batches, its files."""

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
from denn.encoders.sentence_folder import Pooling
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import Precision, TransformerEncoder
from denn.errors import BundleError, ConfigError
from denn.protocols import Encoder, Progress
from denn.training.bounds import Layers, Length
from denn.training.plan import Plan
from denn.types import Corpus
from denn.untrusted import REMEDY, load_weights

LAYER = re.compile(r"\blayer\.(\d+)\.")  # in the name of a weight of a transformer layer
AUTO_SHARE, AUTO_RATE = 3, 2.0  # where that is left open, a CPU trains one of so many layers, at so many times the rate
REST = "head.safetensors"  # the weights of a network beside its encoder's


@dataclass(frozen=True, kw_only=True)
class NeuralParameters(Plan, ABC):
    """How a network is trained, whatever it reads."""

    device: str = "auto"
    precision: Precision = "auto"
    learning_rate: PositiveFloat = 1e-3
    draw: Literal["evenly", "as_valid"] = "evenly"  # as_valid: label sets as often as in validation; beyond the paper

    @abstractmethod
    def new_encoder(self, corpus: Corpus) -> Encoder:
        """Make what reads the texts of a corpus."""

    @abstractmethod
    def load_encoder(self, folder: Path) -> Encoder:
        """Read what a trained encoder's `save` wrote."""

    def encoder_rate(self, encoder: Encoder) -> float:
        """Return the learning rate of the encoder's last layer."""
        return self.learning_rate


@dataclass(frozen=True, kw_only=True)
class TransformerParameters(NeuralParameters):
    """A pre-trained encoder, and how to fine-tune it."""

    encoder: str = "minilm"
    pooling: Pooling | None = None  # None: what the encoder was trained with
    max_length: Annotated[Length, Field(ge=3)] = 320  # [CLS], one token, [SEP]
    learning_rate: PositiveFloat = 1e-4
    head_learning_rate: PositiveFloat | None = None  # None: the same as the encoder's
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 0.85  # of the learning rate, from each layer to the one below
    trained_layers: Layers | Literal["auto"] | None = None  # the last ones; auto: on a CPU a third; None: all

    def freeze(self, encoder: TransformerEncoder, device: torch.device) -> None:
        """Freeze the layers of an encoder that are not to be trained on this device."""
        if self.trained_layers == "auto":
            if device.type == "cpu" and encoder.can_freeze:
                encoder.freeze_below(-(-encoder.layers // AUTO_SHARE))
        elif self.trained_layers is not None:
            encoder.freeze_below(self.trained_layers)

    def encoder_rate(self, encoder: Encoder) -> float:
        """Return the learning rate of the encoder's last layer, a higher one where lower layers were frozen unasked."""
        in_part = isinstance(encoder, TransformerEncoder) and encoder.frozen_layers is not None
        return self.learning_rate * (AUTO_RATE if self.trained_layers == "auto" and in_part else 1.0)

    def new_encoder(self, corpus: Corpus) -> TransformerEncoder:
        """Load the pre-trained encoder."""
        return TransformerEncoder.load(
            self.encoder, pooling=self.pooling, max_length=self.max_length, precision=self.precision
        )

    def load_encoder(self, folder: Path) -> TransformerEncoder:
        """Read a fine-tuned encoder."""
        return TransformerEncoder.load(str(folder), max_length=self.max_length, precision=self.precision)


class Batch(NamedTuple):
    """Texts of a training step. Where steps are recorded, a last document of the layout means nothing."""

    ids: Tensor  # (T,)
    layout: Layout
    labels: Tensor  # (n,L) bool
    seeds: Tensor | None  # that decide on the dropout of a transformer, where our kernels run


class Network(nn.Module):
    """An encoder and what stands on it; a subclass writes `forward(ids, layout, seeds=None)`, or `loss` and `infer`.

    `forward` returns the (n,L) logits of packed texts.

    Everything that loading needs beside the encoder lies in parameters and buffers, which `save` writes.
    """

    encoder: Encoder
    views: int = 1  # times that a text goes through in a training step, side by side
    most_texts: int | None = None  # in a pass of inference, where memory grows with them and not with their tokens
    can_freeze: ClassVar[bool] = False  # whether the head can learn alone, on embeddings of `encode`
    reads_states: bool = False  # whether texts may come as states of the encoder's frozen layers, unaltered
    recordable: ClassVar[bool] = True  # whether `loss` is work of the device alone: it looks at no value

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean loss of a batch; here binary cross-entropy, as the mean over texts and labels."""
        logits = self(batch.ids, batch.layout, batch.seeds)[: len(batch.labels)]
        return F.binary_cross_entropy_with_logits(logits.float(), batch.labels.float())

    def infer(self, ids: Tensor, layout: Layout) -> dict[str, Tensor]:
        """Return (n,L) scores of packed texts in [0,1]: `final`, and other parts by name."""
        return {"final": torch.sigmoid(self(ids, layout).float())}

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Turn texts into tokens."""
        return self.encoder.tokenize(texts)

    def alter(self, ids: Tensor, layout: Layout) -> Tensor:
        """Change the ids of a training batch; here not at all."""
        return ids

    def prepare(self, corpus: Corpus) -> None:
        """Fill buffers from the corpus before training; here nothing."""

    def continue_from(self, folder: Path) -> None:
        """Begin with what another model learnt of the first labels, beside its encoder."""
        raise ConfigError("This method cannot continue from another model; train without one, or use the method denn.")

    def start(self, tokens: Tokens, labels: Tensor, parameters: Any, progress: Progress, sampled: int) -> None:
        """Set what a first look at the training documents decides, `sampled` of them where a sample will do."""

    def groups(self, parameters: Any) -> list[dict[str, Any]]:
        """Give the layers of the encoder and what stands on it their learning rates."""
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
        """Where the weights are."""
        return self.encoder.device

    @torch.inference_mode()
    def score(self, tokens: Tokens, report: Callable[[int], None] | None = None) -> dict[str, Tensor]:
        """Score all texts without dropout, in their order, as `infer` does: on the CPU; `report` hears texts done."""
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
        """Write all weights but the encoder's."""
        save_file({name: tensor.cpu().contiguous() for name, tensor in self._rest().items()}, folder / REST)

    def load(self, folder: Path) -> None:
        """Read the weights beside the encoder's; the network may stand on the device `meta`, without memory."""
        load_weights(self, folder / REST, BundleError, without="encoder.")
        if not self.is_sound():
            raise BundleError(f"{folder / REST} holds numbers that mean nothing to this network. {REMEDY}")

    def is_sound(self) -> bool:
        """Say whether the numbers that `load` read can be used: tokens within the vocabulary, places within a text."""
        return True

    def _rest(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("encoder.")}

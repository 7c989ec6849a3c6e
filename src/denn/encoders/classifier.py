"""A text encoder with one linear map to the labels: the network of DENN and of every plain classifier."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from denn.encoders.packed import Layout
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder


class Classifier(nn.Module):
    """Embeds texts, h = scale · pooled, and scores labels, ŷ = sigmoid(W h + b), Eq. 2.

    The scale is a constant fixed before training. The embedding is taken before the head's dropout.
    """

    scale: Tensor

    def __init__(self, encoder: TransformerEncoder, labels: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.width, labels)
        self.dropout = dropout
        self.register_buffer("scale", torch.ones(()))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.weight.device

    def forward(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the (n,d) embeddings and the (n,L) logits of packed texts."""
        embeddings = self.scale * self.encoder(ids, layout, seeds)
        return embeddings, self.head(F.dropout(embeddings, self.dropout, self.training))

    @torch.inference_mode()
    def probabilities(self, embeddings: Tensor) -> Tensor:
        """Score unscaled (n,d) embeddings as `TransformerEncoder.encode` returns them: (n,L) on the CPU."""
        logits = self.head(self.scale * embeddings.to(self.device))
        return torch.sigmoid(logits).cpu()

    def encode(self, tokens: Tokens) -> Tensor:
        """Embed texts without dropout, unscaled: (n,d) on the CPU. Cosine, and so the datastore, ignores the scale."""
        return self.encoder.encode(tokens)

    def save(self, folder: Path) -> None:
        """Write `encoder/` and `head.safetensors`."""
        self.encoder.save(folder / "encoder")
        tensors = {"weight": self.head.weight, "bias": self.head.bias, "scale": self.scale}
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, _head_file(folder))

    def load_head(self, folder: Path) -> None:
        """Read `head.safetensors`."""
        tensors = load_file(_head_file(folder))
        self.scale = tensors.pop("scale")
        self.head.load_state_dict(tensors)


def _head_file(folder: Path) -> Path:
    return folder / "head.safetensors"

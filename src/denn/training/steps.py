"""The inputs and the loss of training steps: what a process needs to compute its share of them."""

from __future__ import annotations

import torch
from torch import Tensor

from denn.encoders.layout import Layout, send
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder
from denn.training.gradients import Inputs
from denn.training.network import Batch, Network
from denn.training.share import WHOLE


class Steps:
    """A network, and the documents and labels that it trains on."""

    def __init__(self, network: Network, tokens: Tokens, labels: Tensor, multiple: int) -> None:
        self.network, self.on_device, self.labels = network, tokens, labels
        self.multiple = multiple  # of the tokens of a pass, if steps are recorded
        self.share = WHOLE  # of the batch, in this process

    def prepare(self, rows: Tensor) -> Inputs:
        """Put a batch on the device: ids, starts, labels, seeds; the views of a text are adjacent."""
        device = self.network.device
        rows = rows[self.on_device.lengths[rows].argsort(stable=True)]  # group equal lengths
        labels = self.labels[send(rows, device)]
        ids, layout = self.on_device.pack(rows.repeat_interleave(self.network.views), self.multiple)
        ids = self.network.alter(ids, layout)
        self.layout = layout
        encoder, seeds = self.network.encoder, torch.empty(0)
        if self.multiple > 1 and isinstance(encoder, TransformerEncoder):
            seeds = encoder.draw_seeds()
        return ids, layout.starts, labels, seeds

    def compute(self, ids: Tensor, starts: Tensor, labels: Tensor, seeds: Tensor) -> Tensor:
        """Return the network's loss for the result of `prepare`, weighted by the share of the batch."""
        recorded = self.multiple > 1
        layout = Layout.at(starts, len(ids), self.network.encoder.max_length) if recorded else self.layout
        with self.network.encoder.autocast():
            loss = self.network.loss(Batch(ids, layout, labels, seeds if recorded else None, self.share))
        return loss if self.share is WHOLE else loss * self.share.weight

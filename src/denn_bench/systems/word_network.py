"""Networks on words that score each label by features of its own: their loss, and where they start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from denn.encoders.tokens import Tokens
from denn.protocols import Progress
from denn.training.network import Batch, Network
from denn.training.plan import Schedule
from denn_bench.core.prior import log_odds
from denn_bench.systems.core_network import summed_loss
from denn_bench.systems.word_parameters import WordParameters


@dataclass(frozen=True, kw_only=True)
class PerLabelParameters(WordParameters):
    """Parameters of networks with features for each label."""

    epsilon: PositiveFloat = 1e-15  # far below the gradients of parts that thousands of labels share
    batch_size: PositiveInt = 64
    epochs: NonNegativeInt = 10
    schedule: Schedule = "constant"


class PerLabelNetwork(Network, ABC):
    """A network on words whose binary cross-entropy is summed over labels and averaged over texts.

    The mean over thousands of labels would leave gradients below Adam's usual ε of 1e-8, so that labels, their
    attention and graphs would stay as they were drawn.
    """

    @property
    @abstractmethod
    def bias(self) -> Tensor:
        """The bias of each label, or the one that all labels share."""

    def loss(self, batch: Batch) -> Tensor:
        """Return the binary cross-entropy, summed over labels, as the mean over texts."""
        logits = self(batch.ids, batch.layout, batch.seeds)[: len(batch.labels)]
        return summed_loss(logits.float(), batch.labels)

    def start(self, tokens: Tokens, labels: Tensor, parameters: Any, progress: Progress, sampled: int) -> None:
        """Initialise the biases with the log-odds of the labels, as the plain classifier does."""
        with torch.no_grad():
            self.bias.copy_(log_odds(labels, shared=len(self.bias) == 1))

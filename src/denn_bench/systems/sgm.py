"""SGM (Yang et al., 2018): labels as a sequence; every step sees the whole distribution of the previous step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.training.bounds import Layers
from denn.training.neural import Neural
from denn.training.plan import Schedule
from denn_bench.core.beam import State
from denn_bench.encoders.words import WordEncoder
from denn_bench.systems.sequences import DotAttention, Memory, SequenceNetwork, SequenceParameters, Share


@dataclass(frozen=True, kw_only=True)
class SgmParameters(SequenceParameters):
    """SGM with global embedding and the settings of its release of 2018; a later rewrite has others."""

    global_embedding: bool = True
    temperature: PositiveFloat = 1.0  # of the distribution for the global embedding; released code: 0.1
    decoder_layers: Layers = 2
    word_dropout: Share | None = 0.0
    word_spread: PositiveFloat = 1.0
    epochs: NonNegativeInt = 50
    schedule: Schedule = "cosine"
    warmup: Share | None = 0.0
    evaluate_every: NonNegativeInt = 100


class SgmNetwork(SequenceNetwork):
    """An LSTM decoder whose input is the last label and what else the previous step considered likely.

    g = H ⊙ e + (1 − H) ⊙ ē,   H = sigmoid(W₁ e + W₂ ē),   ē = Σ_k softmax(z_{t−1} / τ)_k e_k
    with e the last label's vector and z_{t−1} the logits of the previous step, zeros at first. Gradients flow through
    them, and every beam keeps its own.
    """

    def __init__(self, encoder: WordEncoder, labels: int, p: SgmParameters) -> None:
        super().__init__(encoder, labels, p, "lstm", general_attention(p), feeds_context=False)
        self.temperature, width = p.temperature, self.label_vectors.embedding_dim
        self.gate_last = nn.Linear(width, width)
        self.gate_mean = nn.Linear(width, width, bias=False)

    def read(self, ids: Tensor, layout: Layout) -> tuple[Memory, State]:
        """Encode packed texts; the state ends with the logits before the first step, all zero."""
        memory, state = super().read(ids, layout)
        return memory, (*state, state[0].new_zeros(len(state[0]), self.labels + 1, dtype=torch.float32))

    def look_up(self, last: Tensor, state: State) -> Tensor:
        """Return the (m,w) global embeddings g."""
        vector = super().look_up(last, state)  # (m,w)
        shares = torch.softmax(state[-1] / self.temperature, 1)  # (m,L+1)
        mean = shares @ self.label_vectors.weight[: self.labels + 1]
        gate = torch.sigmoid((self.gate_last(vector) + self.gate_mean(mean)).float())
        mixed: Tensor = gate * vector + (1 - gate) * mean
        return mixed

    def step(self, last: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        """Take one step and keep its logits for the next one."""
        logits, state = super().step(last, state, memory)
        return logits, (*state, logits)


class Sgm(Neural):
    """The row SGM of the paper's tables, with global embedding; without it, the plain sequence model."""

    Parameters = SgmParameters

    def make(self, encoder: WordEncoder, labels: int) -> SequenceNetwork:
        """Add LSTM layers and an LSTM decoder to the words."""
        if self.parameters.global_embedding:
            return SgmNetwork(encoder, labels, self.parameters)
        return SequenceNetwork(
            encoder, labels, self.parameters, "lstm", general_attention(self.parameters), feeds_context=False
        )


def general_attention(p: SgmParameters) -> DotAttention:
    """Return Luong's attention as the release of 2018 has it: without tanh on the query."""
    return DotAttention(2 * p.hidden, 2 * p.hidden, bounded=False)

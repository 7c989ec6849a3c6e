"""SeqTag: the labels, read as tokens after the text, are tagged one after the other as relevant or not.

A system of Zhang et al. (LACO), Findings of ACL 2021: a bidirectional LSTM over the labels' states in a fixed order,
the most frequent first, and a linear-chain conditional random field over their tags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder
from denn.protocols import Progress
from denn.training.network import Batch
from denn.training.neural import Neural
from denn_bench.core import crf
from denn_bench.core.prior import log_odds
from denn_bench.systems.core_network import LabelTokenParameters, TrainedAsReleased


@dataclass(frozen=True, kw_only=True)
class SeqTagParameters(LabelTokenParameters):
    """Sizes and learning rates, which were not published; other training settings are those of CORE."""

    hidden: PositiveInt = 384  # of the LSTM, in each direction
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1  # after the LSTM
    head_learning_rate: PositiveFloat | None = 1e-3  # of LSTM and CRF
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0


class SeqTagNetwork(TrainedAsReleased):
    """Tag the sequence of labels, 1 for those that belong to the text; the best sequence of tags decides."""

    watched = "marginals"

    def __init__(self, encoder: TransformerEncoder, labels: int, hidden: int, dropout: float) -> None:
        super().__init__(encoder, labels)
        self.dropout = dropout
        self.sequence = nn.LSTM(encoder.width, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, 2)
        self.transitions = nn.Parameter(torch.zeros(2, 2))
        self.start_scores = nn.Parameter(torch.zeros(2))
        self.end_scores = nn.Parameter(torch.zeros(2))

    def start(self, tokens: Tokens, labels: Tensor, parameters: Any, progress: Progress, sampled: int) -> None:
        """Initialise the bias of tag 1, which all labels share, with the log-odds of their mean share."""
        with torch.no_grad():
            self.head.bias[0] = 0
            self.head.bias[1:] = log_odds(labels, shared=True)

    def emissions(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None, count: int | None = None) -> Tensor:
        """Return the (n,L,2) scores of both tags of each label of packed texts."""
        states, _ = self.sequence(self.read(ids, layout, seeds, count).labels)  # (n,L,2·hidden)
        found: Tensor = self.head(F.dropout(states, self.dropout, self.training))
        return found.float()

    def loss(self, batch: Batch) -> Tensor:
        """Return −log P of the documents' own tags, as the mean over texts."""
        emissions = self.emissions(batch.ids, batch.layout, batch.seeds, len(batch.labels))
        field = (self.transitions, self.start_scores, self.end_scores)
        return (crf.log_partition(emissions, *field) - crf.path_score(emissions, batch.labels.long(), *field)).mean()

    def infer(self, ids: Tensor, layout: Layout) -> dict[str, Tensor]:
        """Return the tags of the best sequence, which decide, and the marginals of tag 1."""
        emissions = self.emissions(ids, layout)
        field = (self.transitions, self.start_scores, self.end_scores)
        return {
            "final": crf.viterbi(emissions, *field).float(),
            "marginals": crf.marginals(emissions, *field)[:, :, 1],
        }


class SeqTag(Neural):
    """The row SeqTag of the paper's tables."""

    Parameters = SeqTagParameters

    def make(self, encoder: TransformerEncoder, labels: int) -> SeqTagNetwork:
        """Add LSTM and CRF to the encoder."""
        return SeqTagNetwork(encoder, labels, self.parameters.hidden, self.parameters.dropout)

"""The plain classifier: DENN's network trained on binary cross-entropy alone, without neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat

from denn.encoders.classifier import Classifier
from denn.encoders.transformer import Pooling, Precision, TransformerEncoder
from denn.methods.denn import DENN, DennParameters
from denn.training.loop import Plan
from denn.types import Corpus, LabelSpace, Progress, Scores


@dataclass(frozen=True, kw_only=True)
class BertParameters(Plan):
    """What DENN's network and its training have, with DENN's defaults."""

    encoder: str = "minilm"
    pooling: Pooling | None = None  # None: what the encoder was trained with
    max_length: Annotated[int, Field(ge=3)] = 320  # [CLS], one token, [SEP]
    precision: Precision = "auto"
    device: str = "auto"
    learning_rate: PositiveFloat = 5e-5
    head_learning_rate: PositiveFloat | None = None  # None: the same as the encoder's
    embedding_norm: PositiveFloat | None = 15.0  # mean length of h at the start; None: as the encoder gives it
    head_start: NonNegativeInt = 0  # epochs of the head alone, on frozen embeddings, before the encoder trains too
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1  # before the head
    draw: Literal["evenly", "as_valid"] = "evenly"  # as_valid: label sets as often as in validation; beyond the paper


class Bert:
    """The row BERT of the paper's tables."""

    Parameters = BertParameters

    def __init__(self, parameters: BertParameters) -> None:
        self.parameters = parameters
        self.names: tuple[str, ...] = ()
        self.network: Classifier

    def fit(self, corpus: Corpus, workdir: Path, progress: Progress) -> Mapping[str, object]:
        """Train as DENN does with α = 0: one forward pass a step, Eq. 3."""
        trained = DENN(DennParameters(**vars(self.parameters), alpha=0.0))
        facts = trained.fit(corpus, workdir, progress)
        self.names, self.network = corpus.labels.names, trained.network
        return facts

    def scores(self, texts: Sequence[str], own_ids: Sequence[str | None] | None = None) -> Scores:
        """Score texts by Eq. 2: (n,L)."""
        return Scores(self.network.probabilities(self.network.encode(self.network.encoder.tokenize(texts))), self.names)

    def save(self, folder: Path) -> None:
        """Write the network."""
        self.network.save(folder)

    @classmethod
    def load(cls, folder: Path, parameters: BertParameters, labels: LabelSpace) -> Bert:
        """Read what `save` wrote."""
        self = cls(parameters)
        encoder = TransformerEncoder.load(
            str(folder / "encoder"), max_length=parameters.max_length, precision=parameters.precision
        )
        self.names, self.network = labels.names, Classifier(encoder, len(labels), parameters.dropout)
        self.network.load_head(folder)
        accelerated = parameters.device != "cpu" and torch.cuda.is_available()
        self.network.to("cuda" if accelerated else "cpu").eval()
        return self

"""The plain classifier: DENN's network trained on binary cross-entropy alone, without neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from denn.encoders.classifier import Classifier
from denn.encoders.transformer import TransformerEncoder
from denn.methods.denn import DENN, DennParameters
from denn.methods.finetune import NetworkParameters
from denn.types import Corpus, LabelSpace, Progress, Scores


class Bert:
    """The row BERT of the paper's tables."""

    Parameters = NetworkParameters

    def __init__(self, parameters: NetworkParameters) -> None:
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
    def load(cls, folder: Path, parameters: NetworkParameters, labels: LabelSpace) -> Bert:
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

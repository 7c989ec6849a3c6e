"""An external witness: long texts have frequent labels. A new witness needs only a file like this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from denn.protocols import Progress, Retriever, Witness
from denn.types import Corpus
from denn.witnesses.texts import Texts


class LengthWitness(Witness):
    """Gives a label the share of training documents that have it, the more of it the longer a text is."""

    name = "length"

    def __init__(self, shares: list[float]) -> None:
        self.shares = torch.tensor(shares)

    @classmethod
    def fit(cls, corpus: Corpus, method: Retriever, progress: Progress, seconds: float) -> Self:
        return cls(corpus.labels.matrix(corpus.train).float().mean(0).tolist())

    def scores(self, texts: Texts) -> Tensor:
        lengths = torch.tensor([float(len(text)) for text in texts])
        return self.shares * (lengths / (1 + lengths))[:, None]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "shares.json").write_text(json.dumps(self.shares.tolist()))

    @classmethod
    def load(cls, folder: Path, method: Retriever) -> Self:
        return cls(json.loads((folder / "shares.json").read_text()))

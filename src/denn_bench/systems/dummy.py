"""A baseline that ignores the text: each label's score is its share of the training documents."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from denn.clock import Clock
from denn.errors import BundleError
from denn.prediction_types import Scores
from denn.protocols import Method, Progress
from denn.types import Corpus, Fitted, LabelSpace
from denn.untrusted import REMEDY, read_json

FILE = "frequencies.json"


@dataclass(frozen=True, kw_only=True)
class DummyParameters:
    """Parameters; the method is deterministic, and the seed exists because every method has one."""

    seed: int = 0


class Dummy(Method):
    """The baseline that every other method must beat."""

    Parameters = DummyParameters
    is_baseline: ClassVar[bool] = True

    def __init__(self, parameters: DummyParameters) -> None:
        self.parameters = parameters
        self.names: tuple[str, ...] = ()
        self.frequencies: list[float] = []

    def fit(self, corpus: Corpus, workdir: Path, progress: Progress, clock: Clock | None = None) -> Fitted:
        """Count the labels of the training split."""
        counts = Counter(label for document in corpus.train for label in document.labels)
        self.names = corpus.labels.names
        self.frequencies = [counts[name] / len(corpus.train) for name in self.names]
        progress.note(f"counted {len(self.names)} labels of {len(corpus.train)} documents")
        return Fitted({}, corpus)

    def scores(self, texts: Sequence[str], own_ids: Sequence[str | None] | None = None) -> Scores:
        """Give every text the same scores: (n,L)."""
        return Scores(torch.tensor(self.frequencies).repeat(len(texts), 1), self.names)

    def save(self, folder: Path) -> None:
        """Save the frequencies in column order."""
        (folder / FILE).write_text(json.dumps(self.frequencies))

    @classmethod
    def load(cls, folder: Path, parameters: DummyParameters, labels: LabelSpace) -> Dummy:
        """Load what `save` wrote."""
        self = cls(parameters)
        shares = read_json(folder / FILE, BundleError)
        if not (
            isinstance(shares, list)
            and len(shares) == len(labels)
            and all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares)
        ):
            raise BundleError(f"{folder / FILE} does not give each of {len(labels)} labels its share. {REMEDY}")
        self.names, self.frequencies = labels.names, [float(share) for share in shares]
        return self

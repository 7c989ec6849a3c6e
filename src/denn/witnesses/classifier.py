"""The classifier as a witness: the linear map on a text's embedding."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Self

from torch import Tensor

from denn.errors import BundleError
from denn.protocols import Retriever, Witness
from denn.untrusted import REMEDY
from denn.witnesses.texts import Texts


class ClassifierWitness(Witness):
    """Scores texts with the network of its method."""

    name = "classifier"

    def __init__(self, method: Retriever) -> None:
        self._method: Retriever = weakref.proxy(method)  # weak, to avoid a cycle: memory is freed at once

    @classmethod
    def load(cls, folder: Path, method: Retriever) -> Self:
        """Use the method's network."""
        return cls(method)

    def scores(self, texts: Texts) -> Tensor:
        """Return ŷ, Eq. 2: (n,L₀)."""
        scores: Tensor = self._method.network.probabilities(texts.embeddings)
        if not bool(scores.isfinite().all()):  # NaN would mean unknown labels
            raise BundleError(f"The classifier's scores are not finite: its weights are damaged. {REMEDY}")
        return scores

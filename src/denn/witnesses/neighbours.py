"""The neighbours as a witness: the labels of the nearest stored documents."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Self

from torch import Tensor

from denn.protocols import Retriever, Witness
from denn.witnesses.texts import Texts


class NeighboursWitness(Witness):
    """Lets the nearest documents vote; it knows every label of the datastore, including those added later."""

    name = "neighbours"

    def __init__(self, method: Retriever) -> None:
        self._method: Retriever = weakref.proxy(method)  # weak, to avoid a cycle: memory is freed at once

    @classmethod
    def load(cls, folder: Path, method: Retriever) -> Self:
        """Use the method's datastore."""
        return cls(method)

    def scores(self, texts: Texts) -> Tensor:
        """Return ŷ_knn, Eq. 9-10: (n,L)."""
        found = texts.neighbours
        return self._method.votes(found, len(found.names))

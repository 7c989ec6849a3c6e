"""Texts to score, with the embeddings and neighbours that several witnesses share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, overload

from denn.stopwatch import lap

if TYPE_CHECKING:
    from torch import Tensor

    from denn.prediction_types import Neighbours


class Texts(Sequence[str]):
    """Texts that are embedded once and whose neighbours are searched once, when a witness first needs them."""

    def __init__(
        self, texts: Sequence[str], embed: Callable[[Sequence[str]], Tensor], search: Callable[[Tensor], Neighbours]
    ) -> None:
        self._texts, self._embed, self._search = texts, embed, search

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...

    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        return self._texts[place]

    @cached_property
    def embeddings(self) -> Tensor:
        """The (n,d) embeddings of the texts."""
        with lap("embedding"):
            return self._embed(self._texts)

    @cached_property
    def neighbours(self) -> Neighbours:
        """The nearest stored documents of each text."""
        embeddings = self.embeddings
        with lap("search"):
            return self._search(embeddings)

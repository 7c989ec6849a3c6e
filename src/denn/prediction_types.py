"""Data types of predictions: neighbours, scores, and what a method returns for texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from denn.vocabulary import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

    from denn.types import Document

UNFAMILIAR = 0.02  # texts with a lower familiarity are flagged; about 2 % of ordinary documents are


@cache
def _no_columns() -> Tensor:
    import torch

    return torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Neighbours:
    """The documents that a datastore finds for n queries, nearest first; fewer than k if it has fewer documents.

    The labels are sparse: those of neighbour j of query i are
    `label_columns[offsets[i * k + j] : offsets[i * k + j + 1]]`, positions in `names`. The store's own `labels` may
    have other columns by the time they are read, because a vacuum renumbers them. Rejected labels are stored in the
    same way, but both tensors are empty if nothing is rejected.
    """

    ids: tuple[tuple[str, ...], ...]  # n × at most k
    similarity: Tensor  # (n,k) cosine, float32, −inf if there is no neighbour
    offsets: Tensor  # (n·k + 1,) int64
    label_columns: Tensor  # (number of label entries,) int64
    names: tuple[str, ...]  # all labels of the store at the time of the search, in column order
    rejected_offsets: Tensor = field(default_factory=_no_columns)  # (n·k + 1,) int64, or empty
    rejected_columns: Tensor = field(default_factory=_no_columns)  # (number of rejections,) int64

    @property
    def k(self) -> int:
        """The number of neighbours per query: as many as requested, or fewer if fewer are stored."""
        return int(self.similarity.shape[1])

    def rows(self, begin: int, end: int) -> Neighbours:
        """Return the neighbours of some of the queries."""
        part = slice(begin * self.k, end * self.k + 1)
        labels = _cut(self.offsets[part], self.label_columns)
        rejected = _cut(self.rejected_offsets[part], self.rejected_columns) if len(self.rejected_columns) else ()
        return Neighbours(self.ids[begin:end], self.similarity[begin:end], *labels, self.names, *rejected)

    def nearest(self, k: int) -> Neighbours:
        """Return the first k neighbours of each query, as a search for k would have found them."""
        import torch

        n, width = self.similarity.shape
        kept = (torch.arange(width) < k).repeat(n)  # (n·width,)
        labels = _kept(self.offsets, self.label_columns, kept)
        rejected = _kept(self.rejected_offsets, self.rejected_columns, kept) if len(self.rejected_columns) else ()
        ids = tuple(ids[:k] for ids in self.ids)
        return Neighbours(ids, self.similarity[:, :k], *labels, self.names, *rejected)

    def labels(self) -> list[tuple[str, ...]]:
        """Return the labels of every neighbour, n·k of them."""
        return self._names_of(self.offsets, self.label_columns)

    def rejected(self) -> list[tuple[str, ...]]:
        """Return the rejected labels of every neighbour, n·k of them."""
        if not len(self.rejected_columns):
            return [()] * (len(self.offsets) - 1)
        return self._names_of(self.rejected_offsets, self.rejected_columns)

    def _names_of(self, offsets: Tensor, columns: Tensor) -> list[tuple[str, ...]]:
        names, ends = [self.names[column] for column in columns.tolist()], offsets.tolist()
        return [tuple(names[begin:end]) for begin, end in pairwise(ends)]


def _cut(offsets: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return the columns that consecutive offsets point to, and the offsets relative to the first."""
    return offsets - offsets[0], columns[int(offsets[0]) : int(offsets[-1])]


def _kept(offsets: Tensor, columns: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Return the offsets and columns of the entries to keep."""
    import torch

    sizes = offsets.diff()
    return torch.cat([offsets.new_zeros(1), sizes[kept].cumsum(0)]), columns[kept.repeat_interleave(sizes)]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A stored document that supports a prediction."""

    id: str
    similarity: float
    labels: tuple[str, ...]
    text: str
    rejected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """The labels of one text, with scores, confidence and evidence."""

    labels: tuple[str, ...]  # highest score first
    scores: Mapping[str, float]  # the labels worth showing, highest first
    confidence: float | None  # λ of Eq. 12; None if the method has none
    neighbours: tuple[Neighbour, ...]  # nearest first
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # label → witness → its score
    words: Mapping[str, tuple[tuple[str, float], ...]] = field(
        default_factory=dict
    )  # label → supporting words with weights
    same_text: str | None = None  # id of the stored document with the same text, which decides; None if there is none
    familiarity: float | None = None  # share of ordinary documents with farther neighbours; None if not measured
    vocabulary: Vocabulary = field(default=Vocabulary(), repr=False, compare=False)  # the model's vocabulary

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the labels in the model's vocabulary; a label that is not in it is its own name."""
        return tuple(map(self.vocabulary.name, self.labels))

    @property
    def unfamiliar(self) -> bool:
        """Whether no stored document is similar to the text, so that its labels are less reliable."""
        return self.same_text is None and self.familiarity is not None and self.familiarity < UNFAMILIAR

    def _repr_html_(self) -> str:
        """Show labels and evidence in a notebook."""
        from denn.prediction_html import render

        return render(self)


Parts: TypeAlias = "Mapping[str, Tensor]"  # witness → (n,L) in [0,1], NaN for labels that it does not know


@dataclass(frozen=True, eq=False)
class Context:
    """What a combiner knows besides the scores."""

    label_counts: Tensor  # (L,) training documents of each label
    similarity: Tensor | None = None  # (n,k) cosines of the neighbours, nearest first, −inf if there is none
    gamma: float = 0.7  # γ of λ
    temperature: float = 0.05  # τ₂ of the votes

    def rows(self, index: Tensor | slice) -> Context:
        """Return the context of some of the texts."""
        return self if self.similarity is None else replace(self, similarity=self.similarity[index])


@dataclass(frozen=True)
class Scores:
    """A method's scores of n texts: the final ones and the parts that they were made from."""

    final: Tensor  # (n,L) in [0,1]; L counts the labels of `names`
    names: tuple[str, ...]
    parts: Parts = field(default_factory=dict)
    confidence: Tensor | None = None  # (n,)
    neighbours: Neighbours | None = None
    alternatives: Mapping[str, Tensor] = field(default_factory=dict)  # other combinations of the parts: each (n,L)
    texts: Sequence[str] = ()  # the scored texts; empty if they are not kept
    same_text: Sequence[str | None] = ()  # id of the stored document with the same text, whose labels count; () if none
    familiarity: Tensor | None = None  # (n,) in [0,1]

    def cpu(self) -> Scores:
        """Return the same scores in CPU memory."""
        return replace(
            self,
            final=self.final.cpu(),
            parts={name: part.cpu() for name, part in self.parts.items()},
            confidence=None if self.confidence is None else self.confidence.cpu(),
            alternatives={name: part.cpu() for name, part in self.alternatives.items()},
        )

    def rows(self, begin: int, end: int) -> Scores:
        """Return the scores of some of the texts."""
        return Scores(
            self.final[begin:end],
            self.names,
            {name: part[begin:end] for name, part in self.parts.items()},
            None if self.confidence is None else self.confidence[begin:end],
            None if self.neighbours is None else self.neighbours.rows(begin, end),
            {name: part[begin:end] for name, part in self.alternatives.items()},
            self.texts[begin:end],
            self.same_text[begin:end],
            None if self.familiarity is None else self.familiarity[begin:end],
        )


class Calibrated(NamedTuple):
    """The result of calibrating a method on validation documents."""

    scores: Scores  # scores of texts whose labels the method has not seen
    facts: Mapping[str, object]  # for the bundle
    documents: Sequence[Document]  # scored: validation documents, or as many as fit in memory, then training documents
    embeddings: Tensor | None = None  # (v,d) of the validation documents, if there is a datastore


Support: TypeAlias = list[list[list[tuple[str, float]]]]  # text → label → supporting words with their weights

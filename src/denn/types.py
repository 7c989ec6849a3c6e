"""The nouns: documents, label spaces, corpora, neighbours, predictions; protocols for what can be plugged in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from denn.clock import Clock


@dataclass(frozen=True, slots=True)
class Document:
    """A text with its labels; the id is given by the reader or the datastore where it is None."""

    text: str
    labels: tuple[str, ...] = ()
    id: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.labels, str):
            raise TypeError(f"labels must be a list of strings, got the string {self.labels!r}")
        object.__setattr__(self, "labels", tuple(dict.fromkeys(self.labels)))


@dataclass(frozen=True)
class LabelSpace:
    """Label names in column order."""

    names: tuple[str, ...]

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Map each name to its column."""
        return {name: column for column, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.index

    @classmethod
    def of(cls, train: Iterable[Document], *others: Iterable[Document]) -> LabelSpace:
        """Collect the labels of all parts: most frequent in the first part first, then by name."""
        counts = Counter(label for document in train for label in document.labels)
        for part in others:
            counts.update({label: 0 for document in part for label in document.labels})
        return cls(tuple(sorted(counts, key=lambda name: (-counts[name], name))))

    def columns(self, labels: Iterable[str]) -> list[int]:
        """Return the columns of the known labels among these, ascending."""
        return sorted(self.index[label] for label in labels if label in self.index)

    def matrix(self, documents: Sequence[Document]) -> Tensor:
        """Return the (n,L) bool matrix of the documents' known labels."""
        import torch

        rows = torch.zeros(len(documents), len(self), dtype=torch.bool)
        for row, document in enumerate(documents):
            rows[row, self.columns(document.labels)] = True
        return rows


@dataclass(frozen=True)
class Corpus:
    """Documents in parts, with the label space of all parts; `valid` and `test` may be empty."""

    train: Sequence[Document]
    valid: Sequence[Document] = ()
    test: Sequence[Document] = ()
    labels: LabelSpace = field(default=LabelSpace(()))
    name: str = "corpus"

    def __post_init__(self) -> None:
        if not len(self.labels):
            object.__setattr__(self, "labels", LabelSpace.of(self.train, self.valid, self.test))


@dataclass(frozen=True)
class Neighbours:
    """What a datastore finds for n queries, nearest first; fewer than k where it holds fewer documents.

    The labels are sparse: those of neighbour j of query i are
    `label_columns[offsets[i * k + j] : offsets[i * k + j + 1]]`, places in `names`. The store's own `labels` may have
    other columns by the time they are read: a vacuum renumbers them.
    """

    ids: tuple[tuple[str, ...], ...]  # n × at most k
    similarity: Tensor  # (n,k) cosine, float32, −inf where there is no neighbour
    offsets: Tensor  # (n·k + 1,) int64
    label_columns: Tensor  # (number of label entries,) int64
    names: tuple[str, ...]  # all labels of the store at the moment of the search, in column order

    @property
    def k(self) -> int:
        """The width of the result, the smaller of what was asked and what is stored."""
        return int(self.similarity.shape[1])

    def rows(self, begin: int, end: int) -> Neighbours:
        """Return the neighbours of some of the queries."""
        offsets = self.offsets[begin * self.k : end * self.k + 1]
        columns = self.label_columns[int(offsets[0]) : int(offsets[-1])]
        return Neighbours(self.ids[begin:end], self.similarity[begin:end], offsets - offsets[0], columns, self.names)

    def nearest(self, k: int) -> Neighbours:
        """Return the first k neighbours of each query, as a search for k would have found them."""
        import torch

        n, width = self.similarity.shape
        kept = (torch.arange(width) < k).repeat(n)  # (n·width,)
        sizes = self.offsets.diff()
        offsets = torch.cat([self.offsets.new_zeros(1), sizes[kept].cumsum(0)])
        columns = self.label_columns[kept.repeat_interleave(sizes)]
        ids = tuple(ids[:k] for ids in self.ids)
        return Neighbours(ids, self.similarity[:, :k], offsets, columns, self.names)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A stored document that speaks for a prediction."""

    id: str
    similarity: float
    labels: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """The labels of one text, with scores, confidence and evidence."""

    labels: tuple[str, ...]  # highest score first
    scores: Mapping[str, float]  # the labels worth showing, highest first
    confidence: float | None  # λ of Eq. 12; None where the method has none
    neighbours: tuple[Neighbour, ...]  # nearest first


@dataclass(frozen=True)
class Scores:
    """What a method thinks of n texts: the final scores and the parts they were made of."""

    final: Tensor  # (n,L) in [0,1]; L counts the labels of `names`
    names: tuple[str, ...]
    parts: Mapping[str, Tensor] = field(default_factory=dict)  # e.g. classifier, neighbours, average: each (n,L)
    confidence: Tensor | None = None  # (n,)
    neighbours: Neighbours | None = None

    def rows(self, begin: int, end: int) -> Scores:
        """Return what is thought of some of the texts."""
        return Scores(
            self.final[begin:end],
            self.names,
            {name: part[begin:end] for name, part in self.parts.items()},
            None if self.confidence is None else self.confidence[begin:end],
            None if self.neighbours is None else self.neighbours.rows(begin, end),
        )


@dataclass(frozen=True, slots=True)
class Where:
    """A filter for stored documents: all given conditions must hold. An empty value is an error.

    Without any condition it matches every document; what changes documents then asks for `everything=True`.
    """

    labels: tuple[str, ...] = ()  # the document has at least one of them
    text: str | None = None  # its text contains this, letter for letter
    source: str | None = None  # its last change came from this source
    since: datetime | None = None  # its last change was at this time or later; a time without a zone is local
    before: datetime | None = None  # its last change was earlier

    def __post_init__(self) -> None:
        if isinstance(self.labels, str):
            raise TypeError(f"labels must be a list of strings, got the string {self.labels!r}")
        object.__setattr__(self, "labels", tuple(self.labels))
        for name, value in (*(("label", label) for label in self.labels), ("text", self.text), ("source", self.source)):
            if value == "":
                raise ValueError(f"got an empty {name} to select documents by, expected a value. Leave it out instead.")

    @property
    def matches_everything(self) -> bool:
        """Whether there is no condition."""
        return self == Where()


Which: TypeAlias = "str | Sequence[str] | Where"  # one id, ids, or a description


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of a datastore's history."""

    number: int  # counts up, never given twice
    time: datetime  # in UTC
    action: str  # add, remove, relabel, forget or undo
    source: str  # who or what made it, as they said
    documents: int  # how many it touched


@runtime_checkable
class Datastore(Protocol):
    """Documents with labels and embeddings that can be searched; changes are durable when a call returns.

    Every change is all or nothing and goes into the history, with its time and the `source` that it names; an unknown
    id in one is an error.
    """

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names in column order; new names are appended, never reordered; only `vacuum` takes unused ones out."""

    @property
    def dimension(self) -> int:
        """The width of the embeddings."""

    def __len__(self) -> int: ...

    def ids(self) -> list[str]:
        """List the ids of all documents, oldest first."""

    def info(self) -> dict[str, object]:
        """Return what a person would ask first: documents, labels, dimension, bytes, and the kind of search."""

    def add(self, documents: Sequence[Document], embeddings: Tensor, *, source: str = "") -> list[str]:
        """Store documents with their (n,d) embeddings; an id that exists is replaced. Return the ids.

        A document without an id gets one that was never given before; a forgotten id is an error.
        """

    def remove(self, which: Which, *, source: str = "", everything: bool = False) -> int:
        """Remove documents; without a condition only if `everything` says so. Return how many went."""

    def relabel(
        self,
        which: Which,
        labels: Sequence[str] | None = None,
        *,
        add: Sequence[str] = (),
        drop: Sequence[str] = (),
        source: str = "",
        everything: bool = False,
    ) -> int:
        """Give documents these labels, or those they have, without `drop` and with `add`. Return how many changed."""

    def forget(self, which: Which, *, source: str = "", everything: bool = False) -> int:
        """Remove documents and all that the history knows of them but their ids, which cannot come back.

        After `vacuum` nothing of them is left in any file. Return how many went.
        """

    def undo(self, number: int, *, source: str = "") -> int:
        """Bring the documents that a change touched to where they were before it. Return how many were.

        An error where a later change touched one of them too: that is to be undone first. Forgotten ones stay away.
        """

    def history(self, limit: int | None = None, id: str | None = None) -> list[Change]:
        """List the changes, newest first; with an id those that touched this document and can be told."""

    def vacuum(self, keep: timedelta | None = None) -> None:
        """Give back the space of what was removed, drop labels that nothing carries and that came after the creation.

        With `keep` the history before that age becomes unable to be undone, and what it kept for that goes too.
        """

    def select(self, where: Where) -> list[str]:
        """List the ids of the documents that are meant, oldest first."""

    def get(self, ids: Sequence[str], *, missing_ok: bool = False) -> list[Document]:
        """Return stored documents in the order of the ids; an unknown id is an error, or left out if `missing_ok`."""

    def vectors(self, ids: Sequence[str]) -> Tensor:
        """Return the (n,d) unit vectors of stored documents in the order of the ids; an unknown id is an error."""

    def export(self, size: int = 1024) -> Iterator[tuple[list[Document], Tensor]]:
        """Go through all documents of one moment, oldest first, with their (n,d) unit vectors, in parts of `size`."""

    def label_counts(self) -> dict[str, int]:
        """Count the stored documents of each label, in column order."""

    def search(self, queries: Tensor, k: int, exclude: Collection[str] = ()) -> Neighbours:
        """Find the k nearest documents by cosine for each of the (n,d) queries, leaving out excluded ids."""

    def refresh(self) -> bool:
        """Take in what other processes changed; return whether anything did."""

    def close(self) -> None:
        """Release files and connections."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Progress(Protocol):
    """What a shell shows of long work; every call may be ignored."""

    def start(self, what: str, total: int | None) -> None:
        """Begin a stage of `total` units."""

    def advance(self, done: int, **values: object) -> None:
        """Say how many units are done in all, and values worth showing."""

    def note(self, message: str) -> None:
        """Say one line that should stay on the screen."""


class Fitted(NamedTuple):
    """What is left of a training beside the method itself."""

    facts: Mapping[str, object]  # for the bundle
    corpus: Corpus  # what was learnt from: less than was given where the time did not suffice


class Method(Protocol):
    """A multi-label system: learns a corpus, scores texts, survives disk.

    A class whose attribute `is_baseline` is true need not beat the most frequent labels to be written.
    """

    def fit(self, corpus: Corpus, workdir: Path, progress: Progress, clock: Clock | None = None) -> Fitted:
        """Learn the corpus, keeping resumable state in `workdir`, within the time that the clock leaves."""

    def scores(self, texts: Sequence[str], own_ids: Sequence[str | None] | None = None) -> Scores:
        """Score texts in order; a text is no evidence for itself where `own_ids` names its stored document."""

    def save(self, folder: Path) -> None:
        """Write weights and whatever else scoring needs into an empty folder; no pickle."""

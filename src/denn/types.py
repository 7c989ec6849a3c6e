"""Data types of documents: label spaces, corpora, filters and changes of stored documents; stages of long work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, overload

from denn.errors import DataError
from denn.vocabulary import Vocabulary
from denn.wording import counted

if TYPE_CHECKING:
    from torch import Tensor


REPR_LABELS = 5  # number of names in the repr of a label space


@dataclass(frozen=True)
class Stage:
    """A stage of long work, as progress shows it."""

    what: str
    total: int | None = None  # units of work; None if unknown
    unit: str = "documents"
    trains: bool = False  # trains a whole network: the stage worth timing, and worth running on an accelerator


@dataclass(frozen=True, slots=True)
class Document:
    """A text with its labels; the reader or the datastore assigns an id if it is None."""

    text: str
    labels: tuple[str, ...] = ()
    id: str | None = None
    rejected: tuple[str, ...] = ()  # labels that a person rejected

    def __post_init__(self) -> None:
        if isinstance(self.labels, str):
            raise TypeError(f"labels must be a list of strings, got the string {self.labels!r}")
        object.__setattr__(self, "labels", tuple(dict.fromkeys(self.labels)))
        if self.rejected != ():
            self._check_rejected()

    def _check_rejected(self) -> None:
        if isinstance(self.rejected, str):
            raise TypeError(f"rejected must be a list of strings, got the string {self.rejected!r}")
        object.__setattr__(self, "rejected", tuple(dict.fromkeys(self.rejected)))
        if both := [label for label in self.rejected if label in self.labels]:
            raise DataError(f"the label {both[0][:40]!r} is both given and rejected. Keep one of the two.")


@dataclass(frozen=True)
class LabelSpace:
    """Label names in column order."""

    names: tuple[str, ...]
    counts: tuple[int, ...] = field(default=(), compare=False)  # training documents of each label, if known

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Map each name to its column."""
        return {name: column for column, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.index

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    @overload
    def __getitem__(self, columns: int) -> str: ...
    @overload
    def __getitem__(self, columns: slice) -> tuple[str, ...]: ...
    def __getitem__(self, columns: int | slice) -> str | tuple[str, ...]:
        return self.names[columns]

    def __repr__(self) -> str:
        first = ", ".join(map(repr, self.names[:REPR_LABELS]))
        more = ", …" if len(self) > REPR_LABELS else ""
        return f"LabelSpace({counted(len(self), 'label')}{': ' * bool(first)}{first}{more})"

    @classmethod
    def of(cls, train: Iterable[Document], *others: Iterable[Document]) -> LabelSpace:
        """Collect the labels of all splits: most frequent in the first split first, then by name."""
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
    """Documents in splits, with one label space for all of them; `valid` and `test` may be empty."""

    train: Sequence[Document]
    valid: Sequence[Document] = ()
    test: Sequence[Document] = ()
    labels: LabelSpace = field(default=LabelSpace(()))
    name: str = "corpus"
    vocabulary: Vocabulary = field(default=Vocabulary(), repr=False)  # names of the labels, which are its ids

    def __post_init__(self) -> None:
        if not len(self.labels):
            object.__setattr__(self, "labels", LabelSpace.of(self.train, self.valid, self.test))

    def __repr__(self) -> str:
        parts = {"training": self.train, "validation": self.valid, "test": self.test}
        counts = ", ".join(f"{len(part):,} {name}" for name, part in parts.items())
        return f"Corpus({self.name!r}: {counts} documents, {counted(len(self.labels), 'label')})"


@dataclass(frozen=True, slots=True)
class Where:
    """A filter for stored documents: all given conditions must hold. An empty value is an error.

    Without conditions it matches every document; operations that change documents then require `everything=True`.
    """

    labels: tuple[str, ...] = ()  # the document has at least one of them
    text: str | None = None  # its text contains exactly this string
    source: str | None = None  # its last change came from this source
    since: datetime | None = None  # its last change was at this time or later; a time without a zone is local
    before: datetime | None = None  # its last change was earlier
    action: str | None = None  # its last change was of this kind: add, relabel, confirm or undo
    unlabelled: bool = False  # it has no labels, and rejects none

    def __post_init__(self) -> None:
        if isinstance(self.labels, str):
            raise TypeError(f"labels must be a list of strings, got the string {self.labels!r}")
        object.__setattr__(self, "labels", tuple(self.labels))
        given = (("text", self.text), ("source", self.source), ("action", self.action))
        for name, value in (*(("label", label) for label in self.labels), *given):
            if value == "":
                raise ValueError(f"got an empty {name} to filter documents by, expected a value. Leave it out instead.")

    @property
    def matches_everything(self) -> bool:
        """Whether there is no condition."""
        return self == Where()


Which: TypeAlias = "str | Sequence[str] | Where"  # one id, several ids, or a filter


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of a datastore's history."""

    number: int  # unique and increasing
    time: datetime  # in UTC
    action: str  # add, remove, relabel, confirm, forget or undo
    source: str  # who or what made the change, as the caller named it
    documents: int  # number of documents changed
    undoes: int | None = None  # number of the change that this one reverted
    undone: bool = False  # whether another change reverted it
    undoable: bool = True  # false if it can never be reverted: forgetting, or changes that `vacuum` cleared
    ids: tuple[str, ...] = ()  # the first of the documents


class Fitted(NamedTuple):
    """The result of a training run, besides the method itself."""

    facts: Mapping[str, object]  # for the bundle
    corpus: Corpus  # what was learnt from: less than given if time was too short

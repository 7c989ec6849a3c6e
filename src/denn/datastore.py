"""The interface of every datastore, which `denn.stores` implements."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from datetime import timedelta

    from torch import Tensor

    from denn.prediction_types import Neighbours
    from denn.types import Change, Document, Where, Which


@runtime_checkable
class Datastore(Protocol):
    """Searchable documents with labels and embeddings; changes are durable when a call returns.

    Every change is all or nothing, and the history records it with its time and `source`. An unknown id is an error.
    """

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names in column order; new names are appended; only `vacuum` removes unused ones."""

    @property
    def given_labels(self) -> tuple[str, ...]:
        """The labels given at creation, which come first and which `vacuum` keeps even if they are unused."""

    @property
    def dimension(self) -> int:
        """The dimension of the embeddings."""

    @property
    def last_change(self) -> int:
        """The number of the last change made through this object, by any thread; 0 if there is none yet."""

    def __len__(self) -> int: ...

    def ids(self) -> list[str]:
        """List the ids of all documents, oldest first."""

    def info(self) -> dict[str, object]:
        """Return a summary: documents, labels, dimension, bytes, and the kind of search."""

    def add(self, documents: Sequence[Document], embeddings: Tensor, *, source: str = "") -> list[str]:
        """Store documents with their (n,d) embeddings, replacing documents with the same ids; return the ids.

        A document without an id gets one that was never used before; a forgotten id is an error.
        """

    def remove(self, which: Which, *, source: str = "", everything: bool = False) -> int:
        """Remove documents and return how many; a filter without conditions needs `everything`."""

    def relabel(
        self,
        which: Which,
        labels: Sequence[str] | None = None,
        *,
        add: Sequence[str] = (),
        drop: Sequence[str] = (),
        reject: Sequence[str] = (),
        confirm: bool = False,
        source: str = "",
        everything: bool = False,
    ) -> int:
        """Replace the labels of documents, or `add` and `drop` some; return how many documents changed.

        `reject` removes labels and records them as rejected until they are assigned again or dropped. `confirm` records
        that the labels are right, even if they stay the same: audits skip the documents until they change again.
        """

    def forget(self, which: Which, *, source: str = "", everything: bool = False) -> int:
        """Permanently delete documents and their history, except for their ids, which cannot be used again.

        After `vacuum`, no file contains anything of them. Return how many were deleted.
        """

    def undo(self, number: int, *, source: str = "") -> int:
        """Restore the documents that a change touched to their state before it; return how many were restored.

        If a later change touched one of them too, undo that first. Forgotten documents are not restored.
        """

    def history(self, limit: int | None = None, id: str | None = None) -> list[Change]:
        """List changes, newest first; with an id, the recorded changes to that document."""

    def vacuum(self, keep: timedelta | None = None) -> None:
        """Free the space of removed documents, and drop labels added later that no document carries or rejects.

        With `keep`, changes older than that can no longer be undone, and the data kept for undoing them is deleted.
        """

    def select(self, where: Where) -> list[str]:
        """List the ids of the matching documents, oldest first."""

    def get(self, ids: Sequence[str], *, missing_ok: bool = False) -> list[Document]:
        """Return stored documents in the order of the ids; an unknown id is an error unless `missing_ok`."""

    def texts(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the texts of stored documents by id, leaving out unknown ids."""

    def vectors(self, ids: Sequence[str]) -> Tensor:
        """Return the (n,d) unit vectors of stored documents in the order of the ids; an unknown id is an error."""

    def export(self, size: int = 1024) -> Iterator[tuple[list[Document], Tensor]]:
        """Yield a snapshot of all documents, oldest first, with their (n,d) unit vectors, in batches of `size`."""

    def label_counts(self) -> dict[str, int]:
        """Count the stored documents of each label, in column order."""

    def search(self, queries: Tensor, k: int, exclude: Collection[str] = ()) -> Neighbours:
        """Find the k nearest documents by cosine for each of the (n,d) queries, ignoring the ids in `exclude`."""

    def refresh(self) -> bool:
        """Load changes made by other processes; return whether there were any."""

    def close(self) -> None:
        """Release files and connections."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

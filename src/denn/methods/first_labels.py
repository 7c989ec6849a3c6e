"""A datastore as seen by a model in training: without labels that its documents only reject."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from torch import Tensor

from denn.datastore import Datastore
from denn.methods.neighbours import with_labels
from denn.prediction_types import Neighbours


def with_first_labels(store: Datastore, count: int) -> Datastore:
    """Return the store, or a view that searches only its first labels if no document carries any other."""
    return cast(Datastore, _FirstLabels(store, count)) if len(store.labels) > count else store


class _FirstLabels:
    def __init__(self, store: Datastore, count: int) -> None:
        self._store, self._count = store, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def search(self, queries: Tensor, k: int, exclude: Collection[str] = ()) -> Neighbours:
        found = self._store.search(queries, k, exclude)
        return with_labels(found, found.names[: self._count])

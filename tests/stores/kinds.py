"""Every kind of datastore, and how the contract suite makes and opens them; add a new kind with one line in KINDS."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import postgres_server
import torch

from denn.datastore import Datastore
from denn.errors import StoreError
from denn.stores.embedded.store import EmbeddedStore
from denn.stores.embedded.temporary import MemoryStore


@dataclass(frozen=True)
class Kind:
    create: Callable[[Path, int, Sequence[str]], Datastore]
    open: Callable[[Path], Datastore] | None  # None if a store ends with its process


class Indexed(EmbeddedStore):
    """The embedded store with an approximate index of any size; a background build may already be running."""

    def search(self, queries, k, exclude=()):
        with suppress(StoreError):
            self.build_index()
        return super().search(queries, k, exclude)


KINDS = {
    "memory": Kind(MemoryStore.create, None),
    "embedded": Kind(EmbeddedStore.create, EmbeddedStore.open),
    "postgres": Kind(postgres_server.create, postgres_server.open_),
    "approximate": Kind(partial(Indexed.create, index="approximate"), partial(Indexed.open, index="approximate")),
}


class Maker:
    """Create and open stores of one kind, and close them when the test is over."""

    def __init__(self, kind: Kind, path: Path):
        self.kind, self.path, self.opened = kind, path, []

    def create(self, dimension: int = 3, labels: Sequence[str] = ()) -> Datastore:
        self.opened.append(self.kind.create(self.path, dimension, labels))
        return self.opened[-1]

    def open(self) -> Datastore:
        if self.kind.open is None:
            return self.opened[-1]
        self.opened.append(self.kind.open(self.path))
        return self.opened[-1]

    def reopen(self) -> Datastore:
        if self.kind.open is not None:
            self.close()
        return self.open()

    def close(self) -> None:
        while self.opened:
            self.opened.pop().close()


def vectors(n: int, d: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def labels_of(store: Datastore, found, query: int, place: int) -> tuple[str, ...]:
    at = query * found.k + place
    columns, names = found.label_columns[found.offsets[at] : found.offsets[at + 1]], store.labels
    return tuple(names[column] for column in columns.tolist())


def everything(store: Datastore):
    """Return everything in a small store, to compare before and after."""
    found = store.search(torch.eye(store.dimension), 100)
    ids = sorted({id for row in found.ids for id in row})
    return store.labels, len(store), store.label_counts(), store.get(ids), found.ids, found.similarity.tolist()

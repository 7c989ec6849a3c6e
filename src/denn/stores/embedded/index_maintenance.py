"""Maintain the approximate index of an embedded datastore: when to load, build, write and delete it."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from denn.durable import sync
from denn.errors import StoreError
from denn.locks import alone
from denn.stores.embedded import index_file
from denn.stores.embedded.approximate import Approximate, faiss
from denn.stores.embedded.background import Stopped, Work
from denn.stores.embedded.building import MINIMUM, Moment, build
from denn.stores.embedded.replica import Replica
from denn.stores.embedded.sqlite import connect, read_meta, transaction
from denn.stores.embedded.vectors import read_present

log = logging.getLogger(__name__)

Index: TypeAlias = Literal["auto", "exact", "approximate"]

AUTO_FLOATS = 80_000_000  # documents × dimension; exact search of them took 14 ms a query on two free cores, 33 on one
FIRST_FLOATS = 1_000_000_000  # 4 GB of vectors; for more, an index is built before they are read into memory
FRESH, FRESH_SHARE = 16_384, 0.05  # documents searched exactly in addition to an index, and as a share of it
DEAD_SHARE = 0.1  # share of dead entries at which an index is rebuilt
LOOK = 1.0  # seconds between checks
SAMPLE = 64  # vectors of an index that are compared with the store's when it is loaded
RETRY = 600.0  # seconds after a failed build


def maintain(
    replica: Replica, path: Path, dimension: int, device: str | torch.device, mode: Index, *, builds: bool
) -> IndexKeeper | None:
    """Return a keeper with its replica's first index; None if search should be exact, as always on an accelerator."""
    if mode not in get_args(Index):
        raise StoreError(f"unknown index {mode!r}, expected one of {', '.join(get_args(Index))}.")
    if mode == "exact" or (mode == "auto" and torch.device(device).type != "cpu"):
        return None
    keeper = IndexKeeper(replica, path, dimension, mode, builds=builds)
    replica.main = keeper.load()
    if replica.main is None and builds:
        keeper.build_first()
    return keeper


class IndexKeeper:
    """Gives a replica an approximate index, and replaces it when it is outdated; without one, search is exact.

    Because the index is a cache, no failure here is an error of the store.
    """

    def __init__(self, replica: Replica, path: Path, dimension: int, mode: Index, *, builds: bool) -> None:
        self._replica, self._path, self._dimension = replica, path, dimension
        self._file = index_file.beside(path)
        self._floor = MINIMUM if mode == "approximate" else max(MINIMUM, -(-AUTO_FLOATS // dimension))
        self._builds = builds
        self._seen: object = None  # signature of the file when it was last read or written
        self._next_look = 0.0
        self._looking = threading.Lock()
        self._work = Work()
        weakref.finalize(self, self._work.halt)  # a daemon thread must not be inside torch when the interpreter exits
        if mode == "approximate":
            faiss()

    def load(self) -> Approximate | None:
        """Return the index on disk if it fits the store and is newer than the one in use."""
        self._seen = self._signature()
        if self._seen is None or not self._fits(index_file.read_header(self._file)) or find_spec("faiss") is None:
            return None
        index = index_file.load(self._file)
        return index if index is not None and index.ivf.d == self._dimension and self._agrees(index) else None

    def build_first(self) -> None:
        """Build the index of a store whose vectors may not fit into memory, before reading any of them."""
        with self._replica.lock:
            (count,) = self._replica.reader.execute("SELECT count(*) FROM documents").fetchone()
        if count * self._dimension >= FIRST_FLOATS and find_spec("faiss") is not None:
            log.warning("building the index of %d documents first, which takes minutes", count)
            self._try(self._build)

    def _agrees(self, index: Approximate) -> bool:
        """Compare a sample of the index's vectors with the store's own, for unchanged documents."""
        places = torch.arange(0, len(index.rows), max(1, len(index.rows) // SAMPLE))
        with self._replica.lock:
            rows, vectors = read_present(self._replica.reader, self._dimension, index.rows[places], index.version)
        kept = torch.searchsorted(index.rows, rows)
        agrees = torch.equal(torch.from_numpy(index.vectors[kept.numpy()]), vectors)
        if not agrees:
            log.warning("the index of %s has other vectors than the datastore; it will be built again", self._path)
        return agrees

    def look(self) -> None:
        """Start due work in the background: load an index that another process built, or build one."""
        if time.monotonic() < self._next_look or not self._looking.acquire(blocking=False):
            return
        try:
            self._next_look = time.monotonic() + LOOK
            if self._work.running:
                return
            if self._signature() not in (None, self._seen):
                self._work.start(partial(self._try, self._renew))
            elif self._builds and self._wanted() and find_spec("faiss") is not None:
                self._work.start(partial(self._try, self._build))
        finally:
            self._looking.release()

    def build_now(self) -> None:
        """Build an index of all documents, and return when it is in use."""
        faiss()
        with self._looking:  # prevents new background work
            self._work.wait()
            covered = self._replica.index.covered
            if covered is not None and covered.visible == len(self._replica.index) == len(covered.slots):
                if covered.index.epoch == self._replica.epoch:
                    return  # already up to date
            try:
                built = self._build()
            except Stopped:
                raise StoreError("the datastore was closed or vacuumed during the build of its index.") from None
            except OSError as error:
                raise StoreError(f"the index of {self._path} cannot be written: {error}") from error
        if not built:
            raise StoreError("another process is building the index of this datastore. Try again when it is done.")

    def delete(self) -> None:
        """Delete the index on disk; the one in memory stays in use until there is a new one."""
        self._work.halt()
        for file in (self._file, self._new()):
            file.unlink(missing_ok=True)
        self._seen = None

    def close(self) -> None:
        """Stop building."""
        self._builds = False
        self._work.halt()

    def facts(self) -> dict[str, object]:
        """Return facts about how the store is searched."""
        covered = self._replica.index.covered
        if covered is None:
            facts: dict[str, object] = {"search": "exact"}
            if self._wanted() and find_spec("faiss") is None:
                facts["hint"] = "A store of this size is searched faster with faiss. Run: pip install 'denn[ann]'"
            return facts
        index = covered.index
        return {
            "search": "approximate",
            "recall": index.recall,
            "sample": index.sample,
            "lists": int(index.ivf.nlist),
            "probes": index.probes,
            "covered": covered.visible,
            "fresh": self._replica.index.exact,
            "dead": len(covered.slots) - covered.visible,
            "built_seconds": index.seconds,
        }

    def _wanted(self) -> bool:
        index, covered = self._replica.index, self._replica.index.covered
        if covered is None:
            return len(index) >= self._floor
        size = len(covered.slots)
        aged = index.exact > max(FRESH, FRESH_SHARE * size) or size - covered.visible > DEAD_SHARE * size
        return aged or covered.index.epoch != self._replica.epoch

    def _try(self, task: Callable[[], Any]) -> None:
        try:
            task()
        except Stopped:
            pass
        except (StoreError, sqlite3.Error, OSError, RuntimeError, MemoryError):  # the store continues without it
            log.warning("the index of %s could not be updated", self._path, exc_info=True)
            self._next_look = time.monotonic() + RETRY

    def _renew(self) -> None:
        with self._replica.reading():
            pass  # the index may include changes that memory does not have yet
        index = self.load()
        with self._replica.reading():
            if index is not None and index.epoch == self._replica.epoch:
                self._replica.adopt(index)

    def _build(self) -> bool:
        """Build and use an index, unless another process is building one; return whether it was built."""
        with self._alone() as mine, closing(connect(self._path, 10.0)) as reader:
            if not mine:
                return False
            self._replica.check_in_place()  # otherwise this connection reads another store
            with transaction(reader, "DEFERRED"):
                moment = _moment(reader)
                rows = torch.from_numpy(
                    np.sort(np.fromiter((row for (row,) in reader.execute("SELECT row FROM documents")), np.int64))
                )
            # Rows that change from here on count as changed after `moment`, whatever is read of them.
            index = self._written(rows, moment, reader)
        if not self._replica.version:  # nothing has been read yet
            self._replica.main = index
            return True
        with self._replica.reading():
            if self._replica.epoch == moment.epoch:
                self._replica.adopt(index)
        return True

    def _written(self, rows: Tensor, moment: Moment, reader: sqlite3.Connection) -> Approximate | None:
        """Build an index and put it next to the store, unless the store was vacuumed meanwhile."""
        read = partial(read_present, reader, self._dimension)
        try:
            with self._new().open("wb+") as file:
                index = build(rows, read, moment, file, self._replica.main, self._work.check)
            if index is not None:
                self._work.check()
                self._publish()
        finally:
            self._new().unlink(missing_ok=True)
        # A vacuum first marks the store and then deletes the index, so one of the two sees what the other did.
        if read_meta(reader)["epoch"] != moment.epoch:
            self._file.unlink(missing_ok=True)
        return index

    def _publish(self) -> None:
        try:
            self._new().replace(self._file)
            sync(self._file.parent)
            self._seen = self._signature()
        except OSError as error:
            log.warning("the index of %s is only available to this process: %s", self._path, error)

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Yield whether this is the only process that builds."""
        with alone(self._file.with_name(self._file.name + ".lock")) as lock:
            yield lock is not None

    def _fits(self, header: dict[str, Any]) -> bool:
        """Return whether an index belongs to this store, is newer than its last vacuum and than the one in use."""
        main = self._replica.main
        with self._replica.lock:
            return belongs(self._replica.reader, header) and (
                main is None or (main.epoch, main.version) < (header["epoch"], header["version"])
            )

    def _new(self) -> Path:
        return self._file.with_name(self._file.name + ".new")

    def _signature(self) -> object:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def belongs(reader: sqlite3.Connection, header: dict[str, Any]) -> bool:
    """Return whether an index was built from this store, after its last vacuum."""
    now = _moment(reader)
    return bool(
        header
        and header["version"] <= now.version
        and header["epoch"] == now.epoch
        and header["stamp"] == _stamp(reader, header["version"])
    )


def _moment(reader: sqlite3.Connection) -> Moment:
    meta = read_meta(reader)
    return Moment(meta["version"], meta["epoch"], _stamp(reader, meta["version"]))


def _stamp(reader: sqlite3.Connection, version: int) -> int:
    """Return the time of a change, 0 if it is older than the history."""
    found = reader.execute("SELECT time FROM changes WHERE number = ?", (version,)).fetchone()
    return int(found[0]) if found else 0

"""Copy an embedded datastore while others use it, and replace one that no process uses."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from denn.durable import WINDOWS, keep_access, sync
from denn.errors import ConflictError, StoreError
from denn.protocols import Progress
from denn.stores.embedded import index_file, ledger
from denn.stores.embedded.sqlite import (
    check_file,
    clean,
    connect,
    connect_reader,
    explained,
    prepare_writer,
    read_meta,
    set_meta,
    transaction,
    undisturbed,
)
from denn.types import Stage

log = logging.getLogger(__name__)

PAGES = 2048  # copied between two reports of progress: 8 MB
PATIENCE = 10.0  # seconds to wait for a process that is writing
DAMAGED = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
MAY_BE_BACK = "the old datastore cannot be read, so documents forgotten since the backup may be back"
SOURCE = "restore"  # source of the change that forgets documents again


def copy_file(source: Path, target: Path, progress: Progress) -> None:
    """Copy a store with its history to a new file, in the state of one moment, while other processes change it."""
    with explained(source), closing(connect_reader(source, PATIENCE)) as reader:
        check_file(reader, source, read_only=False)
        # The open transaction holds one state of the store; otherwise every change would start the copy again.
        with undisturbed(reader, source), transaction(reader, "DEFERRED"):
            read_meta(reader)
            copy_from(reader, target, progress)


def copy_from(reader: sqlite3.Connection, target: Path, progress: Progress) -> None:
    """Copy what a connection reads to a new file."""
    (pages,), (size,) = (reader.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    progress.start(Stage("copying", megabytes(pages * size), "megabytes"))

    def report(_: int, remaining: int, total: int) -> None:
        progress.advance(megabytes((total - remaining) * size))

    with explained(target), closing(sqlite3.connect(target, isolation_level=None)) as writer:
        writer.execute("PRAGMA synchronous = OFF")
        reader.backup(writer, pages=PAGES, progress=report)
        writer.execute("PRAGMA journal_mode = DELETE")  # one file, which can be read without write access
    sync(target)


def megabytes(size: int) -> int:
    """Return a size in bytes in megabytes, rounded up, for progress."""
    return -(-size // 1_000_000)


def prepare(new: Path) -> None:
    """Update a copy to the current format; raise a StoreError if it is from a newer version of denn."""
    with explained(new), closing(connect(new, PATIENCE)) as writer:
        check_file(writer, new, read_only=False)
        prepare_writer(writer)


def discard(part: Path) -> None:
    """Delete an unfinished copy with its index and its log, which SQLite would apply to the next copy."""
    for suffix in ("", "-wal", "-shm", "-journal", index_file.beside(part).name.removeprefix(part.name)):
        part.with_name(part.name + suffix).unlink(missing_ok=True)


def labels_of(path: Path) -> tuple[str, ...]:
    """Return the labels of a store in column order, without reading its documents."""
    with explained(path), closing(connect_reader(path, PATIENCE)) as reader:
        return tuple(name for (name,) in reader.execute("SELECT name FROM labels ORDER BY column"))


@contextmanager
def unused(path: Path) -> Iterator[sqlite3.Connection | None]:
    """Hold a store that no process has open, with its log merged into its file; None if it is missing or damaged.

    Other processes cannot open it until the block ends. Raise a ConflictError if one already has it open.
    """
    held = _hold(path) if path.is_file() else None
    if held is None:
        yield None
        return
    file = path.stat().st_ino
    with closing(held):
        try:
            yield held
        finally:
            if path.exists() and path.stat().st_ino == file:  # otherwise its log would be next to another file
                with suppress(sqlite3.OperationalError):  # the next writer does it, too
                    held.execute("PRAGMA journal_mode = WAL")


def _hold(path: Path) -> sqlite3.Connection | None:
    connection = None
    with explained(path):
        try:
            connection = connect(path, 0.0)
            # A process with an open store always holds a shared lock on it, which makes the change of mode fail.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("BEGIN EXCLUSIVE")
            connection.rollback()  # the lock stays until the connection is closed
        except sqlite3.DatabaseError as error:
            if connection is not None:
                connection.close()
            code = _code(error)
            if code in DAMAGED:
                return None
            if code != sqlite3.SQLITE_BUSY:
                raise
            raise ConflictError(
                f"the datastore {path} is in use by another process. Stop the service or command that uses it, then "
                "try again. Nothing was changed."
            ) from error
    return connection


def _code(error: sqlite3.DatabaseError) -> int:
    """Return SQLite's code of an error; Python's own error for a text that is not UTF-8 has none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF


def put_in_place(new: Path, index: Path | None, path: Path, held: sqlite3.Connection | None) -> None:
    """Replace a held, damaged or missing store with another file, all or nothing, and its index."""
    with explained(new), closing(connect(new, PATIENCE)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")  # the mode in which an open store holds a lock
    _check_merged(new)
    sync(new)
    if held is None:
        _set_aside(path)
    elif WINDOWS:  # which cannot replace an open file
        held.close()
    if path.exists():
        for file in (new, *([index] if index else [])):
            keep_access(path, file)
    index_file.beside(path).unlink(missing_ok=True)  # first: it may have vectors of documents that are forgotten
    new.replace(path)
    if index is not None:
        sync(index)
        index.replace(index_file.beside(path))
    sync(path.parent)


def _check_merged(path: Path) -> None:
    """Raise if a closed file still has a log: SQLite keeps it without an error if the disk is too full to merge it."""
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        raise StoreError(f"{path} cannot be completed: its disk is full. Free some space and try again.")


def _set_aside(path: Path) -> None:
    """Rename a store that SQLite cannot open, with its log, which must not be applied to another file."""
    aside = path.with_name(path.name + ".damaged")
    for suffix in ("-wal", "-shm", "-journal", ""):
        if (file := path.with_name(path.name + suffix)).exists():
            file.replace(aside.with_name(aside.name + suffix))
            log.warning("the damaged file %s is now %s", file.name, aside.name + suffix)


def forgotten_since(old: sqlite3.Connection, new: Path) -> list[str]:
    """Return the ids that were forgotten in one store and not in a copy of an earlier state."""
    try:
        forgotten = [id for (id,) in old.execute("SELECT id FROM forgotten ORDER BY id")]
    except sqlite3.DatabaseError as error:  # damaged, or from before there was a history
        if _code(error) in DAMAGED:
            log.warning(MAY_BE_BACK)
        return []
    with explained(new), closing(connect(new, PATIENCE)) as reader:
        if read_meta(reader)["format"] == 1:
            return forgotten
        return [id for id in forgotten if not ledger.is_forgotten(reader, id)]


def forget_again(old: sqlite3.Connection, new: Path) -> int:
    """Forget the documents that were forgotten in another store, as one change; return how many ids are new."""
    ids = forgotten_since(old, new)
    with explained(new), closing(connect(new, PATIENCE)) as writer:
        if ids:
            prepare_writer(writer)
            with transaction(writer):
                number = read_meta(writer)["version"] + 1
                ledger.forget(writer, ids, number)
                ledger.record(writer, number, "forget", SOURCE, len(ids), None)
                set_meta(writer, version=number)
            clean(writer)
    return len(ids)

"""The file of the embedded datastore: its schema, connections, and SQLite's errors in plain words."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from denn.errors import StoreError, UnavailableError
from denn.stores.rules import check_dimension, check_labels

FORMAT = 3
READABLE = (2, FORMAT)  # before 3, nothing was rejected; the rest is the same
MAPPED_BYTES = 1 << 40  # a reader maps the file, up to SQLite's limit of 2 GiB: reading texts takes half the time
CACHE_KIB = 65_536  # page cache of a reader for what is not mapped
CLOCK_GRAIN = 0.05  # seconds; file systems round times to a few milliseconds

# A row number is never reused. `changed` is the number of the last change of a row, so that a reader loads only newer
# rows; `removed` lists the rows that it must drop.
DOCUMENTS = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE labels(column INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE documents(
  row INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  changed INTEGER NOT NULL,
  labels BLOB NOT NULL,     -- int32 columns, little-endian, in the document's order, then ~column of rejected ones
  embedding BLOB NOT NULL,  -- float32, little-endian, length 1 or all zero
  text TEXT NOT NULL
);
CREATE INDEX documents_changed ON documents(changed);
CREATE TABLE removed(row INTEGER PRIMARY KEY, changed INTEGER NOT NULL);
CREATE INDEX removed_changed ON removed(changed);
"""

# `past` has each document that a change touched in its state before; without content if it did not exist.
HISTORY = """
CREATE TABLE changes(
  number INTEGER PRIMARY KEY,
  time INTEGER NOT NULL,     -- microseconds since 1970, UTC
  action TEXT NOT NULL,
  source TEXT NOT NULL,
  documents INTEGER NOT NULL,
  undoes INTEGER,            -- the number of the change that this one undid
  undone INTEGER NOT NULL DEFAULT 0,
  undoable INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE past(
  number INTEGER NOT NULL,
  row INTEGER NOT NULL,
  id TEXT NOT NULL,
  labels BLOB,
  embedding BLOB,
  text TEXT,
  PRIMARY KEY (number, row)
);
CREATE INDEX past_id ON past(id, number);
CREATE TABLE forgotten(id TEXT PRIMARY KEY, time INTEGER NOT NULL) WITHOUT ROWID;
"""

REASONS = {
    sqlite3.SQLITE_BUSY: "another process is writing to it. Try again when it is done",
    sqlite3.SQLITE_READONLY: "it cannot be written to. Check the permissions of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened. Check the permissions of the file and its folder",
    sqlite3.SQLITE_NOTADB: "it is not a denn datastore. Check the path",
    sqlite3.SQLITE_CORRUPT: "it is damaged. Restore it from a copy or build it again from the corpus",
    sqlite3.SQLITE_FULL: "the disk is full. Nothing was changed; free some space and try again",
}


class Connection(sqlite3.Connection):
    """A connection that remembers which file it has open, because another one may take its place."""

    inode: int | None = None


class Frozen(Connection):
    """A connection to a file in its state when it was opened.

    In a folder that this process cannot write to, SQLite can follow other processes only while one of them keeps the
    log and its index open there. Otherwise the file is read as it is, and its signature shows whether it changed.
    """

    signature: tuple[object, ...] = ()


def connect(path: Path, patience: float, mode: str = "rw") -> Connection:
    """Open a connection with manual transactions; a frozen one if there is no other way."""
    while True:
        seen = inode(path)
        connection = _connect(path, patience, mode)
        connection.inode = inode(path)
        if seen in (None, connection.inode):
            return connection
        connection.close()  # a restore replaced the file while this waited for it


def inode(path: Path) -> int | None:
    """Return the inode of a file, which differs if another file has taken its place; None if it is missing."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _connect(path: Path, patience: float, mode: str) -> Connection:
    if mode == "rw" and path.exists() and not os.access(path, os.W_OK):
        mode = "ro"  # SQLite would open it for reading anyway, and not reuse the descriptors of closed connections
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=patience, isolation_level=None, check_same_thread=False, factory=Connection
    )
    try:
        connection.execute("SELECT 1 FROM sqlite_master").close()  # finds the log, or creates it
        return connection
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            raise
        if not os.access(path, os.R_OK) or os.access(path.parent, os.W_OK):
            raise
        return _freeze(path)


def connect_reader(path: Path, patience: float) -> Connection:
    """Open a connection that cannot change anything."""
    reader = connect(path, patience)
    reader.execute("PRAGMA query_only = ON")
    reader.execute(f"PRAGMA mmap_size = {MAPPED_BYTES}")
    reader.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    return reader


def _freeze(path: Path) -> Frozen:
    """Open a file that no process is writing to, without the files that would show changes."""
    signature = settled_signature(path)
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        raise UnavailableError(
            f"cannot use the datastore {path}: its last changes are in the log next to it, which needs write access to "
            "the folder to be read. Open it once with write access."
        )
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, factory=Frozen)
    connection.signature = signature
    return connection


def signature_of(path: Path) -> tuple[object, ...]:
    """Return a value that changes when a file or its log does."""
    found = path.stat()
    log = path.with_name(path.name + "-wal")
    return found.st_ino, found.st_size, found.st_mtime_ns, log.exists()


def settled_signature(path: Path) -> tuple[object, ...]:
    """Return the signature once the last change is older than the clock's resolution, so that the next will show."""
    while 0 <= time.time() - path.stat().st_mtime < CLOCK_GRAIN:  # a future time says nothing about the last change
        time.sleep(CLOCK_GRAIN / 10)
    return signature_of(path)


def is_outdated(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file of a frozen connection has changed since."""
    return isinstance(connection, Frozen) and connection.signature != signature_of(path)


@contextmanager
def undisturbed(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Reject what was read through a frozen connection while the file changed: it may mix two states."""
    try:
        yield
    finally:
        if is_outdated(connection, path):
            raise UnavailableError(f"the datastore {path} was changed while it was being read. Try again.")


def prepare_writer(writer: sqlite3.Connection) -> None:
    """Make a connection's changes survive power cuts, and overwrite what they delete."""
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("PRAGMA synchronous = FULL")
    writer.execute("PRAGMA secure_delete = ON")
    with transaction(writer):
        written = read_meta(writer)["format"]
        if written == 1:  # a store from before there was a history
            run_all(writer, HISTORY)
            known = writer.execute("SELECT count(*) FROM labels").fetchone()[0]
            set_meta(writer, epoch=0, given=known)
        if written < FORMAT:
            set_meta(writer, format=FORMAT)


def version(path: Path) -> int:
    """Return the number of changes in a store; the bulk add that fills it is one."""
    with explained(path), closing(connect(path, 1.0, "ro")) as connection:
        check_file(connection, path, read_only=False)
        return read_meta(connection)["version"]


def write_schema(connection: sqlite3.Connection, path: Path, dimension: int, labels: Sequence[str]) -> None:
    """Fill a new file in one transaction; raise a StoreError if it already has content."""
    names = list(dict.fromkeys(labels))
    check_labels(names)
    with transaction(connection):
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
            raise StoreError(f"{path} already exists. Open it, or choose another path.")
        run_all(connection, DOCUMENTS + HISTORY)
        set_meta(connection, format=FORMAT, dimension=dimension, version=0, epoch=0, given=len(names))
        connection.executemany("INSERT INTO labels(column, name) VALUES (?, ?)", enumerate(names))


def check_file(reader: sqlite3.Connection, path: Path, read_only: bool) -> int:
    """Check that the file is a usable store, and return the dimension of its embeddings."""
    tables = "SELECT count(*) FROM sqlite_master WHERE name IN ('meta', 'labels', 'documents', 'removed')"
    if reader.execute(tables).fetchone() != (4,):
        raise StoreError(f"the file {path} is not a denn datastore. Check the path.")
    meta = read_meta(reader)
    if meta.get("format") == 1 and read_only:
        raise StoreError(f"the datastore {path} is from an older version of denn. Open it for writing to update it.")
    if meta["format"] > FORMAT:
        raise StoreError(
            f"the datastore {path} is from a newer version of denn (format {meta['format']}; this version reads up to "
            f"{FORMAT}). Update denn."
        )
    if meta["format"] not in (1, *READABLE):
        raise StoreError(f"the datastore {path} is damaged: there is no format {meta['format']}. Restore a copy.")
    check_dimension(meta["dimension"])
    first = reader.execute("SELECT length(embedding) FROM documents LIMIT 1").fetchone()
    if first is not None and first[0] != 4 * meta["dimension"]:  # before allocating memory for all of them
        raise StoreError(f"the datastore {path} is damaged: its embeddings have another dimension. Restore a copy.")
    return meta["dimension"]


def label_columns(stored: Sequence[bytes], width: int) -> NDArray[np.int32]:
    """Return the stored label columns of documents end to end, rejected ones as complements.

    All of them must be among the first `width`.
    """
    check_types(stored, bytes)
    if not any(len(blob) % 4 for blob in stored):
        columns = np.frombuffer(bytearray().join(stored), "<i4")
        if not len(columns) or -width <= columns.min() <= columns.max() < width:
            return columns
    raise StoreError("the datastore is damaged: a document has a label that does not exist. Restore it from a copy.")


def check_types(values: Iterable[object], kind: type) -> None:
    """Reject values of the wrong type for their column, because SQLite accepts any."""
    if not {type(value) for value in values} <= {kind}:
        raise StoreError(f"the datastore is damaged: expected values of type {kind.__name__}. Restore it from a copy.")


def read_meta(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the store's numbers: format, dimension, version, epoch (counts vacuums), given (labels at creation)."""
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    check_types(meta.values(), int)
    needed = {"format", "dimension", "version"} | ({"epoch", "given"} if meta.get("format") in READABLE else set())
    if missing := needed - meta.keys():
        raise StoreError(f"the datastore is damaged: its {missing.pop()} is missing. Restore it from a copy.")
    return meta


def set_meta(connection: sqlite3.Connection, **values: int) -> None:
    """Write some of the store's numbers."""
    connection.executemany("INSERT OR REPLACE INTO meta(key, value) VALUES (?, ?)", values.items())


def run_all(connection: sqlite3.Connection, statements: str) -> None:
    """Run statements one by one, because `executescript` would end the transaction."""
    for statement in statements.split(";"):
        connection.execute(statement)


@contextmanager
def transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Run the block as one transaction, rolled back on an error."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        connection.rollback()  # does nothing after a commit


def clean(writer: sqlite3.Connection) -> None:
    """Rewrite the file without deleted data, and empty its log."""
    writer.execute("VACUUM")
    (busy, *_) = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        raise StoreError(
            "the datastore was compacted, but a process that is reading it keeps removed data in the log next to the "
            "file. Vacuum again when it is done."
        )


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into sentences for the user."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        reason = str(error).rstrip(".") if code is None else REASONS.get(code & 0xFF, str(error))  # the primary code
        raise UnavailableError(f"cannot use the datastore {path}: {reason}.") from error
    except OSError as error:
        raise UnavailableError(f"cannot use the datastore {path}: {error.strerror or error}.") from error
    except UnicodeEncodeError as error:
        raise StoreError(
            f"got a text, id or label that is not valid Unicode ({error.reason}). Fix it first."
        ) from error
    except UnicodeDecodeError as error:  # in a name, or in a message of SQLite's own
        raise UnavailableError(f"cannot use the datastore {path}: {REASONS[sqlite3.SQLITE_CORRUPT]}.") from error

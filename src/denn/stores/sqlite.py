"""The file under the embedded datastore: its schema, connections, and SQLite's complaints in plain words."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from denn.errors import StoreError

FORMAT = 1

# A row number is given once and never again. `changed` is the store's version at the last change of a row, so a
# reader takes in only what is newer than what it has; `removed` tells it which rows to forget.
SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE labels(column INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE documents(
  row INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  changed INTEGER NOT NULL,
  labels BLOB NOT NULL,     -- int32 columns, little-endian, in the document's order
  embedding BLOB NOT NULL,  -- float32, little-endian, length 1 or all zero
  text TEXT NOT NULL
);
CREATE INDEX documents_changed ON documents(changed);
CREATE TABLE removed(row INTEGER PRIMARY KEY, changed INTEGER NOT NULL);
CREATE INDEX removed_changed ON removed(changed);
"""

REASONS = {
    sqlite3.SQLITE_BUSY: "another process is writing to it. Try again when it is done",
    sqlite3.SQLITE_READONLY: "it cannot be written to. Check the permissions of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened. Check the permissions of the file and its folder",
    sqlite3.SQLITE_NOTADB: "it is not a denn datastore. Check the path",
    sqlite3.SQLITE_CORRUPT: "it is damaged. Restore it from a copy or build it again from the corpus",
    sqlite3.SQLITE_FULL: "the disk is full. Nothing was changed; make room and try again",
}


def connect(path: Path, patience: float, mode: str = "rw") -> sqlite3.Connection:
    """Open a connection whose transactions are begun and ended by hand."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    if not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        uri += "&immutable=1"  # on a read-only disk SQLite cannot make the files it coordinates processes with
    return sqlite3.connect(uri, uri=True, timeout=patience, isolation_level=None, check_same_thread=False)


def version(path: Path) -> int:
    """Return how many changes a store has seen; the bulk add that fills it is one."""
    connection = connect(path, 1.0, "ro")
    try:
        return int(connection.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()[0])
    finally:
        connection.close()


def write_schema(connection: sqlite3.Connection, path: Path, dimension: int, labels: Sequence[str]) -> None:
    """Fill a new file in one transaction; a file that holds anything is an error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
            raise StoreError(f"there is a file at {path} already. Open it, or choose another path.")
        for statement in SCHEMA.split(";"):
            connection.execute(statement)
        meta = {"format": FORMAT, "dimension": dimension, "version": 0}
        connection.executemany("INSERT INTO meta(key, value) VALUES (?, ?)", meta.items())
        connection.executemany("INSERT INTO labels(column, name) VALUES (?, ?)", enumerate(dict.fromkeys(labels)))
        connection.execute("COMMIT")
    finally:
        connection.rollback()


def read_dimension(reader: sqlite3.Connection, path: Path) -> int:
    """Check that the file is a store of this format and return the width of its embeddings."""
    tables = "SELECT count(*) FROM sqlite_master WHERE name IN ('meta', 'labels', 'documents', 'removed')"
    if reader.execute(tables).fetchone() != (4,):
        raise StoreError(f"the file {path} is not a denn datastore. Check the path.")
    meta: dict[str, int] = dict(reader.execute("SELECT key, value FROM meta"))
    if meta.get("format") != FORMAT:
        raise StoreError(
            f"the datastore {path} has the format {meta.get('format')}, expected {FORMAT}. "
            "Open it with the version of denn that wrote it, or build it again from the corpus."
        )
    return meta["dimension"]


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what SQLite complains of into a sentence for the user."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        reason = str(error).rstrip(".") if code is None else REASONS.get(code & 0xFF, str(error))  # & 0xFF: its kind
        raise StoreError(f"cannot use the datastore {path}: {reason}.") from error
    except OSError as error:
        raise StoreError(f"cannot use the datastore {path}: {error.strerror or error}.") from error
    except UnicodeEncodeError as error:
        raise StoreError(
            f"got a text, id or label that is not valid Unicode ({error.reason}). Mend it first."
        ) from error

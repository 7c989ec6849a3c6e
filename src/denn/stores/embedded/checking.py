"""Check the file of an embedded datastore from beginning to end: structure, documents, history and index."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from io import BufferedReader
from pathlib import Path

import numpy as np
import torch

from denn.errors import StoreError, UnavailableError
from denn.stores.checking import HISTORY, RESTORE, Findings
from denn.stores.embedded import index_file
from denn.stores.embedded.index_maintenance import belongs
from denn.stores.embedded.sqlite import (
    REASONS,
    check_file,
    connect_reader,
    explained,
    read_meta,
    transaction,
    undisturbed,
)
from denn.stores.embedded.vectors import UNIT_TOLERANCE, read_present

PATIENCE = 10.0  # seconds to wait for a process that is writing
ROWS = 2048  # documents read at a time
SHOWN = 3  # messages of SQLite to repeat
CACHE = "The index is only a cache: delete the file, and denn builds it again."

Rules = Mapping[tuple[str, str], str]  # (what is wrong, noun) → query for what is wrong, which should find nothing

DOCUMENT_RULES: Rules = {
    ("last changed by a change that is not in the history", "document"): (
        "SELECT id AS x FROM documents WHERE changed NOT IN (SELECT number FROM changes) "
        "AND changed >= (SELECT min(number) FROM changes)"
    ),
    ("changed after the last change of the datastore", "document"): (
        "SELECT id AS x FROM documents WHERE changed > (SELECT value FROM meta WHERE key = 'version')"
    ),
    ("stored although forgotten", "document"): ("SELECT id AS x FROM documents WHERE id IN (SELECT id FROM forgotten)"),
    ("stored although removed", "document"): (  # an undone removal is an older change
        "SELECT id AS x FROM documents JOIN removed USING (row) WHERE removed.changed >= documents.changed"
    ),
    ("numbered with gaps", "label"): "SELECT name AS x FROM labels WHERE column >= (SELECT count(*) FROM labels)",
}
HISTORY_RULES: Rules = {
    ("numbered higher than the last change of the datastore", "change"): (
        "SELECT number AS x FROM changes WHERE number > (SELECT value FROM meta WHERE key = 'version')"
    ),
    ("undoing a change that is missing or later", "change"): (
        "SELECT number AS x FROM changes c WHERE undoes IS NOT NULL "
        "AND (undoes >= number OR NOT EXISTS(SELECT 1 FROM changes WHERE number = c.undoes))"
    ),
    ("keeping more documents than they touched", "change"): (
        "SELECT number AS x FROM changes c WHERE documents < (SELECT count(*) FROM past WHERE number = c.number)"
    ),
    ("kept for a change that is not in the history", "previous version"): (
        "SELECT id AS x FROM past WHERE number NOT IN (SELECT number FROM changes)"
    ),
}


def check(path: Path, advance: Callable[[int], None] = lambda documents: None) -> Findings:
    """Check a store in the state of one moment; `advance` receives the number of documents checked."""
    found = Findings()
    try:
        with closing(connect_reader(path, PATIENCE)) as reader:
            with undisturbed(reader, path), transaction(reader, "DEFERRED"):
                _check(reader, path, found, advance)
    except UnavailableError:  # it changed while it was read without its log
        raise
    except StoreError as error:
        found.problems.append(str(error))
    except (sqlite3.Error, UnicodeDecodeError) as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR):
            raise UnavailableError(f"cannot check the datastore {path}: {REASONS.get(code, str(error))}.") from error
        found.problem(f"SQLite cannot read the file {path} ({error})")
    return found


def check_index(path: Path) -> Findings:
    """Check the index of a store alone."""
    found = Findings()
    with explained(path), closing(connect_reader(path, PATIENCE)) as reader:
        _check_index(reader, index_file.beside(path), read_meta(reader)["dimension"], found)
    return found


def _check(reader: sqlite3.Connection, path: Path, found: Findings, advance: Callable[[int], None]) -> None:
    for (message,) in reader.execute(f"PRAGMA integrity_check({SHOWN})"):
        if message != "ok":
            found.problem(f"the file {path} is damaged: {'; '.join(message.splitlines())}")
    if found.problems:  # the other checks would only repeat this
        return
    dimension, meta = check_file(reader, path, read_only=False), read_meta(reader)
    (labels,) = reader.execute("SELECT count(*) FROM labels").fetchone()
    found.facts |= {"format": meta["format"], "dimension": dimension, "labels": labels, "change": meta["version"]}
    found.facts["documents"] = _check_rows(reader, "documents", dimension, labels, found, RESTORE, advance)
    if meta["format"] == 1:  # from before there was a history
        return
    _check_rows(reader, "past", dimension, labels, found, HISTORY, lambda documents: None)
    (found.facts["changes"],) = reader.execute("SELECT count(*) FROM changes").fetchone()
    for rules, remedy in ((DOCUMENT_RULES, RESTORE), (HISTORY_RULES, HISTORY)):
        for (what, noun), query in rules.items():
            count, first = reader.execute(f"SELECT count(*), min(x) FROM ({query})").fetchone()
            found.some(what, noun, count, first, remedy)
    _check_index(reader, index_file.beside(path), dimension, found)


def _check_rows(
    reader: sqlite3.Connection,
    table: str,
    dimension: int,
    labels: int,
    found: Findings,
    remedy: str,
    advance: Callable[[int], None],
) -> int:
    """Check ids, texts, labels and vectors of all documents in a table; return how many there are."""
    wrong: dict[str, list[object]] = {}
    condition = "" if table == "documents" else "WHERE labels IS NOT NULL"
    rows = reader.execute(
        "SELECT CAST(id AS BLOB), CAST(text AS BLOB), typeof(id) || ' ' || typeof(text), labels, embedding "
        f"FROM {table} "
        f"{condition} ORDER BY row"
    )
    done = 0
    while chunk := rows.fetchmany(ROWS):
        for id, text, kinds, columns, vector in chunk:
            for what in _flaws(id, text, kinds, columns, vector, dimension, labels):
                wrong.setdefault(what, []).append(bytes(id or b"").decode(errors="replace"))
        done += len(chunk)
        advance(done)
    noun = "document" if table == "documents" else "previous version"
    for what, ids in wrong.items():
        found.some(what, noun, len(ids), ids[0], remedy)
    return done


def _flaws(
    id: bytes, text: bytes, kinds: str, columns: object, vector: object, dimension: int, width: int
) -> list[str]:
    flaws = []
    if kinds != "text text" or not (_is_utf8(id) and _is_utf8(text)):
        flaws.append("with an id or a text that is not UTF-8 text")
    if not isinstance(columns, bytes) or len(columns) % 4 or not _are_labels(np.frombuffer(columns, "<i4"), width):
        flaws.append("with labels that do not exist, occur twice or are also rejected")
    if not isinstance(vector, bytes) or len(vector) != 4 * dimension:
        flaws.append(f"with an embedding that does not have {dimension} dimensions")
    else:
        numbers = np.frombuffer(vector, "<f4")
        square = float(numbers @ numbers)
        if not (abs(square - 1) < UNIT_TOLERANCE or square == 0):  # also catches nan and infinity
            flaws.append("with an embedding that is not finite or does not have length 1")
    return flaws


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _are_labels(columns: np.ndarray, width: int) -> bool:
    """Return whether label columns exist and are distinct; a rejected label is the complement of its column."""
    plain = [max(column, ~column) for column in columns.tolist()]
    return len(set(plain)) == len(plain) and all(column < width for column in plain)


def _check_index(reader: sqlite3.Connection, file: Path, dimension: int, found: Findings) -> None:
    """Compare an index with its digest, and its vectors with those of the store."""
    try:
        content = file.open("rb")  # only once: another process may replace or delete it
    except FileNotFoundError:
        found.facts["index"] = "none"
        return
    with content:
        _compare_index(reader, content, dimension, found)


def _compare_index(reader: sqlite3.Connection, file: BufferedReader, dimension: int, found: Findings) -> None:
    header = index_file.read_header(file)
    if not header:
        found.facts["index"] = "unused"
        if not index_file.is_older(file):
            found.problem(f"the index {file.name} is incomplete", CACHE)
        return
    file.seek(index_file.BLOCK)
    if hashlib.file_digest(file, "sha256").hexdigest() != header.get("digest"):
        found.problem(f"the index {file.name} is damaged", CACHE)
        return
    if header["dimension"] != dimension or not belongs(reader, header):
        found.facts["index"] = "unused"  # of an earlier state; it will be built again when it is needed
        return
    found.facts["index"] = "current"
    vectors = np.memmap(file, "<f4", "r", index_file.BLOCK, (header["covered"], dimension))
    rows = np.memmap(file, "<i8", "r", index_file.BLOCK + vectors.nbytes, (header["covered"],))
    for begin in range(0, len(rows), ROWS):
        own = np.array(rows[begin : begin + ROWS])
        kept, stored = read_present(reader, dimension, torch.from_numpy(own), header["version"])
        place = begin + np.searchsorted(own, kept.numpy())
        if not np.array_equal(vectors[place], stored.numpy()):
            found.problem(f"the index {file.name} has other vectors than the datastore", CACHE)
            return

"""Read documents, vectors and ids from an embedded datastore."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from denn.errors import StoreError
from denn.stores.embedded.ledger import micros
from denn.stores.embedded.replica import Replica
from denn.stores.embedded.sqlite import check_types, label_columns
from denn.stores.embedded.vectors import matrix
from denn.types import Document, Where

IDS_AT_ONCE = 500  # in a query; older builds of SQLite allow 999
# Join texts in one row: Python takes its lock once for each row that SQLite returns, and other threads need it.
JOINED = """
SELECT min(typeof(text)) || max(typeof(text)), group_concat(row), group_concat(length(CAST(text AS BLOB))),
    CAST(group_concat(text, '') AS BLOB)
FROM documents WHERE row IN ({})
"""


def documents(replica: Replica, ids: Sequence[str], missing_ok: bool) -> list[Document]:
    """Return stored documents in the order of the ids, leaving out unknown ones if `missing_ok`."""
    with replica.reading():
        if missing_ok:
            ids = [id for id in ids if id in replica.index]
        rows, names = _rows(replica, "id, text, labels", ids), replica.labels
    return documents_of(rows, names)


def texts(replica: Replica, ids: Sequence[str]) -> dict[str, str]:
    """Return the texts of stored documents by id, leaving out unknown ids."""
    found: dict[str, str] = {}
    with replica.reading():
        id_of = replica.index.rows(ids)
        rows = sorted(id_of)
        for begin in range(0, len(rows), IDS_AT_ONCE):
            found |= {id_of[row]: text for row, text in _texts(replica.reader, rows[begin : begin + IDS_AT_ONCE])}
    return found


def _texts(reader: sqlite3.Connection, rows: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Read the texts of rows, in halves if they are too long for one value."""
    try:
        joined = reader.execute(JOINED.format(", ".join("?" * len(rows))), rows).fetchone()
    except sqlite3.DataError:
        if len(rows) == 1:
            raise
        half = len(rows) // 2
        yield from _texts(reader, rows[:half])
        yield from _texts(reader, rows[half:])
    else:
        yield from _divided(*joined)


def _divided(kinds: str, rows: str, lengths: str, texts: bytes) -> Iterator[tuple[int, str]]:
    """Yield rows and texts from the result of JOINED."""
    if kinds != "texttext":  # the first and the last type, in alphabetical order
        raise StoreError("the datastore is damaged: a text has another type. Restore it from a copy.")
    end, view = 0, memoryview(texts)
    for row, length in zip(rows.split(","), lengths.split(","), strict=True):
        begin, end = end, end + int(length)
        try:
            yield int(row), str(view[begin:end], "utf-8")
        except UnicodeDecodeError as error:
            raise StoreError("the datastore is damaged: a text is not UTF-8. Restore it from a copy.") from error


def vectors(replica: Replica, ids: Sequence[str], dimension: int) -> Tensor:
    """Return the (n,d) unit vectors of stored documents in the order of the ids."""
    with replica.reading():
        rows = _rows(replica, "embedding", ids)
    return matrix([blob for (blob,) in rows], dimension)


def _rows(replica: Replica, columns: str, ids: Sequence[str]) -> list[list[Any]]:
    """Read columns of stored documents in the order of the ids; raise an UnknownError for an unknown id."""
    replica.check_known(ids)
    found: dict[str, list[Any]] = {}
    for begin in range(0, len(ids), IDS_AT_ONCE):
        some = ids[begin : begin + IDS_AT_ONCE]
        select = f"SELECT id, {columns} FROM documents WHERE id IN ({', '.join('?' * len(some))})"
        found |= {id: row for id, *row in replica.reader.execute(select, some)}
    return [found[id] for id in ids]


def parts(reader: sqlite3.Connection, size: int, dimension: int) -> Iterator[tuple[list[Document], Tensor]]:
    """Read a snapshot of all documents, oldest first, with their (n,d) unit vectors, in batches of `size`."""
    names = [name for (name,) in reader.execute("SELECT name FROM labels ORDER BY column")]
    rows = reader.execute("SELECT id, text, labels, embedding FROM documents ORDER BY row")
    while chunk := rows.fetchmany(size):
        yield documents_of([row for *row, _ in chunk], names), matrix([blob for *_, blob in chunk], dimension)


def documents_of(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> list[Document]:
    """Create documents from their ids, texts and label columns."""
    if not rows:
        return []
    ids, texts, blobs = zip(*rows, strict=True)
    check_types((*ids, *texts), str)
    signed, end, made = label_columns(blobs, len(names)).tolist(), 0, []
    for id, text, blob in zip(ids, texts, blobs, strict=True):
        begin, end = end, end + len(blob) // 4
        labels = tuple([names[column] for column in signed[begin:end] if column >= 0])
        rejected = tuple([names[~column] for column in signed[begin:end] if column < 0])
        if rejected and not set(rejected).isdisjoint(labels):
            raise StoreError("the datastore is damaged: a label is both given and rejected. Restore it from a copy.")
        made.append(Document(text, labels, id, rejected))
    return made


def select(reader: sqlite3.Connection, where: Where) -> list[str]:
    """List the ids of the matching documents, oldest first."""
    tests: dict[str, object] = {
        "instr(text, ?) > 0": where.text,
        "source = ?": where.source,
        "time >= ?": None if where.since is None else micros(where.since),
        "time < ?": None if where.before is None else micros(where.before),
        "action = ?": where.action,
        "(labels = x'') = ?": where.unlabelled or None,
    }
    asked = {test: value for test, value in tests.items() if value is not None}
    condition = f"WHERE {' AND '.join(asked)}" if asked else ""
    found = reader.execute(
        f"SELECT id, labels FROM documents LEFT JOIN changes ON number = changed {condition} ORDER BY row",
        tuple(asked.values()),
    )
    if not where.labels:
        return [id for id, _ in found]
    columns = (reader.execute("SELECT column FROM labels WHERE name = ?", (name,)).fetchone() for name in where.labels)
    wanted = {column for (column,) in filter(None, columns)}
    return [id for id, blob in found if not wanted.isdisjoint(np.frombuffer(blob, "<i4").tolist())]

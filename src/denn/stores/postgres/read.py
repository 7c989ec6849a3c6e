"""Read from a datastore in PostgreSQL: documents, vectors, matching documents and history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denn.errors import StoreError, UnknownError
from denn.stores.postgres.link import Address, Connection
from denn.stores.rules import NAMED, as_ids, in_utc
from denn.types import Change, Document, Where, Which

NAMES = "ARRAY(SELECT name FROM document_labels l JOIN labels ON number = {} WHERE l.row = d.row ORDER BY place)"
CONTENT = (
    f"d.id, d.text, {NAMES.format('l.label')}, {NAMES.format('~l.label AND l.label < 0')}"  # labels and rejected ones
)
BY_DIGEST = "sha256(d.id) = ANY(%b::bytea[])"


def digests(texts: Iterable[str]) -> list[bytes]:
    """Return the digests by which ids and names are found."""
    return [sha256(text.encode()).digest() for text in texts]


def check_known(address: Address, ids: Sequence[str], known: Iterable[str]) -> None:
    """Reject ids that are not among the known ones."""
    held = set(known)
    unknown = [id for id in ids if id not in held]
    if unknown:
        raise UnknownError(
            f"the datastore {address.text} has no document with the id {unknown[0]!r} ({len(unknown)} of {len(ids)} "
            "ids are unknown). Nothing was changed."
        )


def documents(connection: Connection, address: Address, ids: Sequence[str], missing_ok: bool = False) -> list[Document]:
    """Return stored documents in the order of the ids, leaving out unknown ones if `missing_ok`."""
    statement = f"SELECT {CONTENT} FROM documents d WHERE {BY_DIGEST}"
    rows = connection.execute(statement, (digests(ids),), binary=True).fetchall()
    found = {row[0].decode(): document_of(row) for row in rows}
    if not missing_ok:
        check_known(address, ids, found)
    return [found[id] for id in ids if id in found]


def document_of(row: Sequence[Any]) -> Document:
    """Create a document from the result of CONTENT."""
    id, text, *names = row
    labels, rejected = (tuple(name.decode() for name in some) for some in names)
    return Document(text.decode(), labels, id.decode(), rejected)


def texts(connection: Connection, ids: Sequence[str]) -> dict[str, str]:
    """Return the texts of stored documents by id, leaving out unknown ids."""
    statement = f"SELECT d.id, d.text FROM documents d WHERE {BY_DIGEST}"
    rows = connection.execute(statement, (digests(ids),), binary=True).fetchall()
    return {id.decode(): text.decode() for id, text in rows}


def vectors(connection: Connection, address: Address, ids: Sequence[str], dimension: int) -> Tensor:
    """Return the (n,d) unit vectors of stored documents in the order of the ids."""
    statement = f"SELECT d.id, v.embedding FROM documents d JOIN vectors v USING (row) WHERE {BY_DIGEST}"
    rows = connection.execute(statement, (digests(ids),), binary=True).fetchall()
    found = {id.decode(): vector for id, vector in rows}
    check_known(address, ids, found)
    return stacked([found[id] for id in ids], dimension)


def stacked(vectors: Sequence[Any], dimension: int) -> Tensor:
    """Turn pgvector's vectors into a (n,d) tensor."""
    rows = np.array([vector.to_numpy() for vector in vectors], np.float32)
    return torch.from_numpy(rows.reshape(len(vectors), dimension))


def rows_of(connection: Connection, address: Address, which: Which) -> dict[str, int]:
    """Return ids and rows of the matching documents; an unknown id is an error."""
    if isinstance(which, Where):
        return select(connection, which)
    ids = as_ids(which)
    statement = f"SELECT d.id, d.row FROM documents d WHERE {BY_DIGEST}"
    found = {id.decode(): row for id, row in connection.execute(statement, (digests(ids),), binary=True)}
    check_known(address, ids, found)
    return {id: found[id] for id in ids}


def select(connection: Connection, where: Where) -> dict[str, int]:
    """Return ids and rows of the documents that match a filter, oldest first."""
    wanted = (
        "d.row IN (SELECT l.row FROM document_labels l JOIN labels ON number = l.label WHERE sha256(name) = ANY(%b))"
    )
    tests: dict[str, Any] = {
        wanted: digests(where.labels) or None,
        "position(%b::bytea IN d.text) > 0": None if where.text is None else where.text.encode(),
        "c.source = %b::bytea": None if where.source is None else where.source.encode(),
        "c.time >= %b": None if where.since is None else in_utc(where.since),
        "c.time < %b": None if where.before is None else in_utc(where.before),
        "c.action = %b::text": where.action,
        "NOT EXISTS(SELECT FROM document_labels l WHERE l.row = d.row) = %b": where.unlabelled or None,
    }
    asked = {test: value for test, value in tests.items() if value is not None}
    condition = f"WHERE {' AND '.join(asked)}" if asked else ""
    statement = f"SELECT d.id, d.row FROM documents d JOIN changes c ON c.number = d.changed {condition} ORDER BY d.row"
    return {id.decode(): row for id, row in connection.execute(statement, list(asked.values()), binary=True)}


def parts(connection: Connection, size: int) -> Iterator[list[tuple[Any, ...]]]:
    """Read CONTENT and vectors of a snapshot of all documents, oldest first, in batches of `size`."""
    if size < 1:
        raise StoreError(f"the batch size must be at least 1, not {size}.")
    with connection.transaction(), connection.cursor("export") as cursor:  # a cursor on the server
        cursor.execute(
            f"SELECT {CONTENT}, v.embedding FROM documents d JOIN vectors v USING (row) ORDER BY d.row",
            binary=True,
        )
        while rows := cursor.fetchmany(size):
            yield rows


def facts(connection: Connection, address: Address) -> tuple[str, int, str, int]:
    """Return the actual location of the store, its bytes with indexes, the server's version, and its rejections."""
    query = (
        "SELECT sum(pg_total_relation_size(c.oid))::bigint, current_setting('server_version'), "
        "(SELECT count(*) FROM document_labels WHERE label < 0) FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s AND relkind = 'r'"
    )
    row: Any = connection.execute(query, (address.schema,)).fetchone()
    return address.place(connection), *row


def given_labels(connection: Connection) -> tuple[str, ...]:
    """Return the labels given at creation."""
    rows = connection.execute("SELECT name FROM labels WHERE given ORDER BY number", binary=True)
    return tuple(name.decode() for (name,) in rows)


def label_counts(connection: Connection) -> dict[str, int]:
    """Count the documents of each label, in column order."""
    rows = connection.execute(
        "SELECT name, count(row) FROM labels LEFT JOIN document_labels ON label = number GROUP BY number "
        "ORDER BY number",
        binary=True,
    )
    return {name.decode(): count for name, count in rows}


def history(connection: Connection, limit: int | None, id: str | None) -> list[Change]:
    """List changes, newest first."""
    touching = "" if id is None else "WHERE number IN (SELECT number FROM past WHERE sha256(id) = %(id)b)"
    rows = connection.execute(
        "SELECT number, time, action, source, documents, undoes, undone, undoable, "
        f"ARRAY(SELECT id FROM past p WHERE p.number = changes.number ORDER BY row LIMIT {NAMED}) "
        f"FROM changes {touching} ORDER BY number DESC LIMIT %(limit)s",
        {"id": None if id is None else digests([id])[0], "limit": limit},
        binary=True,
    )
    return [
        Change(
            number,
            time.astimezone(UTC),
            action,
            source.decode(),
            count,
            undoes,
            undone,
            undoable,
            tuple(id.decode() for id in ids),
        )
        for number, time, action, source, count, undoes, undone, undoable, ids in rows
    ]

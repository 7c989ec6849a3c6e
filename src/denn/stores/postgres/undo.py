"""Undo changes, forget documents and reclaim space in a datastore in PostgreSQL."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from denn.errors import StoreError
from denn.stores.postgres.changes import Writing
from denn.stores.postgres.link import Connection, errors, wait_at_most
from denn.stores.postgres.read import check_known, digests, select
from denn.stores.rules import as_ids, check_undoable, check_untouched, undone_after
from denn.types import Where, Which

TRANSACTION_NUMBERS = 2**32  # they are stored modulo this

CONFLICT = """
SELECT p.id, c.number FROM past p JOIN past later ON sha256(later.id) = sha256(p.id) AND later.number > p.number
JOIN changes c ON c.number = later.number
WHERE p.number = %(number)s AND NOT c.undone AND (c.undoes IS NULL OR c.undoes < %(number)s)
ORDER BY c.number DESC LIMIT 1
"""  # a later change and the one that undid it cancel out

BEFORE = """
SELECT d.row, p.labels IS NOT NULL AND p.text IS NULL AS only_labels
FROM past p LEFT JOIN documents d ON sha256(d.id) = sha256(p.id) WHERE p.number = %s
"""

RESTORE = (
    "INSERT INTO documents(row, id, changed, text) "
    "SELECT row, id, %(new)s, text FROM past WHERE number = %(old)s AND text IS NOT NULL",
    "INSERT INTO vectors(row, embedding) "
    "SELECT row, embedding FROM past WHERE number = %(old)s AND embedding IS NOT NULL",
    "INSERT INTO document_labels(row, place, label) SELECT row, place - 1, label "
    "FROM past, unnest(labels) WITH ORDINALITY AS was(label, place) WHERE number = %(old)s",
)


def undo(writing: Writing, number: int) -> int:
    """Restore what a change touched; return the number of documents."""
    _check_undoable(writing.connection, number)
    values = {"old": number, "new": writing.number}
    before = writing.connection.execute(BEFORE, (number,)).fetchall()
    relabelled = [row for row, only_labels in before if only_labels]
    others = [row for row, only_labels in before if row is not None and not only_labels]
    writing.connection.execute(
        "INSERT INTO past(number, row, id) SELECT %(new)s, p.row, p.id FROM past p WHERE p.number = %(old)s "
        "AND NOT EXISTS(SELECT FROM documents d WHERE sha256(d.id) = sha256(p.id))",
        values,
    )
    writing.keep(relabelled, whole=False)
    writing.keep(others)
    writing.take_out(others)
    writing.connection.execute("DELETE FROM document_labels WHERE row = ANY(%s)", (relabelled,))
    writing.connection.execute("UPDATE documents SET changed = %s WHERE row = ANY(%s)", (writing.number, relabelled))
    back = [writing.connection.execute(statement, values).rowcount for statement in RESTORE]
    writing.more += back[0]
    for one, undone in undone_after(number, lambda one: _undoes(writing.connection, one)).items():
        writing.connection.execute("UPDATE changes SET undone = %s WHERE number = %s", (undone, one))
    writing.undoes = number
    return writing.touch(len(before))


def _undoes(connection: Connection, number: int) -> int | None:
    found = connection.execute("SELECT undoes FROM changes WHERE number = %s", (number,)).fetchone()
    return found[0] if found else None


def _check_undoable(connection: Connection, number: int) -> None:
    query = "SELECT action, undone, undoable FROM changes WHERE number = %s"
    found = connection.execute(query, (number,)).fetchone()
    check_undoable(number, found)
    later = connection.execute(CONFLICT, {"number": number}).fetchone()
    check_untouched(number, None if later is None else (later[0].decode(), later[1]))


def forget(writing: Writing, which: Which) -> int:
    """Delete stored and past documents, except for their ids; return how many."""
    if isinstance(which, Where):
        ids = list(select(writing.connection, which))
    else:
        ids = as_ids(which)
    values = {"ids": digests(ids)}
    known = "SELECT id, {} FROM {} WHERE sha256(id) = ANY(%(ids)b::bytea[])"
    stored = writing.connection.execute(known.format("row", "documents"), values, binary=True).fetchall()
    past = writing.connection.execute(known.format("row", "past"), values, binary=True).fetchall()
    check_known(writing.address, ids, (id.decode() for id, _ in (*stored, *past)))
    writing.take_out([row for _, row in stored])
    writing.connection.execute("DELETE FROM past WHERE sha256(id) = ANY(%(ids)b::bytea[])", values)
    writing.connection.execute("INSERT INTO forgotten(id) SELECT unnest(%b::bytea[])", ([id.encode() for id in ids],))
    return writing.touch(len(ids))


def prune(connection: Connection, keep: timedelta | None, patience: float) -> None:
    """Delete the data for undoing changes older than `keep`, and later labels that nothing has or had."""
    wait_at_most(connection, patience)
    connection.execute("SELECT FROM meta FOR UPDATE")
    if keep is not None:
        old = "UPDATE changes SET undoable = false WHERE time < clock_timestamp() - %s RETURNING number"
        connection.execute(f"WITH old AS ({old}) DELETE FROM past WHERE number IN (SELECT number FROM old)", (keep,))
    gone = connection.execute(
        "DELETE FROM labels WHERE NOT given "
        "AND NOT EXISTS(SELECT FROM document_labels WHERE label IN (labels.number, ~labels.number)) "
        "AND number NOT IN (SELECT greatest(label, ~label) FROM past, unnest(past.labels) AS was(label))"
    )
    if gone.rowcount:
        connection.execute("UPDATE meta SET epoch = epoch + 1")


def rewrite(connection: Connection, patience: float) -> None:
    """Rewrite the tables without deleted data, so that nothing of it is left in their files."""
    row: Any = connection.execute("SELECT version, swept FROM meta").fetchone()
    version, swept = row
    tables = ("documents", "document_labels", "labels", "past", *(() if swept else ("vectors",)))
    _wait_for_older_readers(connection, patience)
    wait_at_most(connection, patience, local=False)
    try:
        for table in tables:
            connection.execute(f"VACUUM (FULL, ANALYZE) {table}")
    except errors.LockNotAvailable:
        raise StoreError(
            f"the table {table} could not be rewritten: another process is using it. Vacuum again later."
        ) from None
    finally:
        connection.execute("RESET lock_timeout")
    connection.execute("UPDATE meta SET swept = true WHERE version = %s", (version,))


def _wait_for_older_readers(connection: Connection, patience: float) -> None:
    """Wait until no session of the server can see what was deleted so far, because PostgreSQL keeps it for them.

    The oldest row age that a vacuum of any table leaves shows how far back a session may look.
    """
    now: Any = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
    end = time.monotonic() + patience
    while True:
        connection.execute("VACUUM (FREEZE) meta")
        seen: Any = connection.execute(
            "SELECT relfrozenxid::text::bigint FROM pg_class WHERE oid = to_regclass('meta')"
        ).fetchone()
        if (seen[0] - now[0]) % TRANSACTION_NUMBERS < TRANSACTION_NUMBERS // 2:
            return
        if time.monotonic() > end:
            raise StoreError(
                "the tables were not rewritten: another session of the server still sees deleted data (a long "
                "transaction, a prepared one or a replication slot). End it and vacuum again."
            )
        time.sleep(0.05)

"""The history of an embedded datastore: what changed, when and by whom, the state before it, and how to undo it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import numpy as np

from denn.errors import ConflictError
from denn.stores.rules import NAMED, check_undoable, check_untouched, in_utc, undone_after
from denn.types import Change


def micros(time: datetime) -> int:
    """Return microseconds since 1970; a time without a zone is local."""
    return round(in_utc(time).timestamp() * 1e6)


def moment(micros: int) -> datetime:
    """Return the time from microseconds since 1970."""
    return datetime.fromtimestamp(micros / 1e6, UTC)


def keep(writer: sqlite3.Connection, number: int, rows: Iterable[int]) -> None:
    """Keep stored documents in their state before change `number`."""
    writer.executemany(
        "INSERT INTO past(number, row, id, labels, embedding, text) "
        "SELECT ?, row, id, labels, embedding, text FROM documents WHERE row = ?",
        ((number, row) for row in rows),
    )


def keep_absent(writer: sqlite3.Connection, number: int, placed: Iterable[tuple[int, str]]) -> None:
    """Record the rows and ids of documents that do not exist before change `number` adds them."""
    writer.executemany("INSERT INTO past(number, row, id) VALUES (?, ?, ?)", ((number, row, id) for row, id in placed))


def take_out(writer: sqlite3.Connection, number: int, rows: Sequence[int]) -> None:
    """Remove documents in change `number`, and record that for readers."""
    writer.executemany("DELETE FROM documents WHERE row = ?", ((row,) for row in rows))
    writer.executemany("INSERT OR REPLACE INTO removed(row, changed) VALUES (?, ?)", ((row, number) for row in rows))


def record(
    writer: sqlite3.Connection, number: int, action: str, source: str, documents: int, undoes: int | None
) -> None:
    """Record a change in the history."""
    now, undoable = micros(datetime.now(UTC)), action != "forget"
    writer.execute(
        "INSERT INTO changes(number, time, action, source, documents, undoes, undoable) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (number, now, action, source, documents, undoes, undoable),
    )


def changes(reader: sqlite3.Connection, limit: int | None, id: str | None) -> list[Change]:
    """List changes, newest first."""
    touching = "" if id is None else "WHERE number IN (SELECT number FROM past WHERE id = :id)"
    some = "SELECT id FROM past WHERE past.number = changes.number ORDER BY row LIMIT :named"
    rows = reader.execute(
        f"SELECT number, time, action, source, documents, undoes, undone, undoable, "
        f"(SELECT json_group_array(id) FROM ({some})) FROM changes {touching} ORDER BY number DESC LIMIT :limit",
        {"id": id, "limit": -1 if limit is None else limit, "named": NAMED},
    )
    return [
        Change(
            number, moment(time), action, source, count, undoes, bool(undone), bool(undoable), tuple(json.loads(ids))
        )
        for number, time, action, source, count, undoes, undone, undoable, ids in rows
    ]


def undo(writer: sqlite3.Connection, number: int, new: int) -> int:
    """Restore what change `number` touched, as change `new`; return the number of documents."""
    _check_undoable(writer, number)
    before = writer.execute("SELECT row, id, labels, embedding, text FROM past WHERE number = ?", (number,)).fetchall()
    if not before:  # all of them were forgotten: nothing is undone or recorded
        return 0
    touched = "SELECT id, row FROM documents WHERE id IN (SELECT id FROM past WHERE number = ?)"
    there = dict(writer.execute(touched, (number,)))
    keep(writer, new, there.values())
    keep_absent(writer, new, ((row, id) for row, id, *_ in before if id not in there))
    take_out(writer, new, [there[id] for _, id, labels, *_ in before if labels is None and id in there])
    writer.executemany(
        "INSERT OR REPLACE INTO documents(changed, row, id, labels, embedding, text) VALUES (?, ?, ?, ?, ?, ?)",
        ((new, *state) for state in before if state[2] is not None),
    )
    state = undone_after(number, lambda one: _undoes(writer, one))
    writer.executemany("UPDATE changes SET undone = ? WHERE number = ?", ((undone, n) for n, undone in state.items()))
    return len(before)


def _undoes(reader: sqlite3.Connection, number: int) -> int | None:
    found = reader.execute("SELECT undoes FROM changes WHERE number = ?", (number,)).fetchone()
    return None if found is None else found[0]


def _check_undoable(writer: sqlite3.Connection, number: int) -> None:
    found = writer.execute("SELECT action, undone, undoable FROM changes WHERE number = ?", (number,)).fetchone()
    check_undoable(number, found)
    later = writer.execute(
        """SELECT id, after.number FROM past JOIN past AS after USING (id) JOIN changes ON changes.number = after.number
           WHERE past.number = :n AND after.number > :n AND NOT undone AND (undoes IS NULL OR undoes < :n)
           ORDER BY after.number DESC LIMIT 1""",
        {"n": number},
    ).fetchone()
    check_untouched(number, later)


def forget(writer: sqlite3.Connection, ids: Sequence[str], number: int) -> None:
    """Delete stored and past documents, except for their ids."""
    rows = [row for id in ids for (row,) in writer.execute("SELECT row FROM documents WHERE id = ?", (id,))]
    take_out(writer, number, rows)
    writer.executemany("DELETE FROM past WHERE id = ?", ((id,) for id in ids))
    now = micros(datetime.now(UTC))
    writer.executemany("INSERT INTO forgotten(id, time) VALUES (?, ?)", ((id, now) for id in ids))


def is_past(reader: sqlite3.Connection, id: str) -> bool:
    """Return whether the history contains a document with this id."""
    return reader.execute("SELECT 1 FROM past WHERE id = ? LIMIT 1", (id,)).fetchone() is not None


def is_forgotten(reader: sqlite3.Connection, id: str) -> bool:
    """Return whether a document with this id was forgotten."""
    return reader.execute("SELECT 1 FROM forgotten WHERE id = ?", (id,)).fetchone() is not None


def check_not_forgotten(writer: sqlite3.Connection, ids: Iterable[str]) -> None:
    """Reject ids that were forgotten."""
    for id in ids:
        if (found := writer.execute("SELECT time FROM forgotten WHERE id = ?", (id,)).fetchone()) is not None:
            day = moment(found[0]).date()
            raise ConflictError(
                f"the document {id!r} was forgotten on {day}; its id cannot be used again. Use another id."
            )


def prune(writer: sqlite3.Connection, until: datetime) -> None:
    """Delete the data for undoing the changes before a time; the changes stay listed."""
    old = "SELECT number FROM changes WHERE time < ?"
    writer.execute(f"DELETE FROM past WHERE number IN ({old})", (micros(until),))
    writer.execute("UPDATE changes SET undoable = 0 WHERE time < ?", (micros(until),))


def drop_unused_labels(writer: sqlite3.Connection, given: int) -> None:
    """Delete labels after the first `given` that no document has, had or rejected, and close the gaps."""
    used = set(range(given))
    for table in ("documents", "past"):
        for (blob,) in writer.execute(f"SELECT labels FROM {table} WHERE labels IS NOT NULL"):
            used.update(max(column, ~column) for column in np.frombuffer(blob, "<i4").tolist())
    columns = [column for (column,) in writer.execute("SELECT column FROM labels ORDER BY column")]
    kept = [column for column in columns if column in used]
    if kept == columns:
        return
    new = np.full(len(columns), -1, "<i4")
    new[kept] = np.arange(len(kept))
    new = np.concatenate([new, ~new[::-1]]).astype("<i4")  # ~column counts from the end
    writer.create_function("renumbered", 1, lambda blob: new[np.frombuffer(blob, "<i4")].tobytes(), deterministic=True)
    for table in ("documents", "past"):
        writer.execute(f"UPDATE {table} SET labels = renumbered(labels) WHERE labels IS NOT NULL")
    names = dict(writer.execute("SELECT column, name FROM labels"))
    writer.execute("DELETE FROM labels")
    writer.executemany("INSERT INTO labels(column, name) VALUES (?, ?)", enumerate(names[column] for column in kept))

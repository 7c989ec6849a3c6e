"""Check the tables of a datastore in PostgreSQL: counts, documents, vectors, labels, history and index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from denn.stores.checking import HISTORY, RESTORE, Findings
from denn.stores.postgres.link import Address, Connection, connected
from denn.stores.postgres.schema import MIGRATIONS, check_tables

REMEDY = RESTORE.replace("`denn store restore`", "with pg_restore")
REINDEX = "Searches may miss documents. As the owner, run: REINDEX INDEX vectors_near"

Rules = Mapping[tuple[str, str], str]  # (what is wrong, noun) → query for what is wrong, which should find nothing

DOCUMENT_RULES: Rules = {
    ("without a vector", "document"): (
        "SELECT id AS x FROM documents d WHERE NOT EXISTS(SELECT FROM vectors v WHERE v.row = d.row)"
    ),
    ("of no document", "vector"): (
        "SELECT row::text::bytea AS x FROM vectors v WHERE NOT EXISTS(SELECT FROM documents d WHERE d.row = v.row)"
    ),
    ("with an embedding that does not have length 1", "document"): (
        "SELECT id AS x FROM documents JOIN vectors USING (row) "
        "WHERE NOT (abs(vector_norm(embedding) ^ 2 - 1) < 0.001 OR vector_norm(embedding) = 0)"
    ),
    ("with a label that does not exist", "document"): (
        "SELECT DISTINCT id AS x FROM document_labels l LEFT JOIN documents USING (row) "
        "WHERE id IS NULL OR NOT EXISTS(SELECT FROM labels WHERE number = greatest(l.label, ~l.label))"
    ),
    ("with a label that occurs twice or is also rejected", "document"): (
        "SELECT DISTINCT id AS x FROM document_labels JOIN documents USING (row) "
        "GROUP BY id, row, greatest(label, ~label) HAVING count(*) > 1"
    ),
    ("stored although forgotten", "document"): (
        "SELECT d.id AS x FROM documents d JOIN forgotten f ON sha256(f.id) = sha256(d.id)"
    ),
    ("changed after the last change of the datastore", "document"): (
        "SELECT id AS x FROM documents WHERE changed > (SELECT version FROM meta)"
    ),
    ("last changed by a change that is not in the history", "document"): (
        "SELECT id AS x FROM documents d WHERE NOT EXISTS(SELECT FROM changes WHERE number = d.changed)"
    ),
    ("numbered higher than the last row of the datastore", "document"): (
        "SELECT id AS x FROM documents WHERE row > (SELECT last_row FROM meta)"
    ),
}
HISTORY_RULES: Rules = {
    ("numbered higher than the last change of the datastore", "change"): (
        "SELECT number::text::bytea AS x FROM changes WHERE number > (SELECT version FROM meta)"
    ),
    ("undoing a change that is missing or later", "change"): (
        "SELECT number::text::bytea AS x FROM changes c WHERE undoes IS NOT NULL "
        "AND (undoes >= number OR NOT EXISTS(SELECT FROM changes WHERE number = c.undoes))"
    ),
    ("keeping more documents than they touched", "change"): (
        "SELECT number::text::bytea AS x FROM changes c "
        "WHERE documents < (SELECT count(*) FROM past WHERE number = c.number)"
    ),
    ("kept for a change that is not in the history", "previous version"): (
        "SELECT id AS x FROM past p WHERE NOT EXISTS(SELECT FROM changes WHERE number = p.number)"
    ),
}


def check(address: str) -> Findings:
    """Check a store in the state of one moment, while others use it."""
    where, found = Address.parse(address), Findings()
    with connected(where) as connection:
        dimension = check_tables(connection, where)
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            documents, version, labels, changes = _row(
                connection,
                "SELECT documents, version, (SELECT count(*) FROM labels), (SELECT count(*) FROM changes) FROM meta",
            )
            found.facts |= {"format": len(MIGRATIONS), "dimension": dimension, "labels": labels, "change": version}
            found.facts |= {"documents": documents, "changes": changes}
            (stored,) = _row(connection, "SELECT count(*) FROM documents")
            if stored != documents:
                found.problem(f"the datastore counts {documents:,} documents but stores {stored:,}", REMEDY)
            for rules, remedy in ((DOCUMENT_RULES, REMEDY), (HISTORY_RULES, HISTORY)):
                for (what, noun), query in rules.items():
                    count, first = _row(connection, f"SELECT count(*), min(encode(x, 'hex')) FROM ({query}) AS found")
                    found.some(what, noun, count, None if first is None else _decoded(first), remedy)
            valid = _row(connection, "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('vectors_near')")
            found.facts["index"] = "none" if valid is None else "current" if valid[0] else "invalid"
            if found.facts["index"] == "invalid":
                found.problem("the index for nearest neighbours is invalid", REINDEX)
    return found


def _row(connection: Connection, query: str) -> Any:
    return connection.execute(query).fetchone()


def _decoded(value: str) -> str:
    """Return the text whose bytes are given in hexadecimal."""
    return bytes.fromhex(value).decode(errors="replace")

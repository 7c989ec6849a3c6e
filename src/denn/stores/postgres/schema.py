"""The tables of a datastore in PostgreSQL: numbered migrations, grants, and their index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from denn.errors import StoreError
from denn.stores.postgres.link import Address, Connection, errors, prepare, sql, wait_at_most
from denn.stores.rules import check_labels

WIDEST = 16_000  # maximum dimension of pgvector's type
WIDEST_INDEXED = 4_000  # maximum dimension of its HNSW index over half-precision vectors
WIDEST_IN_PAGE = 1_900  # wider rows do not fit in a page of 8 kB
INDEX_FROM = 5_000  # documents; scanning fewer is as fast as the index

# Ids, names and texts are UTF-8 in bytea, because PostgreSQL's text cannot contain NUL. They are found by digest,
# because an index entry has at most 2.7 kB. Nothing of a forgotten document may remain, so columns with content keep no
# statistics, which are samples of it. Vectors have their own table, so that relabelling does not touch their index.
# There are no foreign keys, because all writes happen under the lock on the one row of meta.
TABLES = """
CREATE TABLE meta(
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  dimension integer NOT NULL,
  version bigint NOT NULL DEFAULT 0,        -- the number of the last change
  epoch bigint NOT NULL DEFAULT 0,          -- counts what other processes must read again: labels gone, an index made
  documents bigint NOT NULL DEFAULT 0,
  last_row bigint NOT NULL DEFAULT 0,       -- a row number is never used again
  swept boolean NOT NULL DEFAULT true       -- no vector was removed since their table was last rewritten
);
CREATE TABLE labels(
  number integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- columns are the labels in this order
  name bytea NOT NULL,
  given boolean NOT NULL                    -- at the creation of the store
);
CREATE TABLE documents(row bigint PRIMARY KEY, id bytea NOT NULL, changed bigint NOT NULL, text bytea NOT NULL);
CREATE TABLE vectors(row bigint PRIMARY KEY, embedding vector({dimension}) NOT NULL);
CREATE TABLE document_labels(
  row bigint NOT NULL, place integer NOT NULL, label integer NOT NULL, PRIMARY KEY (row, place)
);
CREATE TABLE changes(
  number bigint PRIMARY KEY,
  time timestamptz NOT NULL DEFAULT clock_timestamp(),
  action text NOT NULL,
  source bytea NOT NULL,
  documents bigint NOT NULL,
  undoes bigint,                            -- the change that this one undid
  undone boolean NOT NULL DEFAULT false,
  undoable boolean NOT NULL,
  token uuid NOT NULL                       -- lets a writer that lost its connection recognise its change
);
CREATE TABLE past(                          -- each document that a change touched, in its state before
  number bigint NOT NULL,
  row bigint NOT NULL,
  id bytea NOT NULL,
  labels integer[],                         -- null if there was no such document
  text bytea,                               -- null, like the embedding, if only labels were changed
  embedding vector({dimension}),
  PRIMARY KEY (number, row)
);
CREATE TABLE forgotten(id bytea NOT NULL, time timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE UNIQUE INDEX labels_name ON labels(sha256(name));
CREATE UNIQUE INDEX documents_id ON documents(sha256(id));
CREATE INDEX documents_changed ON documents(changed);
CREATE INDEX document_labels_label ON document_labels(label, row);
CREATE INDEX past_id ON past(sha256(id));
CREATE UNIQUE INDEX forgotten_id ON forgotten(sha256(id));
ALTER TABLE labels ALTER name SET STATISTICS 0;
ALTER TABLE documents ALTER id SET STATISTICS 0, ALTER text SET STATISTICS 0;
ALTER TABLE vectors ALTER embedding SET STATISTICS 0, ALTER embedding SET STORAGE {storage};
ALTER TABLE past ALTER id SET STATISTICS 0, ALTER text SET STATISTICS 0, ALTER embedding SET STATISTICS 0;
INSERT INTO meta(dimension) VALUES ({dimension});
"""

REJECTIONS = """
COMMENT ON COLUMN document_labels.label IS 'the number of a label, or its complement (~) where the label is rejected';
COMMENT ON COLUMN past.labels IS 'as in document_labels';
"""

MIGRATIONS = (TABLES, REJECTIONS)  # step n brings a store from n - 1 to n; steps are added at the end and never changed


def create_tables(connection: Connection, address: Address, dimension: int, labels: Sequence[str]) -> None:
    """Create the extension, schema and an empty store in one transaction; raise if the schema has content."""
    check_labels(labels)
    names = [name.encode() for name in dict.fromkeys(labels)]
    schema = sql.Identifier(address.schema)
    holds = "SELECT oid, EXISTS(SELECT FROM pg_class WHERE relnamespace = n.oid) FROM pg_namespace n WHERE nspname = %s"
    with connection.transaction():
        _make_extension(connection, address)
        found = connection.execute(holds, (address.schema,)).fetchone()
        if found is None:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        elif found[1]:
            raise StoreError(f"{address.text} already contains tables. Open it, or choose another schema.")
        prepare(connection, address.schema, read_only=False)
        connection.execute("CREATE TABLE migrations(number integer PRIMARY KEY, time timestamptz DEFAULT now())")
        _apply(connection, 0, dimension)
        connection.execute("INSERT INTO labels(name, given) SELECT unnest(%s::bytea[]), true", (names,))


def check_tables(connection: Connection, address: Address) -> int:
    """Check that the schema contains a store of this version, and return the dimension of its embeddings."""
    _enter(connection, address)
    done = _number(connection, "SELECT max(number) FROM migrations")
    if done < len(MIGRATIONS):
        raise StoreError(
            f"the datastore {address.text} is from an older version of denn (migration {done} of {len(MIGRATIONS)}). "
            "Run `denn store migrate ADDRESS` (PostgresStore.migrate) once, as the role that owns it."
        )
    if done > len(MIGRATIONS):
        raise StoreError(
            f"the datastore {address.text} is from a newer version of denn (migration {done}, this version has "
            f"{len(MIGRATIONS)}). Update denn."
        )
    return _number(connection, "SELECT dimension FROM meta")


def migrate_tables(connection: Connection, address: Address) -> int:
    """Apply missing migrations, all or none, and return how many there were."""
    _enter(connection, address)
    with connection.transaction():
        connection.execute("LOCK TABLE migrations, meta IN ACCESS EXCLUSIVE MODE")
        done = _number(connection, "SELECT max(number) FROM migrations")
        _apply(connection, done, _number(connection, "SELECT dimension FROM meta"))
    return max(0, len(MIGRATIONS) - done)


def grants(schema: str, writer: str, reader: str) -> str:
    """Return the statements with which the owner lets one role add, change and forget, and another one only search."""
    quoted = {name: '"' + value.replace('"', '""') + '"' for name, value in locals().items()}
    return """
GRANT USAGE ON SCHEMA {schema} TO {writer}, {reader};
GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {writer}, {reader};
GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {writer};
REVOKE INSERT, UPDATE, DELETE ON {schema}.migrations FROM {writer};
ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT ON TABLES TO {writer}, {reader};
ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT INSERT, UPDATE, DELETE ON TABLES TO {writer};
""".format(**quoted).strip()


def is_owner(connection: Connection) -> bool:
    """Return whether this session may create indexes and rewrite tables."""
    owned = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass('vectors')"
    return bool(_number(connection, owned))


def build_index(connection: Connection, patience: float) -> None:
    """Create the index for nearest neighbours; searches continue meanwhile, changes wait."""
    wait_at_most(connection, patience)
    dimension = _number(connection, "UPDATE meta SET epoch = epoch + 1 RETURNING dimension")
    # For unit vectors the inner product is the cosine, and unlike that it is defined for the zero vector.
    connection.execute(
        f"CREATE INDEX IF NOT EXISTS vectors_near ON vectors "
        f"USING hnsw ((embedding::halfvec({dimension})) halfvec_ip_ops)"
    )
    connection.execute("ALTER INDEX vectors_near ALTER COLUMN 1 SET STATISTICS 0")


def _make_extension(connection: Connection, address: Address) -> None:
    """Create the pgvector extension if it is missing and this role may; raise if it is too old."""
    known = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
    try:
        if connection.execute(known).fetchone() is None:
            with connection.transaction():
                connection.execute("CREATE EXTENSION vector")
    except errors.InsufficientPrivilege:
        raise StoreError(
            f"the database of {address.text} lacks the extension vector, which this role may not create. "
            "An administrator must run there: CREATE EXTENSION vector"
        ) from None
    except (errors.FeatureNotSupported, errors.UndefinedFile):
        raise StoreError(f"the server of {address.text} lacks pgvector. Install version 0.8 or newer there.") from None
    (version,) = connection.execute(known).fetchone() or ("",)
    if tuple(int(part) for part in version.split(".")[:2]) < (0, 8):
        raise StoreError(
            f"the server of {address.text} has pgvector {version}, expected 0.8 or newer. "
            "An administrator must install it and run there: ALTER EXTENSION vector UPDATE"
        )


def _enter(connection: Connection, address: Address) -> None:
    """Set the schema of a store on a connection."""
    there = "SELECT to_regclass(quote_ident(%s) || '.migrations') IS NOT NULL"
    if not _number(connection, there, (address.schema,)):
        raise StoreError(f"there is no datastore at {address.text}. Check the address, or create one there first.")
    prepare(connection, address.schema, read_only=False)


def _apply(connection: Connection, done: int, dimension: int) -> None:
    storage = "PLAIN" if dimension <= WIDEST_IN_PAGE else "EXTERNAL"
    for number, step in enumerate(MIGRATIONS[done:], done + 1):
        connection.execute(step.format(dimension=dimension, storage=storage))
        connection.execute("INSERT INTO migrations(number) VALUES (%s)", (number,))


def _number(connection: Connection, statement: str, values: tuple[Any, ...] = ()) -> int:
    row = connection.execute(statement, values).fetchone()
    return int(row[0]) if row else 0

"""Connections to one schema of a PostgreSQL server: address, pool, retries, and errors in plain words."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypeVar
from urllib.parse import quote, unquote

from denn.errors import MissingExtraError, StoreError, UnavailableError

try:
    import psycopg
    from pgvector import Vector as Vector
    from pgvector.psycopg import register_vector
    from psycopg import OperationalError as OperationalError
    from psycopg import Rollback as Rollback
    from psycopg import errors as errors
    from psycopg import sql as sql
    from psycopg.conninfo import conninfo_to_dict
    from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout
except ImportError as error:  # this whole store needs them, and is imported only on request
    raise MissingExtraError("The PostgreSQL datastore", "psycopg", "postgres") from error

SCHEMES = ("postgresql://", "postgres://")
FORM = "postgresql://host/database?schema=NAME"
REACH = 10.0  # seconds to wait for a starting server or a free connection

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
Result = TypeVar("Result")

REASONS: tuple[tuple[type[psycopg.Error], str], ...] = (
    (PoolClosed, "it is closed. Open it again"),
    (PoolTimeout, "its server did not answer. Check the address, and that the server is running"),
    (errors.LockNotAvailable, "another process is writing to it. Try again when it is done"),
    (errors.InsufficientPrivilege, "this role lacks permission. Ask the owner of the schema for the necessary grants"),
    (errors.ReadOnlySqlTransaction, "its server is read-only. Use the address of the primary server"),
    (errors.DiskFull, "the server's disk is full. Nothing was changed; free some space and try again"),
    (errors.UndefinedTable, "some of its tables are missing. Check the address, or restore the schema from a copy"),
)


@dataclass(frozen=True)
class Address:
    """The location of a store: a server as libpq understands it, and a schema."""

    text: str  # as given; it contains no secret
    server: str
    schema: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an address; the error for one with a password does not repeat it."""
        server, _, query = text.partition("?")
        pairs = [pair for pair in query.split("&") if pair]
        rest = "&".join(pair for pair in pairs if not pair.startswith("schema="))
        server = f"{server}?{rest}" if rest else server
        try:
            if not text.startswith(SCHEMES):
                raise psycopg.ProgrammingError
            parts = conninfo_to_dict(server)
        except psycopg.ProgrammingError:  # its message may repeat a password
            raise StoreError(f"the address is not valid for PostgreSQL, expected {FORM}.") from None
        if any(value for name, value in parts.items() if "password" in name or "secret" in name):
            raise StoreError(
                "the address of a datastore must not contain a password, because it is written into models. "
                "Use PGPASSWORD, PGPASSFILE or a service file (PGSERVICEFILE)."
            )
        if "require_auth" in parts:
            raise StoreError(
                "the address of a datastore cannot specify how passwords are sent. Use PGREQUIREAUTH for that."
            )
        schema = unquote(next((pair for pair in pairs if pair.startswith("schema=")), "schema=denn")[len("schema=") :])
        if not 0 < len(schema.encode()) < 64 or "\0" in schema:
            raise StoreError(f"got the schema {schema!r}, expected a name of 1 to 63 bytes.")
        return cls(text, server, schema)

    def options(self) -> dict[str, Any]:
        """Return the connection parameters that the address leaves open."""
        given = conninfo_to_dict(self.server)
        wanted = {"connect_timeout": int(REACH), "application_name": "denn"}
        if "PGREQUIREAUTH" not in os.environ:
            if psycopg.pq.version() < 160_000:
                raise StoreError(
                    "denn needs libpq 16 to avoid sending passwords in the clear. Install 'psycopg[binary]', or set "
                    "PGREQUIREAUTH."
                )
            wanted["require_auth"] = "!password,!md5"  # SCRAM, a certificate, Kerberos, or no password
        return {"autocommit": True} | {name: value for name, value in wanted.items() if name not in given}

    def place(self, connection: Connection) -> str:
        """Return the actual location of the store, without the user's name."""
        info = connection.info
        host = quote(info.host, safe="") + (f":{info.port}" if not info.host.startswith("/") else "")
        return f"postgresql://{host}/{quote(info.dbname)}?schema={quote(self.schema)}"


SETTINGS = """
SELECT set_config('search_path', concat_ws(', ', quote_ident(%(schema)s), (
         SELECT quote_ident(nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
         WHERE extname = 'vector')), false),
       set_config('default_transaction_read_only', %(read_only)s, false),
       set_config('hnsw.iterative_scan', 'relaxed_order', false),
       set_config('random_page_cost', '1.1', false), -- otherwise the planner prefers a slower scan
       set_config('jit', 'off', false)               -- compiling a search takes longer than running it
"""


def prepare(connection: Connection, schema: str, read_only: bool) -> None:
    """Set up a new connection for the schema and for vectors."""
    values = {"schema": schema, "read_only": "on" if read_only else "off"}
    path = connection.execute(SETTINGS, values).fetchone()
    if path and ", " in path[0].removeprefix(sql.Identifier(schema).as_string()):  # the extension is there
        register_vector(connection)


def wait_at_most(connection: Connection, patience: float, local: bool = True) -> None:
    """Let the transaction, or the session, wait this many seconds for the locks of others."""
    milliseconds = max(1, round(1000 * patience))  # 0 would mean forever
    connection.execute("SELECT set_config('lock_timeout', %s, %s)", (f"{milliseconds}ms", local))


def lost(error: psycopg.Error) -> bool:
    """Return whether an error means that the connection is lost, with any work in progress."""
    if not isinstance(error, OperationalError) or isinstance(error, PoolClosed | PoolTimeout):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))


class Link:
    """A small pool of connections that survives restarts of the server."""

    def __init__(self, address: Address, read_only: bool) -> None:
        self.address = address
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            address.server,
            kwargs=address.options(),
            configure=lambda connection: prepare(connection, address.schema, read_only),
            min_size=1,
            max_size=8,
            timeout=REACH,
            reconnect_timeout=REACH,  # afterwards the next call retries at once, without the growing backoff
            open=True,
        )

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Lend a connection."""
        with self._pool.connection() as connection:
            yield connection

    def repair(self) -> None:
        """Replace lost connections."""
        self._pool.check()

    def run(self, work: Callable[[Connection], Result]) -> Result:
        """Run work that only reads or can be repeated; run it again if the connection was lost."""
        with explained(self.address):
            try:
                with self._pool.connection() as connection:
                    return work(connection)
            except OperationalError as error:
                if not lost(error):
                    raise
            self.repair()
            with self._pool.connection() as connection:
                return work(connection)


@contextmanager
def connected(address: Address) -> Iterator[Connection]:
    """Open one connection outside any pool, with an error that gives the reason if it fails."""
    with explained(address), psycopg.connect(address.server, **address.options()) as connection:
        yield connection


@contextmanager
def explained(address: Address) -> Iterator[None]:
    """Turn errors of the server or the driver into sentences for the user."""
    try:
        yield
    except psycopg.Error as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        reason = next((reason for kind, reason in REASONS if isinstance(error, kind)), first)
        raise UnavailableError(f"cannot use the datastore {address.text}: {reason}.") from error
    except UnicodeEncodeError as error:
        raise StoreError(
            f"got a text, id or label that is not valid Unicode ({error.reason}). Fix it first."
        ) from error

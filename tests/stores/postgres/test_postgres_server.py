"""The shared datastore and its server: addresses, connections, processes, roles, migrations."""

import os
import subprocess
import sys
import uuid
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import psycopg
import pytest
import torch
from postgres_data import quoted, sql, vectors
from postgres_server import server

from denn.errors import StoreError
from denn.stores.postgres import schema as schema_module
from denn.stores.postgres.changes import Writing
from denn.stores.postgres.schema import MIGRATIONS, grants
from denn.stores.postgres.store import PostgresStore
from denn.types import Document

pytestmark = pytest.mark.slow  # starts its own server

# ---- addresses, creation, opening


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:s3cret@host/db?schema=x",
        "postgres://me@host/db?schema=x&password=s3cret",
        "postgresql://host/db?sslpassword=s3cret",
    ],
)
def test_a_password_in_the_address_is_refused_and_not_repeated(address):
    for call in (PostgresStore.open, lambda a: PostgresStore.create(a, 3), PostgresStore.migrate):
        with pytest.raises(StoreError, match=r"must not contain a password.*PGPASSWORD") as refused:
            call(address)
        assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "address", ["sqlite:///x", "host=x dbname=y", "postgresql://me:s3cret@host/%zz", "postgresql://h/d?unheard=1"]
)
def test_an_address_that_cannot_be_read(address):
    with pytest.raises(StoreError, match=r"expected postgresql://host/database\?schema=NAME") as refused:
        PostgresStore.open(address)
    assert "s3cret" not in str(refused.value)


def test_schema_names():
    with pytest.raises(StoreError, match="1 to 63 bytes"):
        PostgresStore.open(f"postgresql://host/db?schema={'x' * 64}")
    schema = f'odd "name"; DROP TABLE x -- {uuid.uuid4().hex}'
    with PostgresStore.create(server().address(schema), 3) as store:
        store.add([Document("a", ("l",), "a")], torch.ones(1, 3))
        assert store.get(["a"]) == [Document("a", ("l",), "a")]
    assert sql("SELECT count(*) FROM pg_namespace WHERE nspname = %s", schema) == [(1,)]


def test_the_default_schema_and_a_service_file(tmp_path, monkeypatch):
    host, port = psycopg.conninfo.conninfo_to_dict(server().base)["host"], "5432"
    service = tmp_path / "services.conf"
    service.write_text(f"[shared]\nhost={host}\nport={port}\nuser=postgres\ndbname=postgres\n")
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    try:
        with PostgresStore.create("postgresql://?service=shared", 3) as store:
            assert str(store.info()["address"]).endswith("/postgres?schema=denn")
            with PostgresStore.open("postgres://?service=shared&schema=denn") as again:
                assert len(again) == len(store) == 0
    finally:
        sql("DROP SCHEMA IF EXISTS denn CASCADE")


def test_create_where_something_is(store, address):
    with pytest.raises(StoreError, match="already"):
        PostgresStore.create(address, 3)
    assert len(store) == 3
    other = f"other {uuid.uuid4()}"
    sql(f'CREATE SCHEMA "{other}" CREATE TABLE notes(text text)')
    with pytest.raises(StoreError, match="already"):
        PostgresStore.create(server().address(other), 3)
    with pytest.raises(StoreError, match="no datastore at"):
        PostgresStore.open(server().address(other))


@pytest.mark.parametrize("dimension", [0, 16_001])
def test_dimension_out_of_bounds(address, dimension):
    with pytest.raises(StoreError, match=f"dimension {dimension}"):
        PostgresStore.create(address, dimension)


def test_open_what_is_not_there(address):
    with pytest.raises(StoreError, match="there is no datastore at"):
        PostgresStore.open(address)
    with pytest.raises(StoreError, match="unheard"):
        PostgresStore.open(address.replace("/postgres?", "/unheard?"))
    with pytest.raises(StoreError, match="cannot use the datastore"):
        PostgresStore.open("postgresql://%2Fnowhere/db")


def test_info(store):
    store.add([Document("long " * 4000, id="d")], torch.ones(1, 3))
    info = store.info()
    size = sql("SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relnamespace = "
               "to_regnamespace(%s)", quoted(store))  # fmt: skip
    assert info["kind"] == "postgres" and info["search"] == "exact"
    assert (info["documents"], info["labels"], info["dimension"]) == (4, 4, 3)
    assert info["bytes"] == size[0][0] > 100_000
    assert "postgres@" not in str(info["address"])
    with PostgresStore.open(str(info["address"]).replace("//", "//postgres@")) as again:
        assert len(again) == 4


def test_read_only(store, address):
    with PostgresStore.open(address, read_only=True) as reader:
        for call in (
            lambda: reader.add([Document("d")], torch.ones(1, 3)),
            lambda: reader.remove(["a"]),
            lambda: reader.relabel("a", []),
            lambda: reader.forget("a"),
            lambda: reader.undo(1),
            lambda: reader.vacuum(),
        ):
            with pytest.raises(StoreError, match="read-only"):
                call()
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), reader._link.connection() as connection:
            connection.execute("DELETE FROM documents")
        store.remove(["a"])
        assert reader.ids() == ["b", "c"]


def test_closed_store_says_so(store):
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.search(torch.ones(1, 3), 1)
    store.close()


def test_ids_and_labels_too_long_for_an_index(store):
    chance = np.random.default_rng(0)
    long = ["".join(map(chr, chance.integers(0, 50_000, 9_000))) for _ in range(2)]  # cannot be compressed to 2.7 kB
    store.add([Document(text, (text,), text) for text in long], torch.eye(3)[:2])
    assert store.get(long[::-1]) == [Document(text, (text,), text) for text in long[::-1]]
    assert store.labels[-2:] == tuple(long) and store.remove(long[0]) == 1


def test_a_database_of_another_encoding(address):
    name = f"latin {uuid.uuid4()}"
    sql(f"""CREATE DATABASE "{name}" ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0""")
    with PostgresStore.create(address.replace("/postgres?", f"/{name.replace(' ', '%20')}?"), 3) as store:
        store.add([Document("日本語", ("né\0e",), "👩‍🔬")], torch.ones(1, 3))
        assert store.get(["👩‍🔬"]) == [Document("日本語", ("né\0e",), "👩‍🔬")]


# ---- writers, readers, threads, processes


def test_second_writer_is_told_to_wait(store, address):
    with PostgresStore.open(address, patience=0.05) as second, server().connect() as first:
        with first.transaction():
            first.execute(f"UPDATE {quoted(store)}.meta SET version = version")
            with pytest.raises(StoreError, match="another process is writing"):
                second.add([Document("d")], torch.ones(1, 3))
            assert len(second) == 3 and second.search(torch.ones(1, 3), 3).k == 3  # reading continues
        second.add([Document("d", id="d")], torch.ones(1, 3))
    assert store.ids() == ["a", "b", "c", "d"]


def work_in_a_process(address, number, turns):
    """Add documents and new labels, and check after each add that a search finds them; return the last id."""
    with PostgresStore.open(address, patience=60) as store:
        for turn in range(int(turns)):
            text = f"{number}.{turn}"
            (id,) = store.add([Document(text, (f"worker {number}", text))], vectors(1, 8, turn))
            assert id in store.search(torch.ones(1, 8), 10**6).ids[0]
        sys.stdout.write(id)


@pytest.mark.slow
def test_processes_add_and_search_at_once_and_agree(address):
    workers, turns = 3, 15
    with PostgresStore.create(address, 8) as store:
        command = [sys.executable, __file__, address]
        paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        room = os.environ | {"PYTHONPATH": paths}
        running = [
            subprocess.Popen([*command, str(number), str(turns)], stdout=subprocess.PIPE, env=room)
            for number in range(workers)
        ]
        last = [process.communicate(timeout=120)[0].decode() for process in running]
        assert [process.returncode for process in running] == [0] * workers
        counts = store.label_counts()
        assert len(store) == workers * turns == len(set(store.ids()))
        assert [counts[f"worker {number}"] for number in range(workers)] == [turns] * workers
        assert all(counts[f"{number}.{turn}"] == 1 for number in range(workers) for turn in range(turns))
        assert [change.number for change in store.history()] == list(range(workers * turns, 0, -1))
        assert [document.text for document in store.get(last)] == [f"{number}.{turns - 1}" for number in range(workers)]
        with PostgresStore.open(address) as other:
            one, two = store.search(torch.eye(8), 20), other.search(torch.eye(8), 20)
            assert one.ids == two.ids and torch.equal(one.label_columns, two.label_columns)
            assert store.labels == other.labels


def test_export_is_of_one_moment_and_gives_its_connection_back(store):
    store.add([Document("d", id="d")], torch.ones(1, 3))
    for _ in range(10):  # more than there are connections
        parts = store.export(3)
        assert [document.id for document in next(parts)[0]] == ["a", "b", "c"]
        parts.close()
    parts = store.export(3)
    first, _ = next(parts)
    store.remove(["d", "a"])
    assert [document.id for documents in (first, next(parts)[0]) for document in documents] == ["a", "b", "c", "d"]
    with pytest.raises(StoreError, match="at least 1"):
        next(store.export(0))


# ---- a connection that breaks


@contextmanager
def cut_once(monkeypatch, method, after):
    """Cut the connection of the next change once, before or after a step of it."""
    original, cuts = getattr(Writing, method), []

    def cut(self, *args, **kwargs):
        result = original(self, *args, **kwargs) if after else None
        if not cuts:
            cuts.append(self.connection.info.backend_pid)
            sql("SELECT pg_terminate_backend(%s, 5000)", cuts[0])
        return result if after else original(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Writing, method, cut)
        yield cuts


@pytest.mark.parametrize(("method", "after"), [("place", False), ("put", True), ("finish", True)])
def test_a_change_is_made_once_though_its_connection_is_cut(store, monkeypatch, method, after):
    with cut_once(monkeypatch, method, after) as cuts:
        (id,) = store.add([Document("late", ("new",))], torch.ones(1, 3))
    assert cuts and store.ids() == ["a", "b", "c", id] and len(store.history()) == 2
    assert store.labels == ("x", "a", "b", "c", "new")


def test_a_change_that_was_stored_is_not_made_again_where_its_answer_is_lost(store, monkeypatch):
    original, cuts = psycopg.Transaction.__exit__, []

    def lose_the_answer(self, *args):
        result = original(self, *args)
        if not cuts:
            cuts.append(self)
            self.connection.close()
            raise psycopg.OperationalError("the connection is lost")
        return result

    monkeypatch.setattr(psycopg.Transaction, "__exit__", lose_the_answer)
    (id,) = store.add([Document("late", ("new",))], torch.ones(1, 3))
    assert cuts and store.ids() == ["a", "b", "c", id] and len(store.history()) == 2
    assert store.last_change == store.history(1)[0].number
    assert store.search(torch.ones(1, 3), 1).ids == ((id,),) and store.labels[-1] == "new"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_store_outlives_a_restart_of_its_server(address, end, monkeypatch):
    monkeypatch.setattr("denn.stores.postgres.link.REACH", 2.0)
    with PostgresStore.create(address, 3) as store:
        store.add([Document("a", id="a")], torch.ones(1, 3))
        getattr(server(), end)()
        with pytest.raises(StoreError, match="did not answer"):
            store.ids()
        server().start()
        assert store.ids() == ["a"]
        getattr(server(), end)()
        server().start()
        assert store.add([Document("d", id="d")], torch.eye(3)[:1]) == ["d"]
        assert len(store.history()) == 2 and store.search(torch.eye(3)[:1], 1).ids == (("d",),)


# ---- roles and migrations


@pytest.mark.slow
def test_roles(address):
    owner, writer, reader = (f"{role} {uuid.uuid4()}" for role in ("owner", "writer", "reader"))
    schema = f"test {uuid.uuid4()}"
    for role in (owner, writer, reader):
        sql(f'CREATE ROLE "{role}" LOGIN')
    at = {role: server().address(schema, role.replace(" ", "%20")) for role in (owner, writer, reader)}
    with pytest.raises(StoreError, match="lacks permission"):
        PostgresStore.create(at[owner], 3)
    sql(f'GRANT CREATE ON DATABASE postgres TO "{owner}"')
    with PostgresStore.create(at[owner], 3) as store:
        with pytest.raises(StoreError, match="lacks permission"):
            PostgresStore.open(at[reader])
        with psycopg.connect(at[owner].partition("?")[0], autocommit=True) as connection:
            connection.execute(grants(schema, writer, reader))
        with PostgresStore.open(at[writer]) as writing, PostgresStore.open(at[reader], read_only=True) as reading:
            writing.add([Document(id, ("l", id), id) for id in "abc"], torch.eye(3))
            writing.relabel("a", ["z"])
            writing.undo(2)
            writing.remove("b")
            writing.forget("c")
            assert reading.ids() == store.ids() == ["a"] and len(reading.history()) == 5
            assert reading.search(torch.ones(1, 3), 2).ids == (("a",),) and reading.get(["a"])[0].labels == ("l", "a")
            with pytest.raises(StoreError, match="only the owner"):
                writing.vacuum()
        with PostgresStore.open(at[reader]) as reading, pytest.raises(StoreError, match="lacks permission"):
            reading.remove("a")
        store.vacuum(keep=timedelta(0))
        assert store.labels == ("l", "a")


def test_the_page_for_operators_quotes_the_grants():
    page = Path(__file__).parents[3] / "docs" / "postgres.md"
    assert grants("denn", "denn_writer", "denn_reader") in page.read_text()


def test_without_the_extension_an_administrator_is_told_what_to_run(address):
    name, role = f"bare {uuid.uuid4()}", f"owner {uuid.uuid4()}"
    sql(f'CREATE DATABASE "{name}"')
    sql(f'CREATE ROLE "{role}" LOGIN')
    sql(f'GRANT CREATE ON DATABASE "{name}" TO "{role}"')
    there = server().address("s", role.replace(" ", "%20")).replace("/postgres?", f"/{name.replace(' ', '%20')}?")
    with pytest.raises(StoreError, match="must run there: CREATE EXTENSION vector"):
        PostgresStore.create(there, 3)
    with pytest.raises(StoreError, match="there is no datastore"):
        PostgresStore.open(there)


def test_migrations(store, address, monkeypatch):
    step = "ALTER TABLE documents ADD COLUMN extra vector({dimension})"
    with monkeypatch.context() as newer:
        newer.setattr(schema_module, "MIGRATIONS", (*MIGRATIONS, step))
        with pytest.raises(StoreError, match=r"older version of denn \(migration 2 of 3\).*PostgresStore.migrate"):
            PostgresStore.open(address)
        assert PostgresStore.migrate(address) == 1 and PostgresStore.migrate(address) == 0
        with PostgresStore.open(address) as opened:
            assert opened.ids() == ["a", "b", "c"]
    with pytest.raises(StoreError, match=r"newer version of denn.*Update denn"):
        PostgresStore.open(address)
    assert sql(f"SELECT number FROM {quoted(store)}.migrations ORDER BY number") == [(1,), (2,), (3,)]


def test_a_store_of_before_rejections_is_migrated(address, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(schema_module, "MIGRATIONS", MIGRATIONS[:1])
        with PostgresStore.create(address, 3) as store:
            store.add([Document("a", ("x",), "a")], torch.eye(3)[:1])
    with pytest.raises(StoreError, match=r"older version of denn \(migration 1 of 2\)"):
        PostgresStore.open(address)
    assert PostgresStore.migrate(address) == 1
    with PostgresStore.open(address) as store:
        store.relabel("a", reject=["y"])
        assert store.get(["a"]) == [Document("a", ("x",), "a", ("y",))]


def test_a_migration_that_fails_leaves_nothing_behind(store, address, monkeypatch):
    steps = (*MIGRATIONS, "CREATE TABLE half(x int)", "CREATE TABLE documents(x int)")
    monkeypatch.setattr(schema_module, "MIGRATIONS", steps)
    with pytest.raises(StoreError, match="already exists"):
        PostgresStore.migrate(address)
    assert sql(f"SELECT number FROM {quoted(store)}.migrations ORDER BY number") == [(1,), (2,)]
    assert sql("SELECT to_regclass(%s)", f"{quoted(store)}.half") == [(None,)]


if __name__ == "__main__":
    work_in_a_process(*sys.argv[1:])

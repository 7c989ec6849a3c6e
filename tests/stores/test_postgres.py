"""What is particular to the shared datastore: its server, its roles, its index, its processes."""

import subprocess
import sys
import threading
import uuid
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import psycopg
import pytest
import torch
from postgres_server import server

from denn.errors import StoreError
from denn.stores import postgres_schema
from denn.stores.postgres import PostgresStore
from denn.stores.postgres_changes import Writing
from denn.types import Document


@pytest.fixture(name="address")
def free_schema():
    return server().address(f"test {uuid.uuid4()}")


@pytest.fixture(name="store")
def small_store(address):
    with PostgresStore.create(address, 3, ["x"]) as store:
        store.add([Document(f"text {id}", ("x", id), id) for id in "abc"], torch.eye(3))
        yield store


@pytest.fixture(name="small_index")
def index_from_400(monkeypatch):
    monkeypatch.setattr("denn.stores.postgres_search.INDEX_FROM", 400)


def sql(statement, *values):
    with server().connect() as connection:
        cursor = connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []


def quoted(store):
    return f'"{store._where.schema}"'


def vectors(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def clusters(n, d):
    centres = vectors(30, d, 1)
    return centres[torch.arange(n) % 30] + 0.5 * vectors(n, d, 2)


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
        with pytest.raises(StoreError, match=r"holds no password.*PGPASSWORD") as refused:
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
            with pytest.raises(StoreError, match="reading only"):
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
            assert len(second) == 3 and second.search(torch.ones(1, 3), 3).k == 3  # reading goes on
        second.add([Document("d", id="d")], torch.ones(1, 3))
    assert store.ids() == ["a", "b", "c", "d"]


def test_threads_share_one_store(address):
    workers, turns, size = 4, 6, 5
    problems = []

    def work(number):
        try:
            for turn in range(turns):
                ids = store.add([Document(f"{number}", (f"l{number}",)) for _ in range(size)], torch.ones(size, 4))
                store.remove(ids[: turn % 2])
                found = store.search(torch.ones(1, 4), 1000)
                assert set(ids[turn % 2 :]) <= set(found.ids[0])
                assert [document.text for document in store.get(ids[turn % 2 :])] == [f"{number}"] * (size - turn % 2)
        except (AssertionError, StoreError) as problem:
            problems.append(problem)

    with PostgresStore.create(address, 4) as store:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems
        assert store.label_counts() == {f"l{number}": turns * size - turns // 2 for number in range(workers)}


def work_in_a_process(address, number, turns):
    """Add documents and new labels, and check after each add that a search finds them; say which id came last."""
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
        running = [
            subprocess.Popen([*command, str(number), str(turns)], stdout=subprocess.PIPE) for number in range(workers)
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
    with pytest.raises(StoreError, match="at least one"):
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
    assert store.search(torch.ones(1, 3), 1).ids == ((id,),) and store.labels[-1] == "new"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_store_outlives_a_restart_of_its_server(address, end, monkeypatch):
    monkeypatch.setattr("denn.stores.postgres_link.REACH", 2.0)
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
    with pytest.raises(StoreError, match="may not do that"):
        PostgresStore.create(at[owner], 3)
    sql(f'GRANT CREATE ON DATABASE postgres TO "{owner}"')
    with PostgresStore.create(at[owner], 3) as store:
        with pytest.raises(StoreError, match="may not do that"):
            PostgresStore.open(at[reader])
        with psycopg.connect(at[owner].partition("?")[0], autocommit=True) as connection:
            connection.execute(postgres_schema.grants(schema, writer, reader))
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
        with PostgresStore.open(at[reader]) as reading, pytest.raises(StoreError, match="may not do that"):
            reading.remove("a")
        store.vacuum(keep=timedelta(0))
        assert store.labels == ("l", "a")


def test_the_page_for_operators_quotes_the_grants():
    page = Path(__file__).parents[2] / "docs" / "postgres.md"
    assert postgres_schema.grants("denn", "denn_writer", "denn_reader") in page.read_text()


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
        newer.setattr(postgres_schema, "MIGRATIONS", (*postgres_schema.MIGRATIONS, step))
        with pytest.raises(StoreError, match=r"older version of denn \(step 1 of 2\).*PostgresStore.migrate"):
            PostgresStore.open(address)
        assert PostgresStore.migrate(address) == 1 and PostgresStore.migrate(address) == 0
        with PostgresStore.open(address) as opened:
            assert opened.ids() == ["a", "b", "c"]
    with pytest.raises(StoreError, match=r"newer version of denn.*Update denn"):
        PostgresStore.open(address)
    assert sql(f"SELECT number FROM {quoted(store)}.migrations ORDER BY number") == [(1,), (2,)]


def test_a_migration_that_fails_leaves_nothing_behind(store, address, monkeypatch):
    steps = (*postgres_schema.MIGRATIONS, "CREATE TABLE half(x int)", "CREATE TABLE documents(x int)")
    monkeypatch.setattr(postgres_schema, "MIGRATIONS", steps)
    with pytest.raises(StoreError, match="already exists"):
        PostgresStore.migrate(address)
    assert sql(f"SELECT number FROM {quoted(store)}.migrations") == [(1,)]
    assert sql("SELECT to_regclass(%s)", f"{quoted(store)}.half") == [(None,)]


# ---- the index of the nearest neighbours


@contextmanager
def setting(name, value):
    sql(f"ALTER ROLE postgres SET {name} = {value}")
    try:
        yield
    finally:
        sql(f"ALTER ROLE postgres RESET {name}")


@pytest.fixture(name="indexed")
def indexed_store(address, small_index):
    n, d = 2000, 24
    with setting("enable_seqscan", "off"), PostgresStore.create(address, d) as store:  # else it would scan so few
        store.add([Document(str(i), (f"l{i % 7}",), f"id {i}") for i in range(n)], clusters(n, d))
        yield store


@pytest.mark.slow
def test_the_index_finds_what_a_scan_finds(indexed, monkeypatch):
    queries = clusters(40, 24) + 0.2 * vectors(40, 24, 3)
    assert indexed.info()["search"] == "hnsw"
    by_index = indexed.search(queries, 10)
    monkeypatch.setattr("denn.stores.postgres_search.INDEX_FROM", 10**9)
    exact = indexed.search(queries, 10)
    shared = sum(len(set(one) & set(two)) for one, two in zip(by_index.ids, exact.ids, strict=True))
    assert shared >= 0.99 * 400
    assert torch.allclose(by_index.similarity[:, 0], exact.similarity[:, 0], atol=1e-6)  # ranked by full vectors
    assert (by_index.similarity.diff(dim=1) <= 0).all()


@pytest.mark.slow
def test_what_the_index_cannot_give_is_scanned_for(indexed, address):
    ids = indexed.ids()
    query = clusters(1, 24)
    nearest = indexed.search(query, 2000).ids[0]
    assert sorted(nearest) == sorted(ids)  # k is the size of the store
    with setting("hnsw.max_scan_tuples", 100), PostgresStore.open(address) as store:  # the index gives up early
        for left in (0, 3, 40):
            found = store.search(query, 10, exclude=nearest[: 2000 - left])
            assert found.ids == (nearest[2000 - left :][:10],)
    indexed.remove(ids[5:])
    found = indexed.search(query, 10)
    assert sorted(found.ids[0]) == ids[:5] and indexed.info()["search"] == "exact"


@pytest.mark.slow
def test_zero_and_equal_vectors_in_the_index(indexed):
    zeros = indexed.add([Document("zero")] * 60, torch.zeros(60, 24))
    assert indexed.info()["search"] == "hnsw"
    found = indexed.search(torch.zeros(1, 24), 5)
    assert found.similarity.tolist() == [[0] * 5]
    same = indexed.add([Document("same")] * 30, torch.ones(30, 24))
    assert indexed.search(torch.ones(1, 24), 30).ids == (tuple(same),)
    assert not set(zeros) & set(same)


@pytest.mark.slow
def test_a_writer_leaves_the_index_to_the_owner(address, small_index):
    with PostgresStore.create(address, 4) as store:
        role = f"writer {uuid.uuid4()}"
        sql(f'CREATE ROLE "{role}" LOGIN')
        sql(postgres_schema.grants(store._where.schema, role, role))
        with PostgresStore.open(address.replace("//postgres@", f"//{role.replace(' ', '%20')}@")) as writer:
            writer.add([Document(str(i)) for i in range(500)], vectors(500, 4))
            assert writer.info()["search"] == "exact" and writer.search(torch.ones(1, 4), 3).k == 3
            store.vacuum()
            assert store.info()["search"] == writer.info()["search"] == "hnsw"
            assert writer.search(torch.ones(1, 4), 3).ids == store.search(torch.ones(1, 4), 3).ids


@pytest.mark.parametrize("dimension", [1900, 1901, 4001])
def test_wide_embeddings(address, dimension, monkeypatch):
    monkeypatch.setattr("denn.stores.postgres_search.INDEX_FROM", 3)
    rows = vectors(5, dimension)
    with PostgresStore.create(address, dimension) as store:
        ids = store.add([Document("long text " * 1000, ("l",)) for _ in range(5)], rows)
        assert [found for (found,) in store.search(rows, 1).ids] == ids
        indexes = sql("SELECT count(*) FROM pg_indexes WHERE schemaname = %s AND indexname = 'vectors_near'",
                      store._where.schema)  # fmt: skip
        assert indexes == [(0,)]
        kind = store.info()["search"]
        assert kind == ("exact (an index takes at most 4,000 dimensions)" if dimension > 4000 else "exact")


# ---- forgetting


def files_with(*marks):
    """Return which of the byte strings are in a file of the server's tables, indexes or catalogs."""
    sql("CHECKPOINT")
    found = set()
    for file in (server().data / "base").rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        found |= {place for place, mark in enumerate(marks) if mark in content}
    return found


@pytest.mark.slow
def test_nothing_of_a_forgotten_document_is_in_the_files_after_vacuum(address, small_index):
    mark = uuid.uuid4().hex
    secret = torch.tensor([[0.6, 0, 0.8, 0, 0, 0, 0, 0], [0.1, 0.7, 0.1, 0.7, 0, 0, 0, 0]])
    with PostgresStore.create(address, 8) as store:
        store.add([Document(f"text {i}", ("l",)) for i in range(450)], vectors(450, 8))
        assert store.info()["search"] == "hnsw"
        store.add([Document(f"text-{mark}", (f"label-{mark}",), "s"), Document("other", (), "t")], secret)
        store.add([Document(f"again-{mark}", ("l",), "s")], -secret[:1])
        kept = store.vectors(["s"]).numpy()[0]
        marks = [
            f"text-{mark}".encode(), f"again-{mark}".encode(), f"label-{mark}".encode(),
            (-kept).tobytes(), kept.tobytes(), kept.astype(np.float16).tobytes(),
        ]  # fmt: skip
        for table in ("documents", "labels", "vectors", "past"):
            sql(f"ANALYZE {quoted(store)}.{table}")
        assert files_with(*marks) == set(range(len(marks)))
        store.forget("s")
        assert files_with(*marks)  # the deletion alone does not do it
        store.vacuum()
        assert files_with(*marks) == set()
        assert len(store) == 451 and store.info()["search"] == "hnsw" and f"label-{mark}" not in store.labels
        assert store.search(secret[1:], 1).ids == (("t",),)


def test_vacuum_says_when_others_still_see_what_was_deleted(store, address):
    store.forget("a")
    with PostgresStore.open(address, patience=0.2) as hasty, server().connect() as other, other.transaction():
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")  # any snapshot will do, also one that never looked at these tables
        store.forget("b")
        with pytest.raises(StoreError, match=r"still sees what was deleted.*vacuum again"):
            hasty.vacuum()
    store.vacuum()
    assert store.ids() == ["c"]


def test_vacuum_waits_for_readers_and_changes_no_result(store, address):
    with PostgresStore.open(address, patience=0.2) as hasty:
        parts = store.export(1)
        next(parts)
        with pytest.raises(StoreError, match=r"[Vv]acuum again"):
            hasty.vacuum()
        parts.close()
        store.relabel("b", ["x"])
        hasty.vacuum(keep=timedelta(0))
        assert store.labels == ("x", "a", "c") and store.get(["b"])[0].labels == ("x",)
        found = store.search(torch.eye(3)[1:2], 1)
        assert found.ids == (("b",),) and found.label_columns.tolist() == [0]


def test_label_columns_follow_a_vacuum_of_another_process(store, address):
    with PostgresStore.open(address) as other:
        store.search(torch.ones(1, 3), 3)
        other.relabel("a", ["c"])
        other.vacuum(keep=timedelta(0))
        found = store.search(torch.eye(3)[2:], 1)  # the first call after it, with other columns in memory
        assert [store.labels[column] for column in found.label_columns] == ["x", "c"]


# ---- history


def test_undo_is_refused_where_an_older_change_was_undone_meanwhile(store):
    store.relabel("a", ["n"])
    relabelled = store.history()[0].number
    store.undo(relabelled)
    back = store.history()[0].number
    store.undo(1)  # the add: with it all documents went
    assert len(store) == 0
    with pytest.raises(StoreError, match=f"change {back} cannot be undone: change {back + 1} touched"):
        store.undo(back)
    store.undo(back + 1)
    assert store.get(["a"])[0].labels == ("x", "a")
    store.undo(back)
    assert store.get(["a"])[0].labels == ("n",)


def test_times_are_the_servers_and_in_order(store):
    for _ in range(3):
        store.add([Document("d")], torch.ones(1, 3))
    times = [change.time for change in store.history()]
    assert times == sorted(times, reverse=True) and len(set(times)) == 4
    (now,) = sql("SELECT now()")[0]
    assert abs(now - times[0]) < timedelta(seconds=60) and times[0].utcoffset() == timedelta(0)


@pytest.mark.slow
def test_many_documents_at_once(address):
    n, d = 6000, 32
    rows = clusters(n, d)
    with PostgresStore.create(address, d) as store:
        ids = store.add([Document(f"text {i}", (f"l{i % 50}", "all")) for i in range(n)], rows)
        assert len(store) == n and store.ids() == ids and store.info()["search"] == "hnsw"
        assert torch.allclose(store.vectors(ids), torch.nn.functional.normalize(rows), atol=1e-6)
        assert store.remove(ids[200:]) == n - 200
        assert store.info()["search"] == "exact" and store.search(rows[:1], 10**6).k == 200
        store.undo(2)
        assert store.ids() == ids and store.label_counts()["all"] == n
        assert store.relabel(ids, drop=["all"]) == n and store.label_counts()["all"] == 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    work_in_a_process(*sys.argv[1:])

"""The shared datastore: its index of the nearest neighbours, forgetting, history."""

import uuid
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import pytest
import torch
from postgres_data import clusters, quoted, sql, vectors
from postgres_server import server

from denn.errors import StoreError
from denn.stores.postgres import schema, search
from denn.stores.postgres.store import PostgresStore
from denn.types import Document

pytestmark = pytest.mark.slow  # starts its own server

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
    with setting("enable_seqscan", "off"), PostgresStore.create(address, d) as store:  # forces the index for so few
        store.add([Document(str(i), (f"l{i % 7}",), f"id {i}") for i in range(n)], clusters(n, d))
        yield store


@pytest.mark.slow
def test_the_index_finds_what_a_scan_finds(indexed, monkeypatch):
    queries = clusters(40, 24) + 0.2 * vectors(40, 24, 3)
    assert indexed.info()["search"] == "hnsw"
    by_index = indexed.search(queries, 10)
    monkeypatch.setattr("denn.stores.postgres.search.INDEX_FROM", 10**9)
    exact = indexed.search(queries, 10)
    shared = sum(len(set(one) & set(two)) for one, two in zip(by_index.ids, exact.ids, strict=True))
    assert shared >= 0.99 * 400
    assert torch.allclose(by_index.similarity[:, 0], exact.similarity[:, 0], atol=1e-6)  # ranked by full vectors
    assert (by_index.similarity.diff(dim=1) <= 0).all()


def test_what_is_new_is_found_though_the_index_misses_it(indexed, monkeypatch):
    missing = search.NEAREST.replace("vectors v WHERE", "vectors v WHERE v.row <= 2000 AND", 1)
    assert missing != search.NEAREST
    monkeypatch.setattr(search, "NEAREST", missing)
    new, other = vectors(2, 24, 5).split(1)
    indexed.add([Document("new", ("late",), "new")], new)
    indexed.add([Document("other", (), "id 7")], other)  # a stored document gets another vector
    assert [indexed.search(query, 1).ids[0] for query in (new, other)] == [("new",), ("id 7",)]
    assert indexed.search(new, 5, exclude=["new"]).ids[0].count("new") == 0
    assert len(set(indexed.search(other, 50).ids[0])) == 50  # nothing twice
    monkeypatch.setattr(search, "FRESH", 0)
    assert indexed.search(new, 1).ids[0] != ("new",)


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
        sql(schema.grants(store._where.schema, role, role))
        with PostgresStore.open(address.replace("//postgres@", f"//{role.replace(' ', '%20')}@")) as writer:
            writer.add([Document(str(i)) for i in range(500)], vectors(500, 4))
            assert writer.info()["search"] == "exact" and writer.search(torch.ones(1, 4), 3).k == 3
            store.vacuum()
            assert store.info()["search"] == writer.info()["search"] == "hnsw"
            assert writer.search(torch.ones(1, 4), 3).ids == store.search(torch.ones(1, 4), 3).ids


@pytest.mark.parametrize("dimension", [1900, 1901, 4001])
def test_wide_embeddings(address, dimension, monkeypatch):
    monkeypatch.setattr("denn.stores.postgres.search.INDEX_FROM", 3)
    rows = vectors(5, dimension)
    with PostgresStore.create(address, dimension) as store:
        ids = store.add([Document("long text " * 1000, ("l",)) for _ in range(5)], rows)
        assert [found for (found,) in store.search(rows, 1).ids] == ids
        indexes = sql("SELECT count(*) FROM pg_indexes WHERE schemaname = %s AND indexname = 'vectors_near'",
                      store._where.schema)  # fmt: skip
        assert indexes == [(0,)]
        kind = store.info()["search"]
        assert kind == ("exact (an index supports at most 4,000 dimensions)" if dimension > 4000 else "exact")


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
        assert files_with(*marks)  # the deletion alone is not enough
        store.vacuum()
        assert files_with(*marks) == set()
        assert len(store) == 451 and store.info()["search"] == "hnsw" and f"label-{mark}" not in store.labels
        assert store.search(secret[1:], 1).ids == (("t",),)


def test_vacuum_says_when_others_still_see_what_was_deleted(store, address):
    store.forget("a")
    with PostgresStore.open(address, patience=0.2) as hasty, server().connect() as other, other.transaction():
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")  # any snapshot is enough, even one that never read these tables
        store.forget("b")
        with pytest.raises(StoreError, match=r"still sees deleted data.*vacuum again"):
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


def test_a_label_number_that_no_label_has_is_an_error(store, address, monkeypatch):
    read, times = search.State.reread, []

    def reread(state, connection):
        times.append(1)
        assert len(times) < 10, "it reads the labels again and again"
        return read(state, connection)

    monkeypatch.setattr(search.State, "reread", reread)
    sql(f"DELETE FROM {quoted(store)}.labels WHERE name = 'c'")
    with PostgresStore.open(address) as other:
        assert other.search(torch.eye(3)[:1], 1).ids == (("a",),)
        with pytest.raises(StoreError, match="damaged: a document has a label that does not exist"):
            other.search(torch.eye(3), 3)


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

"""The approximate index of the embedded datastore: what it finds, when it is renewed, and what it must not keep."""

import json
import sqlite3
import threading
import time
from contextlib import closing
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from denn.errors import MissingExtraError, StoreError
from denn.stores import building, index_file, keeper
from denn.stores.embedded import EmbeddedStore
from denn.stores.readers import Readers
from denn.types import Document

D = 24


def clustered(n: int, d: int = D, seed: int = 0) -> torch.Tensor:
    """Unit vectors around forty centres, which are the same for every seed."""
    centres = torch.randn(40, d, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    around = centres[torch.randint(40, (n,), generator=generator)]
    return F.normalize(around + 0.6 * torch.randn(n, d, generator=generator))


def documents(n: int, prefix: str = "d") -> list[Document]:
    return [Document(f"text {prefix}{i}", (f"label {i % 7}",), f"{prefix}{i}") for i in range(n)]


@pytest.fixture(name="path")
def store_path(tmp_path):
    return tmp_path / "store.sqlite"


@pytest.fixture(name="store")
def indexed_store(path):
    with EmbeddedStore.create(path, D, index="approximate") as store:
        store.add(documents(3000), clustered(3000))
        store.build_index()
        assert store.info()["search"] == "approximate" and store.info()["fresh"] == 0
        yield store


@pytest.fixture(name="hasty")
def hasty_limits(monkeypatch):
    """Look for what is due at every call, and build after a few documents."""
    monkeypatch.setattr(keeper, "LOOK", 0.0)
    monkeypatch.setattr(keeper, "FRESH", 50)
    monkeypatch.setattr(keeper, "FRESH_SHARE", 0.0)


def eventually(holds, seconds: float = 30.0) -> None:
    """Wait for what a thread does in the background."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def exact(matrix: torch.Tensor, queries: torch.Tensor, k: int) -> list[set[str]]:
    return [{f"d{i}" for i in row} for row in (queries @ matrix.T).topk(k).indices.tolist()]


def test_it_finds_what_exact_search_finds(store):
    queries = clustered(200, seed=7)
    truth = exact(clustered(3000), queries, 30)
    found = store.search(queries, 30)
    assert sum(len(set(ids) & best) for ids, best in zip(found.ids, truth, strict=True)) >= 0.98 * 30 * 200
    rows = torch.stack([store.vectors(ids) for ids in found.ids])
    assert torch.allclose(found.similarity, torch.einsum("nd,nkd->nk", queries, rows), atol=1e-6)
    assert (found.similarity.diff(dim=1) <= 0).all()
    labels = [f"label {int(id[1:]) % 7}" for row in found.ids for id in row]
    assert [store.labels[column] for column in found.label_columns.tolist()] == labels


def test_info_tells_of_the_index(store, path):
    store.add(documents(5, "new"), clustered(5, seed=2))
    store.remove(["d1", "d2"])
    facts = store.info()
    assert facts["recall"] >= building.GOAL and facts["sample"] == 200 and 1 <= facts["probes"] <= facts["lists"]
    assert (facts["covered"], facts["fresh"], facts["dead"]) == (2998, 5, 2) and facts["built_seconds"] > 0
    assert facts["bytes"] == sum(file.stat().st_size for file in path.parent.iterdir() if "shm" not in file.name)


def test_changes_are_seen_at_once(store):
    queries = clustered(3000)[:3]
    built = store.info()["built_seconds"]
    assert store.search(queries, 1).ids == (("d0",), ("d1",), ("d2",))
    store.remove("d0")
    assert store.search(queries, 1).ids[0] != ("d0",)
    store.add([Document("moved", ("new",), "d1")], -queries[1:2])
    assert store.search(queries, 1).ids[1] != ("d1",) and store.search(-queries[1:2], 1).ids == (("d1",),)
    store.relabel("d2", ["other"])
    found = store.search(queries[2:], 1)
    assert found.ids == (("d2",),) and store.labels[found.label_columns[0]] == "other"
    store.add([Document("twin", ("label 0",), "twin")], queries[:1])
    assert store.search(queries, 1).ids[0] == ("twin",)
    store.undo(2)
    assert store.search(queries, 2).ids[0] == ("d0", "twin")
    assert store.info()["built_seconds"] == built and len(store) == 3001


def test_excluded_documents_are_not_found(store):
    query = clustered(3000)[:1]
    order = [f"d{i}" for i in (query @ clustered(3000).T)[0].argsort(descending=True).tolist()]
    for size in (40, 70, 100, 150):
        rest = store.search(query, 20, exclude=order[:size]).ids[0]
        assert not set(rest) & set(order[:size]) and len(set(rest) & set(order[size : size + 20])) >= 18
    assert store.search(query, 9, exclude=[f"d{i}" for i in range(2999)]).ids == (("d2999",),)
    assert store.search(query, 9, exclude=[f"d{i}" for i in range(3000)]).ids == ((),)


def test_enough_is_found_where_all_that_was_near_is_gone(store):
    query = clustered(3000)[:1]
    order = [f"d{i}" for i in (query @ clustered(3000).T)[0].argsort(descending=True).tolist()]
    store.remove(order[:290])
    found = store.search(query, 20)
    assert len(set(found.ids[0])) == 20 and set(found.ids[0]) <= set(order[290:])
    assert found.similarity[0].tolist() == pytest.approx((query @ store.vectors(found.ids[0]).T)[0].tolist(), abs=1e-6)


def test_equal_similarities_come_oldest_first_in_and_out_of_the_index(store):
    same = clustered(1, seed=11)
    store.add([Document("twin", id=f"old {i}") for i in range(8)], same.expand(8, -1))
    store.build_index()
    store.add([Document("twin", id=f"young {i}") for i in range(8)], same.expand(8, -1))
    store.relabel("old 3", ["x"])
    expected = tuple(f"old {i}" for i in range(8)) + tuple(f"young {i}" for i in range(8))
    queries = F.normalize(same + 0.02 * torch.randn(20, D, generator=torch.Generator().manual_seed(0)))
    assert set(store.search(queries, 16).ids) == {expected}
    assert {store.search(query[None], 16).ids[0] for query in queries} == {expected}


def test_no_queries(store):
    assert store.search(torch.empty(0, D), 5).similarity.shape == (0, 5)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(64, 700),
    fresh=st.integers(0, 40),
    d=st.integers(2, 20),
    share=st.floats(0, 1.1),
)
def test_search_agrees_with_brute_force(path, seed, n, fresh, d, share):
    for file in path.parent.iterdir():
        file.unlink()
    rows, queries = clustered(n + fresh, d, seed), clustered(8, d, seed + 1)
    with EmbeddedStore.create(path, d, index="approximate") as store:
        store.add(documents(n), rows[:n])
        store.build_index()
        store.add(documents(n + fresh)[n:], rows[n:]) if fresh else None
        gone = [f"d{i}" for i in range(0, n, 2 + seed % 9)]
        store.remove(gone)
        excluded = [f"d{i}" for i in range(1, n, 3 + seed % 5)]
        left = sorted({f"d{i}" for i in range(n + fresh)} - set(gone) - set(excluded))
        k = max(1, int(share * len(left)))
        found = store.search(queries, k, exclude=excluded)
    assert found.k == min(k, len(left))
    scores = queries @ rows[[int(id[1:]) for id in left]].T
    best = scores.topk(found.k).values
    for i, ids in enumerate(found.ids):
        assert len(set(ids)) == len(ids) and set(ids) <= set(left)
        assert found.similarity[i].tolist() == pytest.approx([float(scores[i, left.index(id)]) for id in ids], abs=1e-5)
    missed = (found.similarity < best - 1e-5).float().mean()
    assert missed < 0.2 if 2 * k < n / 4 else missed == 0  # where k is a good part of the store it is exact


def test_the_index_is_renewed_while_others_search_and_add(path, hasty):
    batch, rounds, problems, done = 40, 20, [], threading.Event()
    everything = clustered(batch * rounds)

    def search() -> None:
        try:
            while not done.is_set():
                before = len(store)
                ids = store.search(everything[:4], 10**6).ids
                assert all(len(set(row)) == len(row) >= before and len(row) % batch == 0 for row in ids)
                near = store.search(everything[:4], 5).ids if before else ()
                assert all(f"d{i}" in row for i, row in enumerate(near))
        except BaseException as problem:
            problems.append(problem)

    with EmbeddedStore.create(path, D, index="approximate") as store:
        threads = [threading.Thread(target=search) for _ in range(2)]
        for thread in threads:
            thread.start()
        builds = set()
        for turn in range(rounds):
            part = slice(turn * batch, (turn + 1) * batch)
            store.add(documents(batch * rounds)[part], everything[part])
            eventually(lambda: store.info()["fresh"] <= 50 + batch if store.info()["search"] != "exact" else True)
            builds.add(store.info().get("built_seconds"))
        done.set()
        for thread in threads:
            thread.join()
        assert not problems and len(builds) > 5
        assert store.search(everything, 1).ids == tuple((f"d{i}",) for i in range(batch * rounds))


def no_build(*_):
    raise AssertionError("nothing should be built")


def test_opening_uses_the_index_on_the_disk(store, path, monkeypatch):
    store.add(documents(4, "new"), clustered(4, seed=5))
    store.relabel("d7", ["other"])
    store.remove("d8")
    queries = clustered(50, seed=9)
    before = store.search(queries, 20)
    store.close()
    monkeypatch.setattr(keeper, "build", no_build)
    for index in ("approximate", "auto"):
        with EmbeddedStore.open(path, index=index) as again:
            facts, after = again.info(), again.search(queries, 20)
            assert (facts["search"], facts["covered"], facts["fresh"], facts["dead"]) == ("approximate", 2998, 5, 2)
            assert after.ids == before.ids and torch.equal(after.label_columns, before.label_columns)
            assert len(again._replica.index.snapshot().matrix) == 5  # no other vector is in memory
    with EmbeddedStore.open(path, index="exact") as again:
        assert again.info()["search"] == "exact" and again.search(queries, 1).ids == tuple(
            ids[:1] for ids in before.ids
        )


def test_opening_reads_no_vector_that_the_index_covers(store, path):
    store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE documents SET embedding = x'00000000' WHERE id != 'd0'")
    with EmbeddedStore.open(path) as again:
        assert len(again) == 3000
    with pytest.raises(StoreError, match="another width"):
        EmbeddedStore.open(path, index="exact")


def truncate(file):
    file.write_bytes(file.read_bytes()[:-100])


def flip(file):
    whole = bytearray(file.read_bytes())
    whole[-1000] ^= 1
    file.write_bytes(whole)


def rewrite(file, **facts):
    whole = file.read_bytes()
    header = json.loads(whole[len(index_file.MAGIC) : index_file.BLOCK]) | facts
    file.write_bytes(
        (index_file.MAGIC + json.dumps(header).encode()).ljust(index_file.BLOCK) + whole[index_file.BLOCK :]
    )


DAMAGE = {
    "empty": lambda file: file.write_bytes(b""),
    "foreign": lambda file: file.write_bytes(b"my notes " * 1000),
    "truncated": truncate,
    "changed": flip,
    "other store": lambda file: rewrite(file, stamp=123),
    "older epoch": lambda file: rewrite(file, epoch=-1),
    "of the future": lambda file: rewrite(file, version=10**6),
    "no number": lambda file: rewrite(file, covered="many"),
    "no version": lambda file: rewrite(file, version=None),
    "too many": lambda file: rewrite(file, covered=10**15),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_an_index_that_does_not_fit_is_built_again(store, path, damage):
    queries = clustered(20, seed=3)
    expected = store.search(queries, 10).ids
    store.close()
    file = index_file.beside(path)
    damage(file)
    with EmbeddedStore.open(path, read_only=True) as reader:
        assert reader.info()["search"] == "exact" and reader.search(queries, 10).ids == expected
    with EmbeddedStore.open(path, index="approximate") as again:
        assert again.search(queries, 10).ids == expected  # and a build begins
        eventually(lambda: again.info()["search"] == "approximate")
        assert again.search(queries, 10).ids == expected
    if not file.is_dir():
        assert index_file.load(file) is not None


def test_an_index_of_another_width_is_not_used(store, path, tmp_path):
    (stamp,) = {index_file.read_header(index_file.beside(path))["stamp"]}
    store.close()
    with EmbeddedStore.create(tmp_path / "other", 5, index="approximate") as narrow:
        narrow.add(documents(100), clustered(100, 5))
        narrow.build_index()
    index_file.beside(tmp_path / "other").replace(index_file.beside(path))
    rewrite(index_file.beside(path), stamp=stamp)
    with EmbeddedStore.open(path) as again:
        assert again.info()["search"] == "exact" and len(again.search(clustered(1), 10).ids[0]) == 10


def codes_of(index, vector: torch.Tensor) -> bytes:
    """The bytes that an index keeps of a vector."""
    return index.ivf.sa_encode(vector.numpy())[0, -D:].tobytes()


def test_nothing_of_a_forgotten_document_is_left_in_the_index(store, path):
    secret = F.normalize(torch.randn(1, D, generator=torch.Generator().manual_seed(3)))
    store.add([Document("secret", id="secret")], secret)
    store.build_index()
    file = index_file.beside(path)
    old = index_file.load(file)
    code = codes_of(old, secret)
    assert code in file.read_bytes()
    store.forget("secret")
    with EmbeddedStore.open(path, index="approximate") as other:
        assert other.info()["dead"] == 1
        store.vacuum()
        assert not file.exists() and sorted(path.parent.glob("*.faiss*")) == []
        for opened in (store, other):
            assert opened.search(secret, 1).ids != (("secret",),) and opened.info()["search"] == "approximate"
        store.build_index()
        new = index_file.load(file)
        assert new.epoch == old.epoch + 1 and new.ivf.ntotal == 3000
        assert code not in file.read_bytes() and codes_of(new, secret) not in file.read_bytes()
        centroids = new.ivf.quantizer.reconstruct_n(0, new.ivf.nlist)
        assert not np.isclose(centroids @ secret.numpy()[0], 1, atol=1e-4).any()
        other._keeper._next_look = 0.0
        other.search(secret, 1)
        eventually(lambda: other.info()["dead"] == 0)  # it took the new one


def test_a_build_that_a_vacuum_overtook_is_thrown_away(store, path, monkeypatch):
    save = index_file.save

    def vacuum_first(index, file):
        save(index, file)
        store._keeper._work.halt = lambda: None  # as if another process did
        store.vacuum()
        file.touch()

    monkeypatch.setattr(index_file, "save", vacuum_first)
    store.add(documents(1, "new"), clustered(1, seed=2))
    store.build_index()
    assert list(path.parent.glob("*.faiss*")) == []
    assert store.search(clustered(3000)[:1], 1).ids == (("d0",),)


def test_vacuum_has_the_index_built_anew(hasty, store, path):
    store.remove([f"d{i}" for i in range(100)])
    store.vacuum()
    store.search(clustered(1), 1)
    eventually(lambda: store.info()["dead"] == 0)
    eventually(index_file.beside(path).exists)
    assert store.info()["covered"] == 2900 == len(store)


def test_a_reader_takes_the_index_that_the_writer_built(path, hasty):
    with EmbeddedStore.create(path, D, index="approximate") as store:
        store.add(documents(10), clustered(10))
        with EmbeddedStore.open(path, read_only=True) as reader:
            assert reader.info()["search"] == "exact"
            store.add(documents(400), clustered(400))
            store.build_index()
            reader.search(clustered(1), 1)
            eventually(lambda: reader.info()["search"] == "approximate")
            assert reader.search(clustered(400), 1).ids == tuple((f"d{i}",) for i in range(400))


def test_one_process_builds_at_a_time(store, path):
    with EmbeddedStore.open(path) as other, store._keeper._alone() as mine:
        assert mine
        other.add(documents(1, "new"), clustered(1))
        with pytest.raises(StoreError, match="another process is building"):
            other.build_index()


def test_a_failed_build_leaves_the_old_index(hasty, store, path, monkeypatch, caplog):
    before = index_file.beside(path).read_bytes()

    def fail(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(keeper, "build", fail)
    store.add(documents(100, "new"), clustered(100, seed=4))
    eventually(lambda: "could not be renewed" in caplog.text)
    assert store.info()["fresh"] == 100 and store.search(clustered(100, seed=4)[:1], 1).ids == (("new0",),)
    assert index_file.beside(path).read_bytes() == before
    store.add(documents(1, "last"), clustered(1, seed=5))
    assert not store._keeper._work.running  # it is not tried again at once


def test_what_a_killed_build_left_is_in_nobodys_way(store, path):
    left = [path.with_name(path.name + end) for end in (".faiss.new", ".faiss.lock")]
    for file in left:
        file.touch()
    store.add(documents(1, "new"), clustered(1, seed=2))
    store.build_index()
    assert store.info()["fresh"] == 0 and not any(file.exists() for file in left)
    left[0].write_bytes(b"codes")
    store.vacuum()
    assert not left[0].exists()


def test_closing_stops_a_build(path, hasty, monkeypatch):
    read, begun = keeper.read_present, threading.Event()

    def slowly(*arguments, **options):
        begun.set()
        time.sleep(0.2)
        return read(*arguments, **options)

    monkeypatch.setattr(keeper, "read_present", slowly)
    monkeypatch.setattr(building, "BLOCK", 10)
    with EmbeddedStore.create(path, D, index="approximate") as store:
        store.add(documents(3000), clustered(3000))
        assert begun.wait(10)
        start = time.monotonic()
    assert time.monotonic() - start < 5 and list(path.parent.iterdir()) == [path]


def test_rows_that_go_during_a_build_are_left_out(path, monkeypatch):
    read = keeper.read_present
    with EmbeddedStore.create(path, D) as store:
        store.add(documents(300), clustered(300))

        def meddling(*arguments, **options):
            if "d299" in store.ids():
                store.remove("d299")
                store.add([Document("moved", id="d5")], -clustered(300)[5:6])
                store.add(documents(1, "new"), clustered(1, seed=8))
            return read(*arguments, **options)

        monkeypatch.setattr(keeper, "read_present", meddling)
        store.build_index()
        assert (store.info()["covered"], store.info()["fresh"]) == (298, 2) and len(store) == 300
        assert store.search(-clustered(300)[5:6], 1).ids == (("d5",),)
        assert "d299" not in store.search(clustered(300)[299:], 300).ids[0]


def test_a_store_that_shrank_is_searched_exactly_again(store):
    store.remove([f"d{i}" for i in range(2985)])
    store.build_index()
    assert store.info()["search"] == "exact" and store.search(clustered(3000)[2990:], 1).ids[0] == ("d2990",)


def test_a_search_sees_one_moment_of_the_store(store, path):
    readers = Readers(path, D, 1.0)
    with readers.at(store._replica.version) as fetch:
        store.add([Document("moved", id="d0")], -clustered(1))
        assert torch.allclose(fetch(torch.tensor([1])), clustered(3000)[:1])  # as it was
        with readers.at(store._replica.version - 1) as late:
            assert late is None
    readers.close()


def test_size_decides_where_nothing_is_said(path, monkeypatch):
    monkeypatch.setattr(keeper, "AUTO_FLOATS", 200 * D)
    monkeypatch.setattr(keeper, "LOOK", 0.0)
    with EmbeddedStore.create(path, D) as store, EmbeddedStore.open(path, index="exact") as never:
        store.add(documents(199), clustered(199))
        store.search(clustered(1), 1)
        assert not store._keeper._work.running and store.info()["search"] == "exact"
        store.add(documents(200)[199:], clustered(200)[199:])
        eventually(lambda: store.info()["search"] == "approximate")
        never.search(clustered(1), 1)
        assert never.info()["search"] == "exact"
        with pytest.raises(StoreError, match="exact search"):
            never.build_index()
    with pytest.raises(StoreError, match="got the index 'fast'"):
        EmbeddedStore.open(path, index="fast")


def test_without_faiss_search_stays_exact(path, monkeypatch):
    def hidden(name, *rest):
        if name == "faiss":
            raise ImportError(name)
        return import_module(name, *rest)

    monkeypatch.setattr(keeper, "AUTO_FLOATS", 0)
    monkeypatch.setattr(keeper, "LOOK", 0.0)
    monkeypatch.setattr("denn.stores.approximate.import_module", hidden)
    monkeypatch.setattr(keeper, "find_spec", lambda name: None if name == "faiss" else find_spec(name))
    with EmbeddedStore.create(path, D) as store:
        store.add(documents(100), clustered(100))
        assert store.search(clustered(100), 1).ids == tuple((f"d{i}",) for i in range(100))
        assert store.info()["search"] == "exact" and "denn[ann]" in store.info()["hint"]
        with pytest.raises(MissingExtraError, match=r"denn\[ann\]"):
            store.build_index()
    with pytest.raises(MissingExtraError, match="faiss"):
        EmbeddedStore.open(path, index="approximate")


def test_centroids_are_used_again_where_most_documents_are_new_to_them(monkeypatch):
    monkeypatch.setattr(building, "PER_LIST", 2)
    matrix = clustered(4000)

    def built(rows, old=None, epoch=0):
        return building.build(rows, lambda part: (part, matrix[part]), building.Moment(1 + epoch, epoch, 0), old)

    first = built(torch.arange(3000))
    centroids = first.ivf.quantizer.reconstruct_n(0, first.ivf.nlist)
    again = built(torch.arange(1000, 4000), first)
    assert np.array_equal(again.ivf.quantizer.reconstruct_n(0, again.ivf.nlist), centroids)
    assert again.recall >= building.GOAL and again.rows.tolist() == list(range(1000, 4000))
    for other in (built(torch.arange(1000), first), built(torch.arange(3000), first, epoch=1)):
        assert not np.array_equal(other.ivf.quantizer.reconstruct_n(0, other.ivf.nlist)[:5], centroids[:5])


def test_whole_blocks_may_go_during_a_build(monkeypatch):
    monkeypatch.setattr(building, "BLOCK", 50)
    matrix = clustered(400)

    def read(rows):
        kept = rows[(rows < 100) | (rows >= 200)]
        return kept, matrix[kept]

    built = building.build(torch.arange(400), read, building.Moment(1, 0, 0))
    assert built.rows.tolist() == [*range(100), *range(200, 400)] and built.ivf.ntotal == 300


def test_the_recall_that_is_told_is_that_of_the_sample():
    trial = building.Trial(torch.tensor([0, 1]), torch.eye(2))
    matrix = torch.tensor([[1.0, 0], [0, 1], [0.9, 0.1], [0.1, 0.9], [0.5, 0.5]])
    trial.see(torch.arange(5), matrix, torch.arange(5))
    everything = torch.arange(5).expand(2, -1)
    assert trial.recall(everything) == 1  # of four each: itself is left out
    assert trial.recall(everything[:, :3]) == pytest.approx(4 / 8)  # finds 1 and 2, then 0 and 2
    assert trial.recall(torch.full((2, 3), -1)) == 0

"""The approximate index of the embedded datastore: loading, rebuilding and deleting it, and what it must not keep."""

import hashlib
import json
import sqlite3
import tempfile
import threading
import time
from contextlib import closing
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from clusters import D, clustered, documents, eventually

from denn.errors import MissingExtraError, StoreError, UnavailableError
from denn.stores.embedded import building, index_file, index_maintenance
from denn.stores.embedded.store import EmbeddedStore
from denn.types import Document

pytestmark = pytest.mark.slow  # builds indexes; the contract has the fast part


def no_build(*_):
    raise AssertionError("nothing should be built")


def test_opening_uses_the_index_on_the_disk(store, path, monkeypatch):
    store.add(documents(4, "new"), clustered(4, seed=5))
    store.relabel("d7", ["other"])
    store.remove("d8")
    queries = clustered(50, seed=9)
    before = store.search(queries, 20)
    store.close()
    monkeypatch.setattr(index_maintenance, "build", no_build)
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
        step = 3000 // index_maintenance.SAMPLE  # of the sample that is compared
        connection.execute("UPDATE documents SET embedding = x'00000000' WHERE (row - 1) % ? != 0", (step,))
    with EmbeddedStore.open(path) as again:
        assert len(again) == 3000
    with pytest.raises(StoreError, match="dimension"):
        EmbeddedStore.open(path, index="exact")


def truncate(file):
    file.write_bytes(file.read_bytes()[:-100])


def flip(file):
    whole = bytearray(file.read_bytes())
    whole[-1000] ^= 1
    file.write_bytes(whole)


def zero_vectors(file):
    """Zero the vectors, as a disk that lost a write would."""
    whole = bytearray(file.read_bytes())
    header = json.loads(whole[len(index_file.MAGIC) : index_file.BLOCK])
    end = index_file.BLOCK + 4 * header["covered"] * header["dimension"]
    whole[index_file.BLOCK : end] = bytes(end - index_file.BLOCK)
    file.write_bytes(whole)


def other_vectors(file):
    """Put in other vectors, with the right digest."""
    zero_vectors(file)
    rewrite(file, digest=hashlib.sha256(file.read_bytes()[index_file.BLOCK :]).hexdigest())


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
    "vectors lost": zero_vectors,
    "other vectors": other_vectors,
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
        eventually(lambda: other.info()["dead"] == 0)  # it uses the new one


def test_a_build_that_a_vacuum_overtook_is_thrown_away(store, path, monkeypatch):
    finish = index_file.finish

    def vacuum_first(index, file):
        finish(index, file)
        store._keeper._work.halt = lambda: None  # as if another process did
        store.vacuum()
        path.with_name(path.name + ".faiss.new").touch()

    monkeypatch.setattr(index_file, "finish", vacuum_first)
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

    monkeypatch.setattr(index_maintenance, "build", fail)
    store.add(documents(100, "new"), clustered(100, seed=4))
    eventually(lambda: "could not be updated" in caplog.text)
    assert store.info()["fresh"] == 100 and store.search(clustered(100, seed=4)[:1], 1).ids == (("new0",),)
    assert index_file.beside(path).read_bytes() == before
    store.add(documents(1, "last"), clustered(1, seed=5))
    assert not store._keeper._work.running  # it is not retried immediately


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
    read, begun = index_maintenance.read_present, threading.Event()

    def until_told_to_stop(*arguments, **options):
        begun.set()
        assert store._keeper._work._stop.wait(60)
        return read(*arguments, **options)

    monkeypatch.setattr(index_maintenance, "read_present", until_told_to_stop)
    monkeypatch.setattr(building, "BLOCK", 10)
    with EmbeddedStore.create(path, D, index="approximate") as store:
        store.add(documents(3000), clustered(3000))
        assert begun.wait(60)
        start = time.monotonic()
    assert time.monotonic() - start < 30 and list(path.parent.iterdir()) == [path]


def test_rows_that_go_during_a_build_are_left_out(path, monkeypatch):
    read = index_maintenance.read_present
    with EmbeddedStore.create(path, D) as store:
        store.add(documents(300), clustered(300))

        def meddling(*arguments, **options):
            if "d299" in store.ids():
                store.remove("d299")
                store.add([Document("moved", id="d5")], -clustered(300)[5:6])
                store.add(documents(1, "new"), clustered(1, seed=8))
            return read(*arguments, **options)

        monkeypatch.setattr(index_maintenance, "read_present", meddling)
        store.build_index()
        assert (store.info()["covered"], store.info()["fresh"]) == (298, 2) and len(store) == 300
        assert store.search(-clustered(300)[5:6], 1).ids == (("d5",),)
        assert "d299" not in store.search(clustered(300)[299:], 300).ids[0]


def test_a_store_that_shrank_is_searched_exactly_again(store):
    store.remove([f"d{i}" for i in range(2985)])
    store.build_index()
    assert store.info()["search"] == "exact" and store.search(clustered(3000)[2990:], 1).ids[0] == ("d2990",)


def test_a_search_sees_one_moment_of_the_store(store):
    first = clustered(3000)[:1]
    moment = store._replica.index.snapshot()
    store.add([Document("moved", id="d0")], -first)
    store.build_index()
    found = moment.search(first, 1, store.labels)
    assert found.ids == (("d0",),) and torch.allclose(found.similarity, torch.ones(1, 1))  # as it was
    assert store.search(-first, 1).ids == (("d0",),)


def test_an_index_that_cannot_be_written_is_told(store, path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index_file, "finish", full)
    store.add(documents(1, "new"), clustered(1, seed=2))
    with pytest.raises(StoreError, match=r"cannot be written: .*No space left"):
        store.build_index()
    assert store.search(clustered(1, seed=2), 1).ids == (("new0",),)
    assert not path.with_name(path.name + ".faiss.new").exists()


def test_size_decides_where_nothing_is_said(path, monkeypatch):
    monkeypatch.setattr(index_maintenance, "AUTO_FLOATS", 200 * D)
    monkeypatch.setattr(index_maintenance, "LOOK", 0.0)
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
    with pytest.raises(StoreError, match="unknown index 'fast'"):
        EmbeddedStore.open(path, index="fast")


def test_without_faiss_search_stays_exact(path, monkeypatch):
    def hidden(name, *rest):
        if name == "faiss":
            raise ImportError(name)
        return import_module(name, *rest)

    monkeypatch.setattr(index_maintenance, "AUTO_FLOATS", 0)
    monkeypatch.setattr(index_maintenance, "LOOK", 0.0)
    monkeypatch.setattr("denn.stores.embedded.approximate.import_module", hidden)
    monkeypatch.setattr(index_maintenance, "find_spec", lambda name: None if name == "faiss" else find_spec(name))
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
        moment = building.Moment(1 + epoch, epoch, 0)
        with tempfile.TemporaryFile() as file:
            return building.build(rows, lambda part: (part, matrix[part]), moment, file, old)

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

    with tempfile.TemporaryFile() as file:
        built = building.build(torch.arange(400), read, building.Moment(1, 0, 0), file)
    assert built.rows.tolist() == [*range(100), *range(200, 400)] and built.ivf.ntotal == 300


def test_a_store_whose_file_was_replaced_takes_no_index_from_the_new_one(store, path, tmp_path):
    store.add(documents(1, "new"), clustered(1))
    with EmbeddedStore.create(tmp_path / "other", D, index="exact") as other:
        other.add(documents(400, "o"), clustered(400, seed=5))
    (tmp_path / "other").replace(path)
    with pytest.raises(UnavailableError, match="moved or replaced"):
        store.build_index()
    assert store.search(clustered(3000)[:1], 1).ids == (("d0",),)


def test_the_recall_that_is_told_is_that_of_the_sample():
    trial = building.Trial(torch.tensor([0, 1]), torch.eye(2))
    matrix = torch.tensor([[1.0, 0], [0, 1], [0.9, 0.1], [0.1, 0.9], [0.5, 0.5]])
    trial.see(torch.arange(5), matrix, torch.arange(5))
    everything = torch.arange(5).expand(2, -1)
    assert trial.recall(everything) == 1  # of four each: itself is left out
    assert trial.recall(everything[:, :3]) == pytest.approx(4 / 8)  # finds 1 and 2, then 0 and 2
    assert trial.recall(torch.full((2, 3), -1)) == 0


def test_the_index_of_a_large_store_is_built_before_its_vectors_are_read(path, monkeypatch, caplog):
    with EmbeddedStore.create(path, D, index="exact") as store:
        store.add(documents(300), clustered(300))
    monkeypatch.setattr(index_maintenance, "FIRST_FLOATS", 300 * D)
    monkeypatch.setattr(index_maintenance, "LOOK", 1e9)
    with EmbeddedStore.open(path, read_only=True) as reader:
        assert reader.info()["search"] == "exact"
    with EmbeddedStore.open(path) as again:
        assert "building the index of 300 documents" in caplog.text
        assert again.info()["covered"] == 300 and not len(again._replica.index.snapshot().matrix)
        assert again.search(clustered(300), 1).ids == tuple((f"d{i}",) for i in range(300))
        again.build_index()  # there is nothing left to do
        assert again.info()["fresh"] == 0


def test_a_large_store_opens_although_its_index_cannot_be_built(path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    with EmbeddedStore.create(path, D, index="exact") as store:
        store.add(documents(300), clustered(300))
    monkeypatch.setattr(index_maintenance, "FIRST_FLOATS", 0)
    monkeypatch.setattr(index_file, "finish", full)
    with EmbeddedStore.open(path) as again:
        assert "could not be updated" in caplog.text and again.info()["search"] == "exact"
        assert again.search(clustered(300), 1).ids == tuple((f"d{i}",) for i in range(300))

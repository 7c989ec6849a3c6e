"""Features of the embedded datastore only: its file, processes and memory."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from denn import bundle
from denn.errors import StoreError, UnavailableError
from denn.stores.embedded import ledger
from denn.stores.embedded.memory import MemoryIndex
from denn.stores.embedded.store import EmbeddedStore
from denn.stores.unit_vectors import unit_rows
from denn.types import Document, Where


@pytest.fixture(name="path")
def store_path(tmp_path):
    return tmp_path / "folder" / "store #1?.sqlite"  # characters with a meaning in addresses


@pytest.fixture(name="store")
def small_store(path):
    with EmbeddedStore.create(path, 3, ["x"]) as store:
        store.add([Document(f"text {id}", ("x", id), id) for id in "abc"], torch.eye(3))
        yield store


def sql(path, statement, *values):
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def test_one_file_is_left_after_closing(store, path):
    with EmbeddedStore.open(path, read_only=True) as reader:
        assert len(reader) == 3
    store.close()
    assert list(path.parent.iterdir()) == [path]
    with EmbeddedStore.open(path, read_only=True) as reader:
        assert reader.ids() == ["a", "b", "c"]
    assert list(path.parent.iterdir()) == [path]


def test_a_relative_path_holds_when_the_working_folder_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with EmbeddedStore.create(Path("store.sqlite"), 3, ["x"]) as store:
        monkeypatch.chdir("/")
        assert store.add([Document("text", ("x",), "a")], torch.eye(3)[:1]) == ["a"]
        assert len(store) == 1


def test_file_says_what_it_holds(store, path):
    store.add([Document("long", ("y",), "d")], torch.tensor([[0.0, 3, 4]]))
    assert sql(path, "PRAGMA journal_mode") == [("wal",)]
    assert dict(sql(path, "SELECT key, value FROM meta")) == {
        "format": 3, "dimension": 3, "version": 2, "epoch": 0, "given": 1,
    }  # fmt: skip
    (embedding, labels), *_ = sql(path, "SELECT embedding, labels FROM documents WHERE id = 'd'")
    assert np.frombuffer(embedding, "<f4").tolist() == pytest.approx([0, 0.6, 0.8])
    assert np.frombuffer(labels, "<i4").tolist() == [4] and store.labels == ("x", "a", "b", "c", "y")


def test_info(store, path):
    on_disk = sum(path.with_name(path.name + end).stat().st_size for end in ("", "-wal"))
    assert store.info() == {
        "kind": "embedded",
        "path": "store #1?.sqlite",
        "documents": 3,
        "labels": 4,
        "rejections": 0,
        "dimension": 3,
        "bytes": on_disk,
        "search": "exact",
    }


def test_ids_come_oldest_first(store):
    store.relabel("a", ["z"])
    store.remove(["b"])
    store.add([Document("again", id="b"), Document("changed", id="c")], torch.eye(3)[:2])
    assert store.ids() == ["a", "c", "b"]


def test_equal_similarities_come_oldest_first_after_changes_and_reopening(store, path):
    store.add([Document("same", id=id) for id in "cab"], torch.ones(3, 3))
    with EmbeddedStore.open(path) as reopened:
        for opened in (store, reopened):
            assert opened.search(torch.ones(1, 3), 3).ids == (("a", "b", "c"),)


def test_create_where_something_is(store, path, tmp_path):
    with pytest.raises(StoreError, match="already"):
        EmbeddedStore.create(path, 3)
    assert len(store) == 3
    other = tmp_path / "notes.txt"
    other.write_text("my notes " * 100)
    with pytest.raises(StoreError, match="not a denn datastore"):
        EmbeddedStore.create(other, 3)
    with pytest.raises(StoreError, match="cannot use the datastore"):
        EmbeddedStore.create(other / "store", 3)
    assert other.read_text() == "my notes " * 100


def test_dimension_must_be_positive(path):
    with pytest.raises(StoreError, match="dimension 0"):
        EmbeddedStore.create(path, 0)
    assert not path.exists()


def test_open_what_is_not_a_store(tmp_path):
    with pytest.raises(StoreError, match="there is no datastore at"):
        EmbeddedStore.open(tmp_path / "missing")
    text, empty, foreign = tmp_path / "text", tmp_path / "empty", tmp_path / "foreign"
    text.write_text("my notes " * 100)
    empty.touch()
    sql(foreign, "CREATE TABLE meta(key, value)")
    for file in (text, empty, foreign):
        before = file.read_bytes()
        with pytest.raises(StoreError, match="is not a denn datastore"):
            EmbeddedStore.open(file)
        assert file.read_bytes() == before


def test_open_another_format(store, path):
    store.close()
    sql(path, "UPDATE meta SET value = 99 WHERE key = 'format'")
    with pytest.raises(StoreError, match=r"newer version of denn \(format 99; this version reads up to 3\)"):
        EmbeddedStore.open(path)


def test_open_damaged(store, path):
    store.add([Document("t" * 3000) for _ in range(50)], torch.ones(50, 3))
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(StoreError, match="damaged"):
        EmbeddedStore.open(path)


@pytest.mark.parametrize(
    ("text", "reason"), [("x'ff'", "a text has another type"), ("CAST(x'ff' AS TEXT)", "not UTF-8")]
)
def test_a_text_that_is_damaged_is_not_returned(store, path, text, reason):
    store.close()
    sql(path, f"UPDATE documents SET text = {text} WHERE id = 'b'")
    with EmbeddedStore.open(path) as opened, pytest.raises(StoreError, match=reason):
        opened.texts(["a", "b"])


def test_texts_that_are_too_long_together_are_read_in_parts(store):
    texts = {f"long {number}": str(number) * 300 for number in range(7)}
    store.add([Document(text, (), id) for id, text in texts.items()], torch.ones(7, 3))
    store._replica.reader.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)
    assert store.texts(list(texts)) == texts


def test_open_with_embeddings_cut_short(store, path):
    store.close()
    sql(path, "UPDATE documents SET embedding = x'00000000' WHERE id = 'b'")
    with pytest.raises(StoreError, match="dimension"):
        EmbeddedStore.open(path)


def test_read_only(store, path):
    with EmbeddedStore.open(path, read_only=True) as reader:
        for call in (
            lambda: reader.add([Document("d")], torch.ones(1, 3)),
            lambda: reader.remove(["a"]),
            lambda: reader.relabel("a", []),
        ):
            with pytest.raises(StoreError, match="read-only"):
                call()
        store.remove(["a"])
        assert reader.ids() == ["b", "c"]


def test_second_writer_is_told_to_wait(store, path):
    with EmbeddedStore.open(path, patience=0.01) as second, closing(sqlite3.connect(path)) as first:
        first.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process is writing"):
            second.add([Document("d")], torch.ones(1, 3))
        assert len(second) == 3  # reading continues
        first.rollback()
        second.add([Document("d", id="d")], torch.ones(1, 3))
    assert store.ids() == ["a", "b", "c", "d"]


def replace_folder_of(path):
    """Replace the folder of a store by one with another store, as training with --replace does."""
    new = path.parent.with_name("new")
    EmbeddedStore.create(new / path.name, 3, ["other"]).close()
    bundle.replace(new, path.parent)


def test_a_store_whose_file_was_replaced_does_not_claim_to_store_anything(store, path):
    with EmbeddedStore.open(path, read_only=True) as reader:
        replace_folder_of(path)
        for use in (
            lambda: store.add([Document("lost")], torch.ones(1, 3)),
            lambda: store.relabel("a", ["y"]),
            store.vacuum,
            store.refresh,
            reader.refresh,
            lambda: store.select(Where(text="text")),
            lambda: list(store.export()),
        ):
            with pytest.raises(UnavailableError, match=r"moved or replaced after it was opened.* Load the model again"):
                use()
        assert store.search(torch.eye(3), 1).ids == (("a",), ("b",), ("c",)) and store.texts(["a"]) == {"a": "text a"}
    with EmbeddedStore.open(path) as new:
        assert len(new) == 0


def test_a_change_during_which_the_file_is_replaced_is_an_error(store, path, monkeypatch):
    record = ledger.record

    def record_and_replace(*entry):
        record(*entry)
        replace_folder_of(path)

    monkeypatch.setattr(ledger, "record", record_and_replace)
    with pytest.raises(UnavailableError, match="moved or replaced"):
        store.add([Document("lost")], torch.ones(1, 3))


def test_closed_store_says_so(store):
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.search(torch.ones(1, 3), 1)
    store.close()


def test_refresh_reads_only_what_changed(store, path):
    with EmbeddedStore.open(path) as reader:
        sql(path, "UPDATE documents SET embedding = zeroblob(12) WHERE id = 'a'")  # an undeclared change
        store.add([Document("d", ("y",), "d")], -torch.ones(1, 3))
        store.remove(["b"])
        found = reader.search(torch.eye(3)[:1], 9)
        assert found.ids == (("a", "c", "d"),) and found.similarity[0, 0] == 1


def test_documents_that_came_and_went_between_two_looks(store, path):
    with EmbeddedStore.open(path) as reader:
        store.add([Document("short-lived", id="d")], torch.ones(1, 3))
        store.remove(["a", "d"])
        store.add([Document("back", ("back",), "a")], torch.ones(1, 3))
        assert reader.ids() == store.ids() == ["b", "c", "a"]
        assert reader.get(["a"]) == [Document("back", ("back",), "a")]


def test_long_queries_are_searched_in_chunks(store, monkeypatch):
    whole = store.search(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), 2)
    monkeypatch.setattr("denn.stores.embedded.memory.SCORES_BYTES", 7 * 3 * 4)  # seven queries at one time
    chunked = store.search(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), 2)
    assert chunked.ids == whole.ids and torch.allclose(chunked.similarity, whole.similarity)
    assert torch.equal(chunked.label_columns, whole.label_columns)


def put(index: MemoryIndex, row: int, id: str, columns: list[int]) -> None:
    vector = unit_rows(torch.tensor([[float(row % 7 + 1), float(row % 5), 1.0]]), 3)
    index.put(torch.tensor([row]), [id], vector, torch.tensor([len(columns)]), torch.tensor(columns, dtype=torch.int32))


def test_a_history_that_undoes_itself_is_refused(tmp_path):
    with EmbeddedStore.create(tmp_path / "store.sqlite", 3) as store:
        store.add([Document("a", id="a")], torch.eye(3)[:1])
        with closing(sqlite3.connect(store.path)) as connection, connection:
            connection.execute("UPDATE changes SET undoes = number")
        with pytest.raises(StoreError, match="undoes itself"):
            store.undo(1)
        assert store.ids() == ["a"]


def test_index_forgets_dead_slots_and_a_snapshot_keeps_them():
    index, expected = MemoryIndex(3), {}
    for row in range(30):
        put(index, row, f"id {row}", [row % 4] * (row % 3))
        expected[row] = (f"id {row}", row % 3)
    snapshot = index.snapshot()
    before = snapshot.search(torch.eye(3), 40, ())
    for row in range(0, 30, 2):
        index.drop([row, 1000 + row])
        del expected[row]
    for row in range(1, 30, 4):
        put(index, row, f"id {row}", [3])
        expected[row] = (f"id {row}", 1)
    after = index.snapshot().search(torch.eye(3), 40, ())
    assert index.ids() == [expected[row][0] for row in sorted(expected)]
    assert {id: int(after.offsets[place + 1] - after.offsets[place]) for place, id in enumerate(after.ids[0])} == dict(
        expected.values()
    )
    assert len(index.snapshot().rows) < 20  # 15 live; 53 were put
    again = snapshot.search(torch.eye(3), 40, ())
    assert again.ids == before.ids and torch.equal(again.label_columns, before.label_columns)


def test_unit_rows_do_not_touch_their_input():
    given = torch.tensor([[3.0, 4, 0], [0, 0, 0]], requires_grad=True)
    rows = unit_rows(given, 3)
    assert rows.tolist() == [[pytest.approx(0.6), pytest.approx(0.8), 0], [0, 0, 0]]
    assert given.tolist() == [[3, 4, 0], [0, 0, 0]] and not rows.requires_grad


def test_a_store_of_before_the_history_is_renewed(store, path):
    store.close()
    for table in ("changes", "past", "forgotten"):
        sql(path, f"DROP TABLE {table}")
    sql(path, "DELETE FROM meta WHERE key IN ('epoch', 'given')")
    sql(path, "UPDATE meta SET value = 1 WHERE key = 'format'")
    with pytest.raises(StoreError, match="for writing to update it"):
        EmbeddedStore.open(path, read_only=True)
    with EmbeddedStore.open(path) as renewed:
        assert renewed.ids() == ["a", "b", "c"] and renewed.history() == []
        renewed.remove("b", source="me")
        assert [change.source for change in renewed.history()] == ["me"]
        renewed.vacuum()
        assert renewed.labels == ("x", "a", "b", "c")  # earlier ones count as given


def test_a_store_of_before_rejections_is_read_as_it_is_and_renewed_by_a_writer(store, path):
    store.close()
    sql(path, "UPDATE meta SET value = 2 WHERE key = 'format'")
    with EmbeddedStore.open(path, read_only=True) as reader:
        before = reader.get(["a", "b", "c"])
        assert sql(path, "SELECT value FROM meta WHERE key = 'format'") == [(2,)]
        with EmbeddedStore.open(path) as renewed:
            assert sql(path, "SELECT value FROM meta WHERE key = 'format'") == [(3,)]
            assert renewed.get(["a", "b", "c"]) == before and len(renewed.history()) == 1
            renewed.relabel("a", reject=["x"])
        assert reader.get(["a"])[0].rejected == ("x",)


def everything_on_disk(path):
    return b"".join(file.read_bytes() for file in path.parent.rglob("*") if file.is_file())


def test_nothing_of_a_forgotten_document_is_left_in_any_file(path):
    secret = torch.tensor([[0.123456, -0.7, 0.3]])
    with EmbeddedStore.create(path, 3, ["x"]) as store:
        store.add([Document(f"text {i}", ("x",)) for i in range(50)], torch.randn(50, 3))
        store.add([Document("the unspeakable text", ("x", "unspeakable label"), "that one")], secret)
        stored = unit_rows(secret, 3).numpy().astype("<f4").tobytes()
        store.relabel("that one", add=["second label"])
        store.remove(["that one"])
        store.undo(4)
        for mark in (b"unspeakable text", b"unspeakable label", b"second label", stored):
            assert mark in everything_on_disk(path)
        store.forget("that one", source="a request")
        store.vacuum()
        left = everything_on_disk(path)
        for mark in (b"unspeakable text", b"unspeakable label", b"second label", stored):
            assert mark not in left
        assert left.count(b"that one") == 1 and store.labels == ("x",)
    assert everything_on_disk(path).count(b"that one") == 1


def test_vacuum_that_a_reader_keeps_from_ending_says_so(store, path):
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM documents").fetchone()
        store.forget("a")
        with pytest.raises(StoreError, match="Vacuum again"), EmbeddedStore.open(path, patience=0.1) as second:
            second.vacuum()
        assert store.ids() == ["b", "c"]
    store.vacuum()

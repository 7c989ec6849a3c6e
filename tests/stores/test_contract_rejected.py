"""The contract of every datastore on rejected labels; the kinds are in kinds.py."""

from datetime import timedelta

import pytest
import torch
from kinds import everything, vectors

from denn.datastore import Datastore
from denn.errors import DataError, StoreError
from denn.methods.first_labels import with_first_labels
from denn.progress import Silent
from denn.stores.copying import copy
from denn.stores.embedded.temporary import MemoryStore
from denn.types import Document, Where

A = Document("one", ("x",), "a", ("no", "never"))
B = Document("two", ("y", "no"), "b")
C = Document("three", (), "c", ("x",))


def filled(make) -> Datastore:
    store = make.create(labels=["x"])
    store.add([A, B, C], torch.eye(3))
    return store


def of(store: Datastore, id: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    (document,) = store.get([id])
    return document.labels, document.rejected


def test_a_document_rejects_nothing_that_it_has():
    assert Document("d", ["x"], rejected=["y", "z", "y"]) == Document("d", ("x",), None, ("y", "z"))
    assert Document("d", rejected=[]) == Document("d")
    with pytest.raises(DataError, match="'x' is both given and rejected"):
        Document("d", ("w", "x"), rejected=("x",))
    with pytest.raises(TypeError, match="rejected must be a list"):
        Document("d", rejected="x")


def test_rejected_labels_are_kept_and_not_counted(make):
    filled(make)
    for store in (make.reopen(), make.open()):
        assert store.get(["c", "a", "b"]) == [C, A, B]
        assert [document for documents, _ in store.export(2) for document in documents] == [A, B, C]
        assert store.labels[0] == "x" and set(store.labels) == {"x", "y", "no", "never"}
        assert store.label_counts() == {name: int(name != "never") for name in store.labels}
        assert store.info()["rejections"] == 3
        assert store.select(Where(labels=("x",))) == ["a"] and store.select(Where(labels=("never",))) == []
        assert store.select(Where(labels=("no", "never"), text="o")) == ["b"]


def test_a_search_finds_them_apart(make):
    store = filled(make)
    found = store.search(torch.tensor([[3.0, 2, 1], [1, 2, 3]]), 3)
    assert found.ids == (("a", "b", "c"), ("c", "b", "a"))
    expected = [[A, B, C], [C, B, A]]
    for part, documents in ((found, expected), (found.rows(1, 2), expected[1:]), (found.nearest(2), expected)):
        nearest = [document for row in documents for document in row[: part.k]]
        assert part.labels() == [document.labels for document in nearest]
        assert part.rejected() == [document.rejected for document in nearest]
    assert found.offsets.tolist() == [0, 1, 3, 3, 3, 5, 6] and found.rejected_offsets.tolist() == [0, 2, 2, 3, 4, 4, 6]
    without = store.search(torch.eye(3)[:1], 3, exclude=["a"])
    assert without.rejected()[:2] == [(), ("x",)]


def test_a_view_of_the_first_labels_keeps_their_rejections(make):
    store = filled(make)
    found = with_first_labels(store, 1).search(torch.eye(3), 1)
    assert found.names == ("x",) and found.labels() == [("x",), (), ()] and found.rejected() == [(), (), ("x",)]
    assert with_first_labels(store, len(store.labels)) is store


def test_a_store_without_rejections_finds_none(make):
    store = make.create()
    store.add([B], torch.eye(3)[:1])
    found = store.search(torch.eye(3)[:1], 3)
    assert not len(found.rejected_offsets) and not len(found.rejected_columns) and found.rejected()[0] == ()
    assert found.rows(0, 1).rejected()[0] == found.nearest(1).rejected()[0] == ()


def test_relabelling_rejects_and_takes_back(make):
    store = filled(make)
    assert store.relabel("b", reject=["no", "new", "no"]) == 1 and of(store, "b") == (("y",), ("no", "new"))
    assert store.relabel("b", reject=["new"]) == 0
    assert store.relabel("b", add=["no"]) == 1 and of(store, "b") == (("y", "no"), ("new",))
    assert store.relabel("b", ["new", "z"]) == 1 and of(store, "b") == (("new", "z"), ())
    assert store.relabel("b", drop=["new"]) == 1 and of(store, "b") == (("z",), ())
    assert store.relabel("b", drop=["z"], reject=["z"]) == 1 and of(store, "b") == ((), ("z",))
    assert store.relabel("b", drop=["z"]) == 1 and of(store, "b") == ((), ())
    assert store.relabel(["a", "c"], ["q"]) == 2 and of(store, "a") == (("q",), ("no", "never"))
    assert of(make.reopen(), "c") == (("q",), ("x",))


@pytest.mark.parametrize("given", [{"add": ["p", "q"]}, {"labels": ["q"]}])
def test_a_label_cannot_be_given_and_rejected(make, given):
    store = filled(make)
    before = everything(store)
    with pytest.raises(DataError, match="'q' is both given and rejected"):
        store.relabel("a", **given, reject=["q"])
    with pytest.raises(TypeError, match="list of strings"):
        store.relabel("a", reject="q")
    for change in (
        lambda: store.relabel("a", reject=[" "]),
        lambda: store.add([Document("d", (), "d", ("",))], vectors(1)),
    ):
        with pytest.raises(StoreError, match="visible character"):
            change()
    assert everything(store) == before


def test_they_can_be_undone(make):
    store = filled(make)
    store.relabel("b", reject=["y"])
    store.remove("a")
    store.add([Document("other", ("x",), "c")], vectors(1))
    replaced, removed, relabelled = (change.number for change in store.history(3))
    for number in (replaced, removed, relabelled):
        store.undo(number)
    assert make.reopen().get(["a", "b", "c"]) == [A, B, C]
    make.open().undo(make.open().history()[0].number)
    assert of(make.open(), "b") == (("no",), ("y",))
    assert make.open().search(torch.eye(3), 1).rejected() == [("no", "never"), ("y",), ("x",)]


def test_vacuum_keeps_labels_that_are_only_rejected(make):
    store = filled(make)
    reader = make.open()
    store.relabel("b", ["late"], reject=["later"])
    store.vacuum()
    assert set(store.labels) == {"x", "y", "no", "never", "late", "later"}  # the history still needs y
    store.vacuum(timedelta())
    for opened in (store, reader, make.open()):
        assert set(opened.labels) == {"x", "no", "never", "late", "later"}
        assert opened.get(["a", "b", "c"]) == [A, Document("two", ("late",), "b", ("later",)), C]
        assert opened.search(torch.eye(3), 1).rejected() == [("no", "never"), ("later",), ("x",)]
    store.forget(["a", "b"])
    store.vacuum(timedelta())
    assert reader.labels == ("x",) and of(reader, "c") == ((), ("x",)) and reader.info()["rejections"] == 1


def test_a_copy_keeps_them(make):
    source = filled(make)
    target = MemoryStore.create("memory:", 3, source.labels)
    assert copy(source, target, Silent()) == 3 and target.get(["a", "b", "c"]) == [A, B, C]


def test_another_process_sees_a_rejection(make):
    store = make.create()
    store.add([B], torch.eye(3)[:1])
    reader = make.open()
    assert reader.search(torch.eye(3)[:1], 1).rejected() == [()]
    store.relabel("b", reject=["no"])
    found = reader.search(torch.eye(3)[:1], 1)
    assert (found.labels(), found.rejected()) == ([("y",)], [("no",)])

"""The contract of every datastore on changes: history, undo, forgetting, filters; the kinds are in kinds.py."""

from datetime import UTC, datetime, timedelta, timezone
from functools import partial

import pytest
import torch
from kinds import everything, labels_of, vectors

from denn.datastore import Datastore
from denn.errors import ConflictError, StoreError
from denn.types import Document, Where


def filled(make) -> Datastore:
    """Three documents in two changes."""
    store = make.create(labels=["x"])
    store.add([Document("one apple", ("x", "fruit"), "a"), Document("two pears", ("fruit",), "b")], torch.eye(3)[:2])
    store.add([Document("three Apples", ("y",), "c")], torch.eye(3)[2:], source="alice")
    return store


def test_vectors_and_export(make):
    store = filled(make)
    assert torch.equal(store.vectors(["c", "a"]), torch.eye(3)[[2, 0]])
    with pytest.raises(StoreError, match="'z'"):
        store.vectors(["a", "z"])
    assert store.vectors([]).shape == (0, 3)
    parts = list(store.export(2))
    assert [[document.id for document in documents] for documents, _ in parts] == [["a", "b"], ["c"]]
    assert torch.equal(torch.cat([rows for _, rows in parts]), torch.eye(3))
    assert [document for documents, _ in parts for document in documents] == store.get(["a", "b", "c"])


def test_select(make):
    store = filled(make)
    assert store.select(Where()) == ["a", "b", "c"]
    assert store.select(Where(labels=("y", "x"))) == ["a", "c"]
    assert store.select(Where(labels=("unheard of",))) == []
    assert store.select(Where(text="pple")) == ["a", "c"] and store.select(Where(text="apple")) == ["a"]
    assert store.select(Where(source="alice")) == ["c"] and store.select(Where(source="nobody")) == []
    assert store.select(Where(labels=("fruit",), text="two")) == ["b"]
    store.relabel("a", add=["z"], source="bob")
    assert store.select(Where(source="bob")) == ["a"]
    with pytest.raises(TypeError, match="list of strings"):
        Where(labels="fruit")


@pytest.mark.parametrize("empty", [{"labels": ("fruit", "")}, {"text": ""}, {"source": ""}])
def test_an_empty_value_describes_nothing(empty):
    with pytest.raises(ValueError, match="got an empty"):
        Where(**empty)


def test_every_document_is_changed_only_on_request(make):
    store = filled(make)
    before = everything(store)
    for change in (store.remove, store.forget, partial(store.relabel, add=["z"])):
        with pytest.raises(StoreError, match="everything=True"):
            change(Where())
    assert everything(store) == before and store.remove([]) == store.forget([]) == 0
    assert store.relabel(Where(), add=["z"], everything=True) == 3
    assert store.remove(Where(), everything=True) == 3 and len(store) == 0


def test_undoing_back_and_forth_ends_where_it_says(make):
    store = filled(make)
    number = store.history()[0].number  # the add of c
    for undone in (True, False, True, False, True, False):
        newest = store.history()[0].number
        store.undo(newest)
        assert ("c" not in store.ids()) == undone
        if undone:
            with pytest.raises(ConflictError, match="already undone"):
                store.undo(number)
    store.undo(number)
    assert "c" not in store.ids()


@pytest.mark.parametrize("keep", [timedelta(-1), timedelta.min])
def test_a_negative_age_is_refused(make, keep):
    store = filled(make)
    with pytest.raises(StoreError, match="expected 0 or more"):
        store.vacuum(keep)
    assert store.undo(store.history()[0].number) == 1


def test_any_age_can_be_kept(make):
    store = filled(make)
    store.vacuum(timedelta.max)
    assert store.undo(store.history()[0].number) == 1
    assert store.ids() == ["a", "b"]


def test_select_by_time(make):
    store = make.create()
    times = []
    for id in "abc":
        times.append(datetime.now(UTC))
        store.add([Document(id, id=id)], vectors(1))
    assert store.select(Where(since=times[1])) == ["b", "c"]
    assert store.select(Where(before=times[1])) == ["a"]
    assert store.select(Where(since=times[1], before=times[2])) == ["b"]
    assert store.select(Where(since=times[1].astimezone().replace(tzinfo=None))) == ["b", "c"]  # local time


@pytest.mark.parametrize("time", [datetime(1, 1, 1), datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))])
def test_a_time_out_of_range_is_refused(make, time):
    store = filled(make)
    for where in (Where(since=time), Where(before=time)):
        with pytest.raises(StoreError, match=r"got the time .*, expected one in the years 2 to 9998"):
            store.select(where)


def test_remove_and_relabel_what_is_described(make):
    store = filled(make)
    assert store.relabel(Where(labels=("fruit",)), drop=["fruit", "unknown"], add=["food", "x"]) == 2
    assert [document.labels for document in store.get(["a", "b", "c"])] == [("x", "food"), ("food", "x"), ("y",)]
    assert store.relabel(["a", "b"], add=["food"]) == 0
    assert store.relabel(["a", "c", "a"], ["y", "x", "y"], drop=["x"]) == 1
    assert store.get(["a"])[0].labels == ("y",)
    assert store.remove(Where(labels=("y",))) == 2 and store.ids() == ["b"]
    assert store.remove(Where(labels=("y",))) == 0
    assert store.remove("b") == 1 and len(store) == 0
    assert [change.action for change in store.history()] == ["remove", "remove", "relabel", "relabel", "add", "add"]


def test_history(make):
    began = datetime.now(UTC)
    store = filled(make)
    store.relabel("a", ["q"], source="bob")
    store.remove(["b", "a"], source="carol")
    newest = make.reopen().history()
    assert [(change.action, change.source, change.documents) for change in newest] == [
        ("remove", "carol", 2), ("relabel", "bob", 1), ("add", "alice", 1), ("add", "", 2),
    ]  # fmt: skip
    assert [change.number for change in newest] == sorted((c.number for c in newest), reverse=True)
    assert all(began <= change.time <= datetime.now(UTC) for change in newest)
    store = make.open()
    assert store.history(limit=1) == newest[:1]
    assert [change.action for change in store.history(id="b")] == ["remove", "add"]
    assert [change.action for change in store.history(id="c", limit=5)] == ["add"]
    assert store.history(id="unheard of") == []


def test_the_number_of_the_last_change_is_that_of_this_object(make):
    store = make.create()
    assert store.last_change == 0
    store.add([Document("a", ("x",), "a"), Document("b", (), "b")], vectors(2))
    changes = [
        lambda: store.relabel("a", add=["y"]), lambda: store.remove("b"), lambda: store.forget("b"),
        lambda: store.undo(2), lambda: store.add([Document("c", (), "c")], vectors(1)),
    ]  # fmt: skip
    for change in changes:
        change()
        (newest,) = store.history(1)
        assert store.last_change == newest.number
    assert store.relabel("a", add=["x"]) == 0 and store.last_change == newest.number  # nothing changed
    other = make.open()
    if other is not store:
        other.relabel("a", add=["z"])
        assert store.last_change == newest.number < other.last_change == store.history(1)[0].number


def test_history_names_documents_and_what_was_undone(make):
    store = filled(make)
    odd = ['n\x00l "quoted"', "two\nlines", "日本", "one more"]
    store.add([Document("x", (), id) for id in odd], vectors(4))
    added = store.history()[0].number
    store.undo(added)
    undo, add = make.open().history(2)
    assert (undo.action, undo.undoes, undo.undone, undo.undoable) == ("undo", added, False, True)
    assert (add.undoes, add.undone, add.undoable) == (None, True, True)
    assert sorted(add.ids) == sorted(undo.ids) == sorted(odd[:3]) and add.documents == 4
    store.undo(undo.number)  # a redo
    assert [change.undone for change in store.history(3)] == [False, True, False]
    store.forget(odd)
    assert [(change.ids, change.undoable) for change in store.history(2)] == [((), False), ((), True)]


def test_undo_each_kind_of_change(make):
    store = filled(make)
    states = [everything(store)]
    store.relabel(["a", "c"], ["n"])
    states.append(everything(store))
    store.remove(["b", "c"])
    states.append(everything(store))
    store.add([Document("new a", ("m",), "a"), Document("d", (), "d")], torch.tensor([[0.0, 0, 1], [1, 1, 1]]))
    done = [change.number for change in store.history()[:3]]
    for number, state in zip(done, reversed(states), strict=True):
        store.undo(number, source="regret")
        now = everything(make.open())
        assert now[1] == state[1] and now[3:] == state[3:]
        assert {name: count for name, count in now[2].items() if count} == {n: c for n, c in state[2].items() if c}
    assert [change.action for change in store.history(3)] == ["undo"] * 3
    assert store.history()[0].source == "regret"
    store.undo(store.history()[-1].number)
    assert make.reopen().ids() == ["c"]


def test_an_undo_can_be_undone(make):
    store = filled(make)
    store.relabel("a", ["n"])
    relabelled = store.history()[0].number
    store.undo(relabelled)
    assert store.get(["a"])[0].labels == ("x", "fruit")
    with pytest.raises(StoreError, match="already"):
        store.undo(relabelled)
    store.undo(store.history()[0].number)
    assert make.reopen().get(["a"])[0].labels == ("n",)
    make.open().undo(relabelled)
    assert make.open().get(["a"])[0].labels == ("x", "fruit")


def test_an_undo_of_what_has_no_ground_any_more_is_an_error(make):
    store = make.create()
    store.add([Document("a", ("x",), "a")], vectors(1))
    store.relabel("a", ["y"])
    added, relabelled = (change.number for change in reversed(store.history()))
    store.undo(relabelled)
    undone = store.history()[0].number
    store.undo(added)
    with pytest.raises(StoreError, match=f"change {undone} cannot be undone"):
        store.undo(undone)  # relabelling a missing document again
    assert make.reopen().ids() == []


def test_undo_what_was_changed_later_is_an_error(make):
    store = filled(make)
    store.relabel("a", ["n"])
    first, relabelled = store.history()[-1].number, store.history()[0].number
    before = everything(store)
    with pytest.raises(StoreError, match=rf"change {first} cannot be undone: change {relabelled} .*'a'.*first"):
        store.undo(first)
    with pytest.raises(StoreError, match="no change 99"):
        store.undo(99)
    assert everything(store) == before
    store.undo(relabelled)
    assert store.undo(first) == 2 and make.reopen().ids() == ["c"]


def test_forget(make):
    store = filled(make)
    store.relabel("a", ["secret"])
    store.remove(["b"])
    removed = store.history()[0].number
    assert store.forget(["a", "b"], source="a request") == 2  # b is only in the history
    for opened in (store, make.open()):
        assert opened.ids() == ["c"]
        assert opened.history(id="a") == opened.history(id="b") == []
        assert opened.history()[0].action == "forget" and opened.history()[0].documents == 2
    with pytest.raises(StoreError, match="'a' was forgotten on"):
        store.add([Document("again", id="a"), Document("new", id="n")], vectors(2))
    with pytest.raises(StoreError, match="cannot be undone"):
        store.undo(store.history()[0].number)
    before = store.history()
    assert store.undo(removed) == 0 and store.ids() == ["c"]  # nothing is left to restore
    assert store.history() == make.open().history() == before and not any(change.undone for change in before)
    with pytest.raises(StoreError, match="'a'"):
        store.forget("a")
    assert store.forget(Where(labels=("y",))) == 1 and len(make.reopen()) == 0


def test_vacuum_drops_unused_labels_and_old_pasts(make):
    store = filled(make)
    reader = make.open()
    assert len(reader) == 3
    store.relabel("c", ["late", "x"])
    store.remove(["b"])
    removed = store.history()[0].number
    store.vacuum()
    assert store.labels == ("x", "fruit", "y", "late")  # the history still needs y
    store.vacuum(keep=timedelta(0))
    for opened in (store, reader, make.open()):
        assert opened.labels == ("x", "fruit", "late")
        assert opened.get(["c", "a"])[0].labels == ("late", "x") and opened.label_counts()["late"] == 1
        found = opened.search(torch.eye(3)[2:], 1)
        assert labels_of(opened, found, 0, 0) == ("late", "x")
        assert len(opened.history()) == 4
    with pytest.raises(StoreError, match="vacuum"):
        store.undo(removed)
    store.add([Document("after", ("later still",), "d")], torch.ones(1, 3))
    assert reader.labels == ("x", "fruit", "late", "later still") and reader.ids() == ["a", "c", "d"]


def test_a_change_of_nothing_leaves_no_trace(make):
    store = filled(make)
    before = store.history()
    assert store.relabel("a", ["x", "fruit"]) == store.remove([]) == store.forget([]) == 0
    assert store.history() == before


def test_confirmed_and_unlabelled_documents_are_found(make):
    store = filled(make)
    store.add([Document("blank", (), "e"), Document("no", (), "f", ("x",))], vectors(2))
    assert store.select(Where(unlabelled=True)) == ["e"] and store.select(Where(labels=("x",), unlabelled=True)) == []
    before = store.get(["a"])
    assert store.relabel("a", confirm=True, source="bob") == 1 and store.get(["a"]) == before
    assert store.relabel("b", reject=["sport"], confirm=True) == 1
    assert store.select(Where(action="confirm")) == make.open().select(Where(action="confirm")) == ["a", "b"]
    assert store.history(1)[0].action == "confirm" and store.get(["b"])[0].rejected == ("sport",)
    store.undo(store.history(1)[0].number)
    assert store.select(Where(action="confirm")) == ["a"] and store.get(["b"])[0].rejected == ()
    store.relabel("a", add=["more"])
    assert store.select(Where(action="confirm")) == []
    with pytest.raises(ValueError, match="empty action"):
        Where(action="")

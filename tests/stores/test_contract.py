"""The contract of every datastore on documents and searches; the kinds are in kinds.py."""

import threading
from datetime import timedelta

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kinds import everything, labels_of, vectors

from denn.datastore import Datastore
from denn.errors import DataError, StoreError
from denn.types import Document


def test_it_is_a_datastore(make):
    assert isinstance(make.create(), Datastore)


def test_empty_store(make):
    store = make.create(dimension=5, labels=["b", "a"])
    found = store.search(torch.ones(2, 5), 7)
    assert (len(store), store.labels, store.dimension) == (0, ("b", "a"), 5)
    assert store.label_counts() == {"b": 0, "a": 0}
    assert found.ids == ((), ())
    assert found.similarity.shape == (2, 0)
    assert found.offsets.tolist() == [0] and found.label_columns.tolist() == []
    assert store.add([], torch.zeros(0, 5)) == [] and store.remove([]) == 0 and store.get([]) == []


def test_given_labels_stay_apart_from_those_that_documents_bring(make):
    store = make.create(labels=["b", "a"])
    assert store.given_labels == ("b", "a")
    store.add([Document("one", ("new", "a"), "one", ("no",))], vectors(1))
    assert store.labels == ("b", "a", "new", "no")
    store.forget("one")
    store.vacuum()
    assert store.given_labels == make.open().given_labels == store.labels == ("b", "a")


def test_no_queries(make):
    store = make.create()
    store.add([Document("a", id="a")], vectors(1))
    found = store.search(torch.zeros(0, 3), 4)
    assert found.ids == () and found.similarity.shape == (0, 1) and found.offsets.tolist() == [0]


def test_k_larger_than_the_store(make):
    store = make.create()
    store.add([Document("a", ("x",), "a"), Document("b", (), "b")], torch.tensor([[1.0, 0, 0], [0, 1, 0]]))
    found = store.search(torch.tensor([[0.0, 2, 0], [3, 1, 0]]), 10)
    assert found.k == 2 and found.ids == (("b", "a"), ("a", "b"))
    assert found.similarity.dtype == torch.float32
    assert torch.allclose(found.similarity, torch.tensor([[1, 0], [3 / 10**0.5, 1 / 10**0.5]]))
    assert [labels_of(store, found, 0, place) for place in (0, 1)] == [(), ("x",)]


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_is_an_error(make, k):
    with pytest.raises(StoreError, match="at least 1"):
        make.create().search(torch.ones(1, 3), k)


def test_duplicate_texts_stay_apart(make):
    store = make.create()
    ids = store.add([Document("same", ("x",)), Document("same", ("y",)), Document("same")], torch.ones(3, 3))
    assert len(set(ids)) == 3 and len(store) == 3
    assert [document.labels for document in store.get(ids)] == [("x",), ("y",), ()]
    assert store.search(torch.ones(1, 3), 3).ids == (tuple(ids),)  # equal similarities in the order of adding


def test_zero_and_extreme_vectors(make):
    store = make.create()
    rows = torch.tensor([[0.0, 0, 0], [1e-30, 0, 0], [0, 1e30, 1e30]])
    store.add([Document(name, id=name) for name in ("zero", "tiny", "huge")], rows)
    found = store.search(torch.tensor([[1.0, 0, 0], [0, 5, 5], [0, 0, 0]]), 3)
    assert found.similarity[0].tolist() == [1, 0, 0] and found.ids[0] == ("tiny", "zero", "huge")
    assert found.ids[1][0] == "huge" and found.similarity[1, 0].item() == pytest.approx(1)
    assert found.similarity[2].tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_any_float_dtype(make, dtype):
    store = make.create()
    store.add([Document("a", id="a"), Document("b", id="b")], torch.tensor([[3, 4, 0], [0, 0, 9]], dtype=dtype))
    found = store.search(torch.tensor([[6, 8, 0]], dtype=dtype), 2)
    assert found.ids == (("a", "b"),) and found.similarity.tolist() == [[pytest.approx(1), 0]]


ODD = [
    "",
    " ",
    "a,b;c|d",
    "né\u0301e",
    "日本語",
    "👩‍🔬",
    "line\nbreak",
    "nul\0inside",
    "'; DROP TABLE labels;--",
    "x" * 20_000,
]


def test_odd_labels_ids_and_texts_survive(make):
    store = make.create()
    names = [odd for odd in ODD if odd.strip() and "\n" not in odd]
    documents = [Document(odd, ("common", *([odd] if odd in names else [])), odd) for odd in ODD]
    assert store.add(documents, vectors(len(ODD))) == ODD
    store = make.reopen()
    assert store.get(ODD) == documents
    assert store.labels == ("common", *names)
    assert store.label_counts() == {odd: 1 for odd in names} | {"common": len(ODD)}


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [*((blank, "visible character") for blank in ("", " ", "\t\n", "\u3000")), ("y\nz", "expected one line")],
)
def test_blank_labels_and_those_of_several_lines_are_refused(make, wrong, expected):
    store = make.create()
    store.add([Document("a", ("x",), "a")], vectors(1))
    before = everything(store)
    for change in (
        lambda: store.add([Document("b", ("y", wrong), "b")], vectors(1)),
        lambda: store.relabel("a", ["z", wrong]),
        lambda: store.relabel("a", add=[wrong]),
    ):
        with pytest.raises(StoreError, match=expected):
            change()
    assert everything(store) == before


def test_ids_that_a_store_makes_never_meet_given_ones(make):
    store = make.create()
    given = ["doc-999999999999999", "doc-1000000000000001", "doc-1000000000000003"]
    for id in given:
        store.add([Document(f"given {id}", id=id)], vectors(1))
    store.add([Document("taken out", id="doc-1000000000000004")], vectors(1))
    store.remove("doc-1000000000000004")
    store.forget(store.add([Document("forgotten", id="doc-1000000000000006")], vectors(1)))
    made = store.add([Document("new"), Document("mine", id="doc-1000000000000008"), Document("new")], vectors(3))
    made += store.add([Document("new") for _ in range(3)], vectors(3))
    assert len(set(made)) == 6 and not {*given, "doc-1000000000000004", "doc-1000000000000006"} & set(made)
    assert [document.text for document in store.get(given)] == [f"given {id}" for id in given]


def test_labels_found_keep_their_names_when_a_vacuum_renumbers_them(make):
    store, other = make.create(labels=["first"]), make.open()
    store.add([Document("a", ("goes",), "a"), Document("b", ("stays", "first"), "b")], torch.eye(3)[:2])
    found = store.search(torch.eye(3)[1:2], 1)
    other.remove("a")
    other.vacuum(timedelta())
    assert store.labels == ("first", "stays")
    assert [found.names[column] for column in found.label_columns.tolist()] == ["stays", "first"]
    again = store.search(torch.eye(3)[1:2], 1)
    assert [again.names[column] for column in again.label_columns.tolist()] == ["stays", "first"]


def test_documents_that_are_gone_are_left_out_on_request(make):
    store = make.create()
    store.add([Document("one", ("x",), "a"), Document("two", (), "b")], vectors(2))
    store.remove("b")
    with pytest.raises(StoreError, match="'b'"):
        store.get(["b", "a"])
    assert store.get(["b", "a", "c", "a"], missing_ok=True) == [Document("one", ("x",), "a")] * 2
    assert store.texts(["b", "a", "c", "a"]) == {"a": "one"} and store.texts([]) == {}


def test_text_that_is_not_unicode_is_an_error(make):
    store = make.create()
    with pytest.raises(StoreError, match="Unicode"):
        store.add([Document("fine", id="a"), Document("half a pair \ud800", id="b")], vectors(2))
    assert len(store) == 0


@pytest.mark.parametrize("count", [4271, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_labels(make, count):
    names = [f"label {i}" for i in range(count)]
    store = make.create(labels=names)
    store.add([Document("all", tuple(names), "all"), Document("one", (names[-1],), "one")], torch.eye(3)[:2])
    store = make.reopen()
    counts = store.label_counts()
    assert list(counts) == names and [counts[names[0]], counts[names[-1]]] == [1, 2]
    found = store.search(torch.eye(3)[:1], 2)
    assert labels_of(store, found, 0, 0) == tuple(names) and labels_of(store, found, 0, 1) == (names[-1],)


def test_replace_by_id(make):
    store = make.create()
    store.add([Document("old", ("x",), "a"), Document("other", ("x",), "b")], torch.eye(3)[:2])
    assert store.add([Document("new", ("y", "x"), "a")], torch.eye(3)[2:]) == ["a"]
    for opened in (store, make.open()):
        assert len(opened) == 2
        assert opened.get(["a"]) == [Document("new", ("y", "x"), "a")]
        assert opened.label_counts() == {"x": 2, "y": 1}
        found = opened.search(torch.eye(3), 1)
        assert found.ids[1:] == (("b",), ("a",)) and found.similarity[0].tolist() == [0]


def test_same_id_twice_in_one_add_is_an_error(make):
    store = make.create()
    with pytest.raises(StoreError, match="'a' more than once"):
        store.add([Document("1", id="a"), Document("2"), Document("3", id="a")], vectors(3))
    assert len(store) == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_add_is_all_or_nothing(make, value):
    store = make.create(labels=["x"])
    store.add([Document("kept", ("x",), "a")], vectors(1))
    before = everything(store)
    rows = vectors(3)
    rows[2, 1] = value
    with pytest.raises(DataError, match=r"vector 2 .*not finite"):
        store.add([Document("changed", id="a"), Document("new", ("y",)), Document("bad")], rows)
    assert everything(store) == before == everything(make.reopen())


@pytest.mark.parametrize("shape", [(2, 4), (2,), (3, 3)])
def test_embeddings_of_another_shape_are_an_error(make, shape):
    store = make.create()
    with pytest.raises(StoreError, match="expected"):
        store.add([Document("a"), Document("b")], torch.ones(shape))
    assert len(store) == 0


@pytest.mark.parametrize("shape", [(2, 4), (3,)])
def test_queries_of_another_shape_are_an_error(make, shape):
    with pytest.raises(StoreError, match=r"expected \(n, 3\)"):
        make.create().search(torch.ones(shape), 1)


def test_unknown_ids_are_errors_and_change_nothing(make):
    store = make.create()
    store.add([Document("a", ("x",), "a")], vectors(1))
    before = everything(store)
    for call in (
        lambda: store.remove(["a", "b"]),
        lambda: store.relabel("b", ["y"]),
        lambda: store.get(["a", "b"]),
    ):
        with pytest.raises(StoreError, match="'b'"):
            call()
    assert everything(store) == before == everything(make.reopen())


def test_remove(make):
    store = make.create()
    store.add([Document(id, (f"label {id}", "all"), id) for id in "abcdef"], torch.eye(6, 3))
    assert store.remove(["b", "e", "b"]) == 2
    for opened in (store, make.open()):
        assert len(opened) == 4
        assert opened.label_counts() == {"label a": 1, "all": 4} | {f"label {id}": int(id in "acdf") for id in "bcdef"}
        assert set(opened.search(torch.ones(1, 3), 9).ids[0]) == set("acdf")


def test_relabel(make):
    store = make.create(labels=["x", "y"])
    store.add([Document("a", ("x",), "a"), Document("b", ("y",), "b")], torch.eye(3)[:2])
    store.relabel("a", ["new", "y", "new"])
    for opened in (store, make.open()):
        assert opened.labels == ("x", "y", "new")
        assert opened.get(["b", "a"]) == [Document("b", ("y",), "b"), Document("a", ("new", "y"), "a")]
        assert opened.label_counts() == {"x": 0, "y": 2, "new": 1}
        found = opened.search(torch.eye(3)[:1], 2)
        assert found.ids == (("a", "b"),) and labels_of(opened, found, 0, 0) == ("new", "y")
    make.open().relabel("a", [])
    assert make.open().get(["a"])[0].labels == ()


def test_labels_given_as_one_string_are_an_error(make):
    store = make.create()
    store.add([Document("a", id="a")], vectors(1))
    with pytest.raises(TypeError, match="list of strings"):
        store.relabel("a", "sport")
    assert store.labels == ()


def test_get_follows_the_order_of_the_ids(make):
    store = make.create()
    store.add([Document(f"text {id}", (id,), id) for id in "abc"], vectors(3))
    assert [document.text for document in store.get(["c", "a", "c"])] == ["text c", "text a", "text c"]


def test_ids_are_never_given_twice(make):
    store = make.create()
    store.add([Document("taken", id="doc-2"), Document("taken too", id="doc-4")], vectors(2))
    given = []
    for _ in range(4):
        given += store.add([Document("nameless"), Document("nameless too")], vectors(2))
        store.remove(given[-2:])
        store = make.reopen()
    assert len(set(given)) == 8 and not {"doc-2", "doc-4"} & set(given)
    assert [document.text for document in store.get(["doc-2", "doc-4"])] == ["taken", "taken too"]


def test_ids_that_look_made_are_never_made(make):
    store = make.create()
    (made,) = store.add([Document("first")], vectors(1))
    taken = [f"{made[:-1]}{int(made[-1]) + i}" for i in (1, 2, 5)]
    store.add([Document("given", id=id) for id in taken], vectors(3))
    store.remove(taken)
    store = make.reopen()
    store.vacuum(keep=timedelta(0))
    ids = store.add([Document("nameless")] * 12, vectors(12))
    assert not {made, *taken} & set(ids) and len(set(ids)) == 12


def test_exclude(make):
    store = make.create()
    store.add([Document(id, id=id) for id in "abcd"], torch.tensor([[1.0, 0, 0], [2, 1, 0], [1, 1, 0], [0, 1, 0]]))
    query = torch.tensor([[1.0, 0, 0]])
    assert store.search(query, 2, exclude=["a", "unknown"]).ids == (("b", "c"),)
    assert store.search(query, 9, exclude={"a", "c"}).ids == (("b", "d"),)
    nothing = store.search(query, 9, exclude=list("abcd"))
    assert nothing.ids == ((),) and nothing.similarity.shape == (1, 0)


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), n=st.integers(1, 60), d=st.integers(1, 20), k=st.integers(1, 70))
def test_search_agrees_with_brute_force(make, seed, n, d, k):
    make.close()
    for file in make.path.parent.iterdir():
        file.unlink()
    store = make.create(d)
    rows, queries = vectors(n, d, seed).double(), vectors(4, d, seed + 1).double()
    ids = store.add([Document(str(i), id=f"id {i}") for i in range(n)], rows)
    gone = ids[:: 1 + seed % 7][: n - 1]
    store.remove(gone)
    excluded = ids[1 :: 2 + seed % 5]
    left = [i for i in range(n) if ids[i] not in gone and ids[i] not in excluded]
    found = store.search(queries.float(), k, exclude=excluded)
    assert found.k == min(k, len(left))
    for query, similarity, names in zip(queries, found.similarity, found.ids, strict=True):
        exact = {ids[i]: float(query @ rows[i] / (query.norm() * rows[i].norm())) for i in left}
        best = sorted(exact.values(), reverse=True)[:k]
        assert similarity.tolist() == pytest.approx(best, abs=1e-5)
        assert [exact[name] for name in names] == pytest.approx(best, abs=1e-5)
        assert len(set(names)) == len(names)


def test_everything_survives_reopening(make):
    store = make.create(labels=["seed"])
    store.add([Document(f"text {i}", (f"l{i % 3}",), f"id {i}") for i in range(20)], vectors(20))
    store.remove(["id 3", "id 19"])
    store.relabel("id 4", ["seed", "fresh"])
    store.add([Document("again", ("l1",), "id 3")], vectors(1, seed=9))
    assert everything(store) == everything(make.reopen())


def test_two_openings_see_each_other(make):
    one = make.create()
    two = make.open()
    one.add([Document("a", ("x",), "a"), Document("b", ("x",), "b")], torch.eye(3)[:2])
    assert two.search(torch.eye(3)[:1], 1).ids == (("a",),)
    two.add([Document("c", ("y", "x"), "c")], torch.eye(3)[2:])
    two.relabel("b", ["z"])
    two.remove(["a"])
    assert one is two or (one.refresh() and not one.refresh())
    assert everything(one) == everything(two)
    assert one.labels == ("x", "y", "z") and one.get(["b", "c"])[0].labels == ("z",)


def test_a_reader_never_sees_half_an_add(make):
    batch, rounds = 40, 30
    writer, reader = make.create(dimension=8), make.open()
    done = threading.Event()

    def write() -> None:
        try:
            for turn in range(rounds):
                writer.add([Document("t", (f"l{i}",)) for i in range(batch)], vectors(batch, 8, turn))
        finally:
            done.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = set()
    while not done.is_set():
        seen |= {store.search(torch.ones(1, 8), 10**6).k for store in (reader, writer)}
        seen |= {reader.label_counts().get(f"l{i}", 0) * batch for i in (0, batch - 1)}
    thread.join()
    assert {count % batch for count in seen} == {0}
    assert len(reader) == len(writer) == batch * rounds


def test_threads_share_one_store(make):
    workers, turns, size = 4, 6, 5
    problems, store = [], make.create(dimension=4)

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

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert store.label_counts() == {f"l{number}": turns * size - turns // 2 for number in range(workers)}

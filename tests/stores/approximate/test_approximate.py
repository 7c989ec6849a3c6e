"""The approximate index of the embedded datastore: what it finds."""

import threading

import pytest
import torch
import torch.nn.functional as F
from clusters import D, clustered, documents, eventually, exact
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from denn.errors import StoreError
from denn.stores.embedded import building
from denn.stores.embedded.store import EmbeddedStore
from denn.types import Document

pytestmark = pytest.mark.slow  # builds indexes; the contract has the fast part


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
    assert facts["recall"] >= building.GOAL and facts["sample"] == 200
    assert facts["lists"] // 8 <= facts["probes"] <= facts["lists"]
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


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    assert missed < 0.2 if 2 * k < n / 4 else missed == 0  # exact, because k is a large share of the store


@pytest.mark.slow
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
        except (AssertionError, StoreError) as problem:
            problems.append(problem)

    with EmbeddedStore.create(path, D, index="approximate") as store:
        threads = [threading.Thread(target=search) for _ in range(2)]
        for thread in threads:
            thread.start()
        builds = set()
        for turn in range(rounds):
            part = slice(turn * batch, (turn + 1) * batch)
            store.add(documents(batch * rounds)[part], everything[part])
            eventually(lambda: store.info().get("fresh", len(store)) <= 50)
            builds.add(store.info().get("built_seconds"))
        done.set()
        for thread in threads:
            thread.join()
        assert not problems and len(builds) > 5
        assert store.search(everything, 1).ids == tuple((f"d{i}",) for i in range(batch * rounds))

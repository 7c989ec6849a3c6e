"""Thresholds of labels that only the datastore knows: each document is judged by the others, in loops."""

import itertools
import math
from operator import mul

import pytest
import torch

from denn.config import make_recipe
from denn.core.thresholds import GRID, tune_new_label
from denn.errors import StoreError
from denn.methods.denn import DENN
from denn.methods.new_labels import CLOSE, FAR, POSITIVES, NewLabels
from denn.stores.embedded.store import EmbeddedStore
from denn.types import Document
from denn_bench.systems.knn import KNN

FALLBACK = 0.4
ABOVE = torch.ones(1, 1)  # votes of a text that make a threshold necessary


class Watched:
    """A store that counts the queries of its searches."""

    def __init__(self, store):
        self.store, self.queries = store, []

    def __getattr__(self, name):
        return getattr(self.store, name)

    def __len__(self):
        return len(self.store)

    def search(self, queries, k, exclude=()):
        self.queries.append(len(queries))
        return self.store.search(queries, k, exclude)


@pytest.fixture
def method(tmp_path):
    """DENN with three neighbours over an empty store of two dimensions; it has no network and needs none."""
    made = DENN(make_recipe("denn", {"k": 3, "vote_temperature": 0.1}).parameters)
    with EmbeddedStore.create(tmp_path / "store.sqlite", 2, ("old",)) as store:
        made.store = Watched(store)
        yield made


def put(method, degrees, labels, name="d"):
    """Store documents by their angles, on a circle; return their ids."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    documents = [Document("", labels, f"{name}{number}") for number in range(len(degrees))]
    return method.store.add(documents, torch.stack([angles.cos(), angles.sin()], dim=1).float())


def found(method, name="new", fallbacks=None):
    """Return the thresholds of one label for which a text has votes."""
    return {score: float(cut) for score, cut in thresholds(method, fallbacks)(name).items()}


def thresholds(method, fallbacks=None):
    """Return a function that asks the same object for a label's thresholds."""
    labels = NewLabels(method, fallbacks or {"final": FALLBACK})
    return lambda name="new", votes=ABOVE: labels.thresholds(votes, [name])


def judged_in_loops(method, name):
    """Return (m,1) votes and gold of all documents with the label and of the k nearest to each that are without it."""
    p, store = method.parameters, method.store
    documents = {document.id: document for document in store.get(store.ids())}
    vectors = dict(zip(store.ids(), store.vectors(store.ids()).double().tolist(), strict=True))
    positives = [id for id in documents if name in documents[id].labels]

    def nearest(own, left_out):
        cosines = {id: sum(map(mul, vectors[own], vectors[id])) for id in vectors if id not in left_out}
        return dict(sorted(cosines.items(), key=lambda pair: -pair[1])[: p.k])

    def vote(own):
        worth = nearest(own, {own})
        if isinstance(method, KNN):
            worth = {id: -p.embedding_norm * math.sqrt(max(0, 2 - 2 * cosine)) for id, cosine in worth.items()}
        shares = {id: math.exp(value / p.vote_temperature) for id, value in worth.items()}
        return sum(share for id, share in shares.items() if name in documents[id].labels) / sum(shares.values())

    rivals = set().union(*(nearest(own, set(positives)) for own in positives))
    votes = torch.tensor([[vote(id)] for id in (*positives, *rivals)])
    return votes, torch.tensor([[True]] * len(positives) + [[False]] * len(rivals))


@pytest.mark.parametrize("kind", ["denn", "knn"])
def test_documents_are_judged_without_themselves_by_the_methods_own_vote(method, kind):
    if kind == "knn":
        store, method = method.store, KNN(make_recipe("knn", {"k": 3, "vote_temperature": 2.0}).parameters)
        method.store = store
    chance = torch.Generator().manual_seed(5)
    around = torch.randn(30, generator=chance, dtype=torch.float64)
    put(method, (20 * around[:12]).tolist(), ("new", "old"), "a")
    put(method, (20 * around[12:] + 25).tolist(), ("old",), "b")
    votes, gold = judged_in_loops(method, "new")
    assert float(votes[gold].min()) < float(votes[~gold].max())  # they overlap: the threshold is a compromise
    fallbacks = {"final": FALLBACK, "neighbours": 0.9}
    expected = {score: tune_new_label(votes[:, 0], gold[:, 0], cut) for score, cut in fallbacks.items()}
    assert found(method, fallbacks=fallbacks) == pytest.approx(expected)
    assert expected["final"] != pytest.approx(FALLBACK, abs=0.01)


def test_one_document_has_exactly_the_tuned_threshold(method):
    put(method, [0.0], ("new",), "a")
    put(method, [1.0, 2.0, 3.0], ("old",), "b")
    assert thresholds(method)()["final"].tolist() == torch.tensor([FALLBACK]).tolist()
    assert method.store.queries == []


def test_documents_that_never_find_each_other_have_the_tuned_threshold(method):
    put(method, [0.0, 180.0], ("new",), "a")
    put(method, [1.0, 2.0, 3.0, 4.0, 177.0, 178.0, 179.0, 176.0], ("old",), "b")
    assert found(method) == pytest.approx({"final": FALLBACK})


def test_few_documents_hardly_move_it_and_many_decide(method):
    """Among themselves all get a vote of 1: every threshold is equally good, so the one nearest 0.5 is chosen."""
    put(method, [180.0, 181.0, 182.0, 183.0], ("old",), "b")
    moved = []
    for count in (2, 10, 40):
        put(method, [0.1 * number for number in range(count)], ("new",), "a")
        moved.append((found(method)["final"] - FALLBACK) / (0.5 - FALLBACK))
    assert moved[1:] == pytest.approx([10 / 20, 40 / 50], abs=1e-4)
    assert moved[0] < moved[1]


def test_documents_without_the_label_push_it_up_though_none_with_it_has_them_as_neighbours(method):
    """Four with the label are close together, two without it are apart; one of the two finds two of the four."""
    groups = [10.0 * number for number in range(10)]
    put(method, [group + place for group in groups for place in (0.0, 0.1, 0.2, 0.3)], ("new",), "a")
    put(method, [group + place for group in groups for place in (1.0, 1.1)], ("old",), "b")
    votes, gold = judged_in_loops(method, "new")
    assert float(votes[gold].min()) == pytest.approx(1) and votes[~gold].tolist() == pytest.approx([2 / 3] * 20, 0.01)
    assert found(method)["final"] == pytest.approx((40 * 0.67 + 10 * FALLBACK) / 50, abs=0.005)


def test_faint_votes_pull_it_down(method):
    put(method, [float(number) for number in range(0, 60, 3)], ("new",), "a")
    put(method, [float(number) + shift for number in range(0, 60, 3) for shift in (0.4, 0.8)], ("old",), "b")
    votes, gold = judged_in_loops(method, "new")
    assert float(votes[gold].max()) < FALLBACK
    assert GRID[0] < found(method)["final"] < FALLBACK - 0.03


@pytest.mark.slow
def test_the_cost_is_bounded_and_the_sample_as_good_as_the_whole(method):
    chance = torch.Generator().manual_seed(1)
    put(method, (120 * torch.rand(300, generator=chance)).tolist(), ("new",), "a")
    put(method, (30 + 120 * torch.rand(700, generator=chance)).tolist(), ("old",), "b")
    method.parameters = make_recipe("denn", {"k": 12}).parameters
    cut = found(method)["final"]
    assert method.store.queries == [POSITIVES, POSITIVES + CLOSE + FAR]
    votes, gold = judged_in_loops(method, "new")  # of all 300, and of all that are near any of them
    f1 = {at: 2 * int((votes[gold] > at).sum()) / (int((votes > at).sum()) + int(gold.sum())) for at in (*GRID, cut)}
    assert min(f1.values()) < 0.9 * max(f1.values()) and f1[cut] > 0.98 * max(f1.values())


def test_many_documents_without_the_label_count_though_few_of_them_are_judged(method):
    """Half of its documents are apart, half are among many others, all of which a low threshold would accept."""
    chance = torch.Generator().manual_seed(2)
    put(method, (300 + torch.rand(150, generator=chance)).tolist(), ("new",), "a")
    put(method, (180 * torch.rand(150, generator=chance)).tolist(), ("new",), "b")
    put(method, (180 * torch.rand(900, generator=chance)).tolist(), ("old",), "c")
    method.parameters = make_recipe("denn", {"k": 20}).parameters
    assert found(method)["final"] > FALLBACK


def test_the_sample_goes_from_the_oldest_to_the_newest(method):
    ids = put(method, [0.01 * number for number in range(1000)], ("new",), "a")
    asked = []
    vectors = method.store.vectors
    method.store.vectors = lambda some: asked.append(list(some)) or vectors(some)
    found(method)
    some, judged = asked
    assert judged == some  # there are no others, and unjudged documents of the label do not count against it
    places = [ids.index(id) for id in some]
    assert len(some) == POSITIVES and places[0] == 0 and places[-1] > 980
    assert max(b - a for a, b in itertools.pairwise(places)) <= 16


def test_a_label_is_judged_again_when_its_documents_have_changed_by_more_than_a_tenth(method):
    ask = thresholds(method)
    put(method, [float(number) for number in range(40)], ("new",), "a")
    first = ask()
    searches = len(method.store.queries)
    assert searches == 2
    put(method, [200.0, 201.0, 202.0, 203.0], ("new",), "b")  # a tenth
    assert torch.equal(ask()["final"], first["final"]) and len(method.store.queries) == searches
    put(method, [204.0], ("new",), "c")
    ask()
    assert len(method.store.queries) == searches + 2
    ask()
    assert len(method.store.queries) == searches + 2
    method.store.remove([f"a{number}" for number in range(4)])  # 41 of 45
    ask()
    assert len(method.store.queries) == searches + 2
    method.store.remove(["a4"])
    ask()
    assert len(method.store.queries) == searches + 4


def test_labels_without_a_vote_are_not_looked_at(method):
    put(method, [float(number) for number in range(40)], ("new", "other"), "a")
    labels = NewLabels(method, {"final": FALLBACK, "classifier": 0.7})
    votes = torch.tensor([[0.0, GRID[0], 0.9], [0.0, 0.0, 0.0]])
    cuts = labels.thresholds(votes, ["gone", "other", "new"])
    assert cuts["final"][:2].tolist() == pytest.approx([FALLBACK] * 2) and cuts["classifier"][0] == pytest.approx(0.7)
    assert cuts["final"][2] > FALLBACK + 0.05
    assert len(method.store.queries) == 2
    none = labels.thresholds(torch.zeros(3, 0), [])
    assert {score: cut.shape for score, cut in none.items()} == {"final": (0,), "classifier": (0,)}


def test_a_document_that_goes_between_two_looks_does_no_harm(method):
    put(method, [float(number) for number in range(40)], ("new",), "a")
    ask, vectors = thresholds(method), method.store.vectors

    def gone(ids):
        raise StoreError("has no document with the id")

    method.store.vectors = gone
    assert ask()["final"].tolist() == pytest.approx([FALLBACK])
    method.store.vectors = vectors
    assert ask()["final"].tolist() != pytest.approx([FALLBACK])


def test_rejections_count_in_the_votes_for_one_label(method):
    """A neighbour rejects a label other than the judged one, and then the judged one."""
    put(method, [0.0, 1.0, 2.0, 3.0], ("new",))
    put(method, [40.0, 41.0], ("old",), "o")
    without = found(method)
    method.store.relabel("o0", reject=["new"], add=["other"])
    method.store.relabel("d0", reject=["old"])
    assert found(method).keys() == without.keys()
    labels = NewLabels(method, {"final": FALLBACK})
    column = method.store.labels.index("new")
    near = method.search(method.store.vectors(["o1"]), 3, ["o1"])
    assert len(near.rejected_columns)
    every = method.votes(near, len(near.names))[:, column : column + 1]
    torch.testing.assert_close(labels._votes(near, column), every)

"""The centroids of an approximate index."""

import pytest
import torch
from clusters import clustered

from denn.stores.embedded import centroids
from denn.stores.embedded.centroids import Nearest, k_means


@pytest.fixture(name="hubs")
def few_hubs(monkeypatch):
    monkeypatch.setattr(centroids, "HUBS", 16)
    monkeypatch.setattr(centroids, "AROUND", 100)


def test_few_centroids_are_all_compared():
    some, vectors = clustered(50), clustered(300, seed=1)
    assert torch.equal(Nearest(some)(vectors), (vectors @ some.T).argmax(1))


def test_hubs_find_nearly_the_nearest_of_many_centroids(hubs):
    many, vectors = clustered(300), clustered(1000, seed=1)
    found, best = Nearest(many)(vectors), vectors @ many.T
    assert (found == best.argmax(1)).float().mean() > 0.95
    assert (best.gather(1, found[:, None])[:, 0] - best.max(1).values).mean() > -0.01
    assert Nearest(many)(vectors[:0]).shape == (0,)


def test_k_means_is_as_good_with_hubs(hubs, monkeypatch):
    vectors = clustered(3000)

    def closeness() -> float:
        found = k_means(vectors, 250, lambda: None)
        assert torch.allclose(found.norm(dim=1), torch.ones(250))
        return float((vectors @ found.T).max(1).values.mean())

    with_hubs = closeness()
    monkeypatch.setattr(centroids, "AROUND", 250)
    assert with_hubs > closeness() - 0.005

"""A store with an approximate index, and limits that make it due at once."""

import pytest
from clusters import D, clustered, documents

from denn.stores import keeper
from denn.stores.embedded import EmbeddedStore


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

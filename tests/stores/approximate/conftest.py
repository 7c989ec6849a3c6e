"""A store with an approximate index, and limits that make it due at once."""

import pytest
from clusters import D, clustered, documents

from denn.stores.embedded import index_maintenance
from denn.stores.embedded.store import EmbeddedStore


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
    """Check at every call, and build after a few documents."""
    monkeypatch.setattr(index_maintenance, "LOOK", 0.0)
    monkeypatch.setattr(index_maintenance, "FRESH", 50)
    monkeypatch.setattr(index_maintenance, "FRESH_SHARE", 0.0)

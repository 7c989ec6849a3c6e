"""Unused schemas, and a small store in one."""

import uuid

import pytest
import torch
from postgres_server import server

from denn.stores.postgres.store import PostgresStore
from denn.types import Document


@pytest.fixture(name="address")
def free_schema():
    return server().address(f"test {uuid.uuid4()}")


@pytest.fixture(name="store")
def small_store(address):
    with PostgresStore.create(address, 3, ["x"]) as store:
        store.add([Document(f"text {id}", ("x", id), id) for id in "abc"], torch.eye(3))
        yield store


@pytest.fixture(name="small_index")
def index_from_400(monkeypatch):
    monkeypatch.setattr("denn.stores.postgres.search.INDEX_FROM", 400)

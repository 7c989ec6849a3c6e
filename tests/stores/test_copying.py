"""Copies between datastores, and the addresses they are found at."""

import pytest
import torch

from denn.errors import StoreError
from denn.progress import Silent
from denn.stores.address import create_store, kind_of, open_store, use
from denn.stores.copying import copy
from denn.stores.embedded.store import EmbeddedStore
from denn.stores.embedded.temporary import MemoryStore
from denn.types import Document


def filled(count=10):
    store = MemoryStore.create("memory:", 4, ["given", "unused"])
    rows = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    store.add([Document(f"text {i}\0", (f"l{i % 3}", "given"), f"id {i}") for i in range(count)], rows)
    return store


def test_a_copy_is_the_same_but_for_the_history(tmp_path):
    source = filled()
    source.remove(["id 3"])
    with EmbeddedStore.create(tmp_path / "copy", 4, source.labels) as target:
        assert copy(source, target, Silent()) == 9
        assert target.ids() == source.ids() and target.labels == source.labels
        assert target.get(target.ids()) == source.get(source.ids())
        assert torch.allclose(target.vectors(target.ids()), source.vectors(source.ids()), atol=1e-6)
        assert [change.source for change in target.history()] == ["copy"]


def test_only_an_empty_store_of_the_same_width_is_filled():
    with pytest.raises(StoreError, match="contains 10 documents, expected none"):
        copy(filled(), filled(), Silent())
    with pytest.raises(StoreError, match="dimension 3, expected 4"):
        copy(filled(), MemoryStore.create("memory:", 3), Silent())


def test_a_copy_that_differs_is_noticed():
    class Forgetful(MemoryStore):
        def add(self, documents, embeddings, *, source=""):
            return super().add(documents[:-1], embeddings[:-1], source=source)

    class Rounding(MemoryStore):
        def add(self, documents, embeddings, *, source=""):
            return super().add(documents, embeddings.bfloat16(), source=source)

    for kind in (Forgetful, Rounding):
        with pytest.raises(StoreError, match="the copy differs"):
            copy(filled(), kind.create("memory:", 4), Silent())


def test_addresses(tmp_path):
    kinds = {
        "some/path": "embedded", tmp_path: "embedded", "memory:": "memory", "postgresql://h/d": "postgres",
        "postgres://h/d?schema=s": "postgres",
    }  # fmt: skip
    assert {address: kind_of(address) for address in kinds} == kinds
    with pytest.raises(StoreError, match=r"got the address 'http://x', expected a path, postgresql://"):
        kind_of("http://x")
    create_store(tmp_path / "a", 2, ("x",)).close()
    with open_store(tmp_path / "a", read_only=True) as store:
        assert store.labels == ("x",)
    with pytest.raises(StoreError, match="has no datastore"):
        open_store(tmp_path)
    with pytest.raises(StoreError, match="ends with its process"):
        open_store("memory:")


def test_a_model_uses_a_store_that_fits(tmp_path):
    model = tmp_path / "model"
    (model / "store").mkdir(parents=True)
    (model / "labels.txt").write_text("x\ny\n")
    create_store(model / "store" / "store.sqlite", 2, ("x", "y")).close()
    for name, width, labels in (("good", 2, ("x", "y", "z")), ("wide", 3, ("x", "y")), ("other", 2, ("y", "x"))):
        create_store(tmp_path / name, width, labels).close()
    use(model, tmp_path / "good")
    with open_store(model) as store:
        assert store.labels == ("x", "y", "z")
    for name, said in (("wide", "dimension 3, expected 2"), ("other", "does not begin with the model's labels")):
        with pytest.raises(StoreError, match=said):
            use(model, tmp_path / name)
        with open_store(model) as store:
            assert store.labels == ("x", "y", "z")
    use(model, None)
    with open_store(model) as store:
        assert store.labels == ("x", "y")

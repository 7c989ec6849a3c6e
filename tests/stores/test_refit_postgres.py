"""A refit of a model whose datastore is in PostgreSQL."""

import shutil
from pathlib import Path

import postgres_server
import pytest

import denn
from denn.progress import Silent
from denn.renewing import renew
from denn.service.changes import Changes
from denn.stores.address import create_store, open_store, use
from denn.stores.copying import copy

pytestmark = pytest.mark.slow  # has a server


def test_a_refit_from_a_database(tiny_model, tmp_path):
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    address = postgres_server.address_of(tmp_path / "address", fresh=True)
    with open_store(folder, read_only=True) as own, create_store(address, own.dimension, own.labels) as shared:
        copy(own, shared, Silent())
    use(folder, address)
    later = [denn.Document(f"gambit bishop knight {n}", ("chess",), f"later-{n}") for n in range(20)]
    counted = Changes()
    with denn.load(folder) as model:
        assert counted.count(model.store, model.card) == 0  # a copy changes nothing
        model.add(later)
        assert counted.count(model.store, model.card) == 20
        denn.refit(folder).close()
        renewed = renew(model)
        assert renewed.store is model.store and "chess" in renewed.predict(["gambit bishop and a knight"])[0].labels
        assert counted.count(renewed.store, renewed.card) == 0
        renewed.store.relabel("later-1", add=["sport"])
        renewed.store.undo(renewed.store.history(1)[0].number)
        assert counted.count(renewed.store, renewed.card) == 2
        changes = [change.number for change in model.store.history()]
    with denn.refit(folder) as after:
        assert [change.number for change in after.store.history()] == changes  # nothing was written to it
        (prediction,) = after.predict(["gambit bishop and a knight"])
        assert prediction.parts["chess"].keys() == {"classifier", "neighbours", "words"}
        assert "chess" in prediction.labels
        held_out = after.card.refitted["held_out"]
        assert after.card.refitted["documents"] + held_out == 60 + 60 + 20
        assert after.forget(["valid-1", "later-0"]) == 2
    with denn.refit(folder) as after:
        assert after.card.refitted["documents"] + after.card.refitted["held_out"] == 60 + 60 + 20 - 2


def test_a_merge_in_a_database(tiny_model, tmp_path):
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    address = postgres_server.address_of(tmp_path / "address", fresh=True)
    with open_store(folder, read_only=True) as own, create_store(address, own.dimension, own.labels) as shared:
        copy(own, shared, Silent())
    use(folder, address)
    with denn.load(folder) as model:
        before = model.label_counts()
        assert model.merge_labels(["sport"], "music") == before["sport"]
        assert "sport" not in model.label_counts() and "music" in model.predict(["goal match team"])[0].labels
        model.store.undo(model.store.history(1)[0].number)
        assert model.label_counts() == before and model.merges() == {}

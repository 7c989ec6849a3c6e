"""A model of every format that ever existed: it loads, predicts as it did, and can be upgraded and brought back.

Each folder in `formats` was trained and scored by the last version of denn that wrote its formats. Store format 3 and
bundle format 4 are the current ones; a new format adds a folder here.
"""

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import torch

import denn
from denn import bundle, upgrading
from denn.errors import BundleError, ConflictError, StoreError
from denn.progress import Silent
from denn.stores.embedded.sqlite import FORMAT as STORE_FORMAT
from denn.stores.embedded.store import EmbeddedStore

pytestmark = pytest.mark.slow  # loads models
FORMATS = Path(__file__).parent / "formats"
NAMES = sorted(folder.name for folder in FORMATS.iterdir())


def numbers(name: str) -> tuple[int, int]:
    _, bundle_format, _, store_format = name.split("-")
    return int(bundle_format), int(store_format)


def formats(folder: Path) -> tuple[int, int | None]:
    found = upgrading.plan(folder).before
    return found.bundle, found.store


@pytest.fixture
def then(request, tmp_path):
    """A copy of a former model, with what it said."""
    folder = Path(shutil.copytree(FORMATS / request.param, tmp_path / "former"))
    return folder / "model", json.loads((folder / "scores.json").read_text(encoding="utf-8"))


def check_same(folder: Path, said: dict) -> None:
    with denn.load(folder) as model:
        scores = model.scores(said["texts"])
        assert list(scores.names) == said["names"]
        for name, part in {"final": scores.final, **scores.parts}.items():
            torch.testing.assert_close(part, torch.tensor(said[name]), atol=1e-6, rtol=0)
        assert [list(one.labels) for one in model.predict(said["texts"])] == said["labels"]


def content(folder: Path) -> dict[str, str]:
    """Return a digest of each file but the datastore's, and of the datastore's documents."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "store")
    found = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    with EmbeddedStore.open(shutil.copy(folder / "store" / "store.sqlite", folder.parent / "look")) as store:
        return found | {
            document.id: repr((document, store.vectors([document.id]))) for document in store.get(store.ids())
        }


def test_there_is_one_of_every_format():
    found = [numbers(name) for name in NAMES]
    assert {one for one, _ in found} == set(bundle.FORMATS)
    assert {store for _, store in found} == set(range(1, STORE_FORMAT + 1))


@pytest.mark.parametrize("then", NAMES, indirect=True)
def test_it_loads_and_predicts_as_it_did(then):
    check_same(*then)


@pytest.mark.parametrize("then", NAMES, indirect=True)
def test_it_is_upgraded_and_brought_back(then, request):
    folder, said = then
    name = request.node.callspec.params["then"]
    assert formats(folder) == numbers(name)
    before = content(folder)
    assert upgrading.plan(folder).steps == upgrading.upgrade(folder, Silent()).steps
    current = numbers(name) == (4, 3)
    assert formats(folder) == (4, 3)
    assert (folder / upgrading.KEPT).exists() != current
    assert not upgrading.upgrade(folder, Silent()).steps  # a second one finds nothing to do
    check_same(folder, said)
    if current:
        with pytest.raises(BundleError, match="no upgrade to undo"):
            upgrading.undo(folder)
        return
    assert upgrading.undo(folder).bundle == numbers(name)[0]
    assert formats(folder) == numbers(name)
    assert content(folder) == before
    check_same(folder, said)


OLD = pytest.mark.parametrize("then", ["bundle-2-store-2"], indirect=True)


@OLD
def test_changes_since_the_upgrade_are_not_lost_by_accident(then):
    folder, _ = then
    upgrading.upgrade(folder, Silent())
    with denn.load(folder) as model:
        model.add([denn.Document("goal", ("sport",), "new")])
    with pytest.raises(ConflictError, match=r"has changed since the upgrade .change 2, then 1.*--discard-changes"):
        upgrading.undo(folder)
    assert formats(folder) == (4, 3)
    upgrading.undo(folder, discard=True)
    assert formats(folder) == (2, 2)


@OLD
def test_what_was_forgotten_does_not_come_back(then):
    folder, _ = then
    upgrading.upgrade(folder, Silent())
    with denn.load(folder) as model:
        model.forget(model.store.ids()[:1])
    with pytest.raises(ConflictError, match="were forgotten since the upgrade, and undoing it would bring them back"):
        upgrading.undo(folder, discard=True)
    assert formats(folder) == (4, 3)


@OLD
def test_an_undo_that_was_killed_while_it_deleted_what_was_kept(then):
    folder, _ = then
    upgrading.upgrade(folder, Silent())
    kept = folder / upgrading.KEPT
    record = (kept / upgrading.RECORD).read_text()
    upgrading.undo(folder)
    kept.mkdir()
    (kept / upgrading.RECORD).write_text(record)  # as if the other files had been deleted first
    upgrading.upgrade(folder, Silent())
    upgrading.undo(folder)
    assert formats(folder) == (2, 2) and not kept.exists()


@OLD
def test_a_refitted_model_stays_upgraded(then, tiny_corpus):
    folder, _ = then
    upgrading.upgrade(folder, Silent())
    card = bundle.read_card(folder)
    bundle.write_card(folder, card.model_copy(update={"digests": {**card.digests, "labels.txt": "0" * 64}}))
    with pytest.raises(ConflictError, match="can no longer be undone"):
        upgrading.undo(folder)


@OLD
def test_a_datastore_in_use_is_not_upgraded(then):
    folder, _ = then
    with EmbeddedStore.open(folder / "store" / "store.sqlite", read_only=True):
        with pytest.raises(ConflictError, match="in use by another process"):
            upgrading.upgrade(folder, Silent())
    assert formats(folder) == (2, 2) and not (folder / upgrading.KEPT).exists()


@OLD
def test_a_damaged_copy_is_not_put_back(then):
    folder, said = then
    upgrading.upgrade(folder, Silent())
    kept = folder / upgrading.KEPT / "bundle.json"
    kept.write_text(kept.read_text() + " ")
    with pytest.raises(BundleError, match="has changed since the upgrade"):
        upgrading.undo(folder)
    check_same(folder, said)


@pytest.mark.parametrize("then", ["bundle-4-store-3"], indirect=True)
def test_a_newer_format_is_refused_in_one_sentence(then):
    folder, _ = then
    card = json.loads((folder / "bundle.json").read_text())
    (folder / "bundle.json").write_text(json.dumps(card | {"format": 5}))
    with pytest.raises(BundleError, match=r"newer version .* .bundle format 5; this version reads up to 4.. Update"):
        upgrading.upgrade(folder, Silent())
    (folder / "bundle.json").write_text(json.dumps(card))
    with closing(sqlite3.connect(folder / "store" / "store.sqlite")) as connection, connection:
        connection.execute("UPDATE meta SET value = 4 WHERE key = 'format'")
    for call in (denn.load, upgrading.plan, lambda folder: upgrading.upgrade(folder, Silent())):
        with pytest.raises(StoreError, match=r"newer version of denn .format 4; this version reads up to 3.. Update"):
            call(folder)

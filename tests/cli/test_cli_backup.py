"""`denn store backup`, `restore` and `check` on models."""

import json
import shutil
from pathlib import Path

import pytest

import denn
from denn.stores.address import open_store

pytestmark = pytest.mark.slow  # whole commands on models


@pytest.fixture
def model(tiny_model, tmp_path):
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def test_back_up_restore_and_check(run, model, tmp_path):
    backup = tmp_path / "backups" / "monday"
    ran = run("store", "backup", model, backup)
    assert ran.code == 0 and "backed up and checked 60 documents, up to change 1" in ran.err
    assert run("store", "remove", model, "train-1", "train-2").code == 0
    assert run("store", "forget", model, "train-3").code == 0
    ran = run("store", "check", model)
    assert ran.code == 0 and "is intact: format 3, dimension 32, labels 6, change 3, documents 57" in ran.out
    refused = run("store", "restore", model, backup)
    assert refused.code == 2 and "changes would be lost. Nothing was changed. Pass --yes to proceed." in refused.err
    with open_store(model):
        refused = run("store", "restore", model, backup, "--yes")
    assert refused.code == 2 and "is in use by another process. Stop the service" in refused.err
    ran = run("store", "restore", model, backup, "--yes")
    assert ran.code == 0 and "1 document forgotten since then stayed forgotten" in ran.err
    with denn.load(model) as loaded:
        assert len(loaded.store) == 59
    assert run("store", "backup", model, backup).code == 2
    assert run("store", "backup", model, backup, "--replace").code == 0
    assert json.loads(run("store", "check", backup, "--json").out)["documents"] == 59


def test_damage_has_exit_code_2(run, model, tmp_path):
    run("store", "backup", model, tmp_path / "backup")
    for file in (model / "store" / "store.sqlite", tmp_path / "backup" / "store.sqlite"):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
    for what in (model, tmp_path / "backup"):
        ran = run("store", "check", what)
        assert ran.code == 2 and ran.err.splitlines()[-1].startswith("denn: ") and not ran.out
        found = json.loads(run("store", "check", what, "--json").out)
        assert not found["ok"] and found["problems"]
    assert run("store", "backup", model, tmp_path / "other").code == 2
    assert not (tmp_path / "other").exists()
    ran = run("store", "restore", model, tmp_path / "backup", "--yes")
    assert ran.code == 2 and "has changed since it was written" in ran.err


def test_a_damaged_model_is_found(run, model, dummy, tmp_path):
    dummy = shutil.copytree(dummy, tmp_path / "dummy")
    ran = run("store", "check", dummy)
    assert ran.code == 0 and "is intact" in ran.out  # it has no datastore
    for file in (next(model.glob("encoder/*.safetensors")), dummy / "labels.txt"):
        content = file.read_bytes()
        file.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
        ran = run("store", "check", file.parent if file.parent == dummy else model)
        assert ran.code == 2 and file.name in ran.err, ran


def test_a_backup_of_another_model_is_refused(run, model, dummy, tmp_path):
    run("store", "backup", model, tmp_path / "backup")
    card = json.loads((model / "bundle.json").read_text())
    card["digests"]["encoder/config.json"] = "0" * 64
    other = Path(shutil.copytree(model, tmp_path / "other"))
    (other / "bundle.json").write_text(json.dumps(card))
    ran = run("store", "restore", other, tmp_path / "backup", "--yes")
    assert ran.code == 2 and "was made with a different encoder" in ran.err
    (model / "labels.txt").write_text("elsewhere\n")
    ran = run("store", "restore", model, tmp_path / "backup", "--yes")
    assert ran.code == 2 and "do not match those of" in ran.err
    assert {path.name for path in (model / "store").iterdir()} == {"store.sqlite"}
    ran = run("store", "check", model)
    assert ran.code == 2 and "the labels of the datastore do not match those of" in ran.err
    assert run("store", "backup", dummy, tmp_path / "x").code == 2


def test_a_lost_store_is_restored(run, model, tmp_path):
    run("store", "backup", model, tmp_path / "backup")
    shutil.rmtree(model / "store")
    assert run("store", "restore", model, tmp_path / "backup", "--yes").code == 0
    with denn.load(model) as loaded:
        assert len(loaded.store) == 60


def test_a_store_is_restored_to_a_new_folder(run, model, tmp_path, monkeypatch):
    run("store", "backup", model, tmp_path / "backup")
    monkeypatch.chdir(tmp_path)
    new = "new/copy.sqlite"  # not the name of a model on the hub
    assert run("store", "restore", new, tmp_path / "backup", "--yes").code == 0
    with open_store(new) as store:
        assert len(store) == 60

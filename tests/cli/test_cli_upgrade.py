"""`denn upgrade` on a model of an earlier version."""

import shutil
from pathlib import Path

import pytest

from denn import bundle

pytestmark = pytest.mark.slow  # whole commands on models
FORMER = Path(__file__).parents[1] / "formats" / "bundle-2-store-1" / "model"


def test_look_upgrade_and_undo(run, tmp_path):
    model = Path(shutil.copytree(FORMER, tmp_path / "model"))
    ran = run("upgrade", model, "--dry-run")
    assert ran.code == 0 and "found bundle format 2 and datastore format 1; an upgrade would change:" in ran.err
    assert "  bundle.json, format 2 to 4: adds the witnesses and settings that this format implies" in ran.err
    assert "  store.sqlite, format 1 to 3: adds the tables of the history" in ran.err
    assert bundle.read_card(model).format == 2 and not (model / "before-upgrade").exists()
    ran = run("upgrade", model)
    assert ran.code == 0 and "upgraded:" in ran.err and f"denn upgrade {model} --undo" in ran.err
    assert bundle.read_card(model).format == 4
    assert "is up to date: bundle format 4 and datastore format 3" in run("upgrade", model).err
    assert run("store", "remove", model, "train-1").code == 0
    ran = run("upgrade", model, "--undo")
    assert ran.code == 2 and "--discard-changes" in ran.err
    ran = run("upgrade", model, "--undo", "--discard-changes")
    assert ran.code == 0 and "is back at bundle format 2 and datastore format 1" in ran.err
    assert bundle.read_card(model).format == 2 and not (model / "before-upgrade").exists()
    assert run("upgrade", model, "--undo").code == 2
    assert run("upgrade", model, "--undo", "--dry-run").code == 2
    assert run("upgrade", model, "--discard-changes").code == 2
    run("upgrade", model)
    assert "before-upgrade may still contain them" in run("store", "forget", model, "train-1").err
    ran = run("upgrade", model, "--undo", "--discard-changes")
    assert ran.code == 2 and "were forgotten since the upgrade, and undoing it would bring them back" in ran.err


def test_a_model_without_datastore(run, dummy):
    assert "is up to date: bundle format 4" in run("upgrade", dummy, "--dry-run").err
    assert run("upgrade", dummy.parent / "nothing").code == 2

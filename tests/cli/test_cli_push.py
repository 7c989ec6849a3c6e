"""`denn push`, and commands that read models by their names on the hub."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

import denn
from denn.validation import some_kept

pytestmark = pytest.mark.slow


def test_push_asks_before_it_uploads_and_others_read_the_name(run, hub, tiny_model, files, tmp_path):
    asked = run("push", tiny_model, "ann/topics")
    assert asked.code == 2 and not hub.requests
    assert "uploads the texts and labels of 60 stored and 60 validation documents" in asked.err
    assert "Nothing was uploaded. Pass --yes" in asked.err
    done = run("push", tiny_model, "ann/topics", "--yes", "--public", "--license", "mit", "--revision", "v1")
    assert done.code == 0, done.err
    assert f"pushed: {hub.endpoint}/ann/topics/commit/" in done.err and "PUBLIC" in done.err
    assert b"license: mit" in hub.files("ann/topics", "v1")["README.md"]
    assert run("predict", "ann/topics@v1", stdin=b"goal match referee\n").rows[0]["labels"] == ["sport"]
    assert "60" in run("store", "info", "ann/topics@v1").out
    missing = run("predict", "ann/topics", stdin=b"x")
    assert missing.code == 2 and "is not a denn model: it has no bundle.json" in missing.err
    other = run("train", files / "train.jsonl", "--from", "ann/none", "--out", tmp_path / "new")
    assert other.code == 2 and "ann/none is not a folder here, and could not be downloaded from the hub" in other.err


def test_a_model_with_a_datastore_elsewhere_is_pushed_after_following_the_advice(run, hub, tiny_model, tmp_path):
    model, elsewhere = shutil.copytree(tiny_model, tmp_path / "model"), tmp_path / "elsewhere.sqlite"
    assert run("store", "copy", model, elsewhere).code == run("store", "use", model, elsewhere).code == 0
    assert run("store", "remove", model, "train-1").code == 0
    refused = " ".join(run("push", model, "ann/topics", "--yes").err.split())
    (own, source, target, used) = re.search(
        r"delete (\S+)\* if it exists, and run denn store copy (\S+) (\S+), then denn store use (\S+) own", refused
    ).groups()
    for file in Path(own).parent.glob(Path(own).name + "*"):
        file.unlink()
    assert run("store", "copy", source, target).code == run("store", "use", used, "own").code == 0
    assert run("push", model, "ann/topics", "--yes").code == 0
    assert json.loads(run("store", "info", "ann/topics", "--json").out)["documents"] == 59


def test_every_command_on_a_datastore_takes_a_name_on_the_hub(run, hub, tiny_model, tmp_path):
    name = "ann/topics"
    assert run("push", tiny_model, name, "--yes").code == 0
    ran = run("store", "info", name, "--json")
    assert json.loads(ran.out)["new_labels"] == []
    assert run("store", "list", name, "train-1").rows[0]["id"] == "train-1"
    backup, copy = tmp_path / "backup", tmp_path / "copy.sqlite"
    assert run("store", "backup", name, backup).code == 0 and "is intact" in run("store", "check", name).out
    assert run("store", "copy", name, copy).code == 0
    ran = run("store", "forget", name, "valid-1", "--dry-run")
    assert ran.code == 0 and "Matching validation documents: valid-1" in ran.err
    assert run("store", "forget", name, "valid-1", "train-1").code == 0
    restored = run("store", "restore", name, backup, "--yes")
    assert restored.code == 0 and "1 document forgotten since then stayed forgotten" in restored.err
    with denn.load(name) as model:
        assert "valid-1" not in {document.id for document in some_kept(model.folder, 100)}
    assert run("store", "add", name, tmp_path / "none.jsonl").code == 2


def test_a_person_who_declines_uploads_nothing(answer_on_terminal, hub, tiny_model, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    code, said = answer_on_terminal(
        [sys.executable, "-m", "denn", "push", tiny_model, "ann/topics"], "Continue?", typed="n"
    )
    assert code == 2 and "Nothing was uploaded." in said and not hub.requests

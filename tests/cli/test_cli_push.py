"""`denn push`, and commands that read models by their names on the hub."""

import sys

import pytest

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


def test_a_person_who_declines_uploads_nothing(answer_on_terminal, hub, tiny_model, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    code, said = answer_on_terminal(
        [sys.executable, "-m", "denn", "push", tiny_model, "ann/topics"], "Continue?", typed="n"
    )
    assert code == 2 and "Nothing was uploaded." in said and not hub.requests

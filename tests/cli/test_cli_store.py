"""`denn store`: documents in and out of a living model."""

import json
import shutil

import pytest

import denn

pytestmark = pytest.mark.slow  # whole commands on models


@pytest.fixture
def model(tiny_model, tmp_path):
    return shutil.copytree(tiny_model, tmp_path / "model")


def info(run, model):
    return json.loads(run("store", "info", model, "--json").out)


def test_added_documents_speak_at_once_with_new_labels(run, model, tmp_path):
    before = info(run, model)
    text = "goal match team referee stadium"
    rows = [{"text": text, "labels": ["[/]", "sport"], "id": "mine"}, {"text": "x", "labels": []}]
    file = tmp_path / "more.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = run("store", "add", model, file)
    assert ran.code == 0
    assert "added 2 of 2 documents" in ran.err
    assert "holds 62 documents; 0 of those" in ran.err
    assert "New labels: [/]." in ran.err
    run("store", "add", model, file)  # the document without an id is added again, the other replaced
    after = info(run, model)
    assert after["documents"] == before["documents"] + 3
    assert after["new_labels"] == ["[/]"]
    assert after["label_counts"]["[/]"] == 1
    (row,) = run("predict", model, "--evidence", "--neighbours", 1, stdin=text.encode()).rows
    assert row["neighbours"][0]["id"] == "mine"
    assert "[/]" in row["scores"]
    shown = run("store", "info", model).out
    assert "63 documents, 7 labels" in shown
    assert "Labels that came after the training: [/]" in shown


def test_documents_to_add_need_a_column_of_labels(run, model, tmp_path):
    (tmp_path / "bare.jsonl").write_text('{"text": "x"}\n')
    ran = run("store", "add", model, tmp_path / "bare.jsonl")
    assert ran.code == 2
    assert "there is no column 'labels'" in ran.err


def test_removing_is_all_or_nothing(run, model, tmp_path):
    ran = run("store", "remove", model, "train-1", "nobody")
    assert ran.code == 2
    assert "no document with the id 'nobody'" in ran.err
    assert info(run, model)["documents"] == 60
    (tmp_path / "ids.txt").write_text("train-2\r\ntrain-3\n")
    ran = run("store", "remove", model, "train-1", "--from", tmp_path / "ids.txt")
    assert ran.code == 0
    assert "removed 3 documents; the datastore holds 57" in ran.err


def test_relabelling_replaces_the_labels(run, model):
    assert run("store", "relabel", model, "train-4", "music", "brand new").code == 0
    with denn.load(model) as loaded:
        assert loaded.method.store.get(["train-4"])[0].labels == ("music", "brand new")
    assert run("store", "relabel", model, "train-4", "two\nlines").code == 2
    assert run("store", "relabel", model, "nobody", "music").code == 2


@pytest.mark.parametrize("command", [["info"], ["remove", "x"], ["relabel", "x", "y"]])
def test_a_method_without_datastore_says_so(run, dummy, command):
    ran = run("store", command[0], dummy, *command[1:])
    assert ran.code == 2
    assert "'dummy', which keeps no datastore" in ran.err

"""`denn audit`: documents whose labels look wrong, as JSON lines or as a table."""

import json
import os
import pty
import shutil
import subprocess
import sys

import pytest

import denn
from denn.cli.audit import as_row

pytestmark = pytest.mark.slow  # whole commands on models


@pytest.fixture
def spoilt(tiny_model, tiny_corpus, tmp_path):
    """A copy of the tiny model with a document whose label was removed."""
    folder = shutil.copytree(tiny_model, tmp_path / "spoilt")
    with denn.load(folder) as model:
        model.store.relabel(tiny_corpus.train[0].id, [])
    return folder


def test_rows_are_those_of_the_library_in_rank_order(run, spoilt, tiny_corpus, tmp_path):
    ran = run("audit", spoilt, "--count", 3, "--quiet")
    assert (ran.code, ran.err) == (0, "")
    with denn.load(spoilt) as model:
        expected = model.audit(count=3)
    assert ran.rows == json.loads(json.dumps([as_row(one, denn.Vocabulary()) for one in expected]))
    row = ran.rows[0]
    assert list(row) == ["rank", "id", "text", "labels", "suspicion", "add", "drop", "neighbours"]
    assert (row["rank"], row["id"], row["labels"]) == (1, tiny_corpus.train[0].id, [])
    assert row["add"][0]["label"] == tiny_corpus.train[0].labels[0]
    assert list(row["add"][0]) == ["label", "score", "parts", "words"]
    out = tmp_path / "audit.jsonl"
    assert run("audit", spoilt, "--count", 3, "--out", out).out == ""
    assert [json.loads(line) for line in out.read_text().splitlines()] == ran.rows


def test_a_terminal_shows_a_table(spoilt):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "denn", "audit", str(spoilt), "--count", "2", "--quiet"]
    with subprocess.Popen(command, stdout=theirs, env={**os.environ, "COLUMNS": "100", "TERM": "dumb"}) as asked:
        os.close(theirs)
        shown = b""
        try:
            while more := os.read(ours, 1000):
                shown += more
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    assert asked.returncode == 0
    lines = shown.decode().splitlines()
    assert lines[1].split() == ["id", "add", "drop", "labels", "text"]
    assert any("train-0" in line and "music" in line for line in lines)


def test_documents_of_a_file_are_judged(run, tiny_model, tiny_corpus, tmp_path):
    file = tmp_path / "labelled.jsonl"
    file.write_text(json.dumps({"text": tiny_corpus.train[0].text, "labels": ["sport"]}) + "\n")
    (row,) = run("audit", tiny_model, file).rows
    assert row["drop"][0]["label"] == "sport"
    assert row["add"][0]["label"] == "music"


def test_an_empty_file_is_an_error(run, tiny_model, tmp_path):
    file = tmp_path / "empty.jsonl"
    file.write_text("")
    ran = run("audit", tiny_model, file, "--quiet")
    assert ran.code == 2
    assert ran.err.count("\n") == 1


def test_a_model_without_a_datastore_is_an_error(run, dummy):
    ran = run("audit", dummy, "--quiet")
    assert (ran.code, ran.out) == (2, "")
    assert "keeps no datastore" in ran.err


def test_a_model_without_validation_is_audited_with_a_warning(run, tiny_corpus, tiny_settings, tmp_path):
    corpus = denn.Corpus(train=tiny_corpus.train, name="tiny")
    denn.train(corpus, out=tmp_path / "model", **(tiny_settings | {"epochs": 1})).close()
    ran = run("audit", tmp_path / "model", "--quiet")
    assert ran.code == 0
    assert "without validation documents" in ran.err

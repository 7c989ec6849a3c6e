"""`denn queue`: texts to label next, as JSON lines."""

import json

import pytest

import denn

pytestmark = pytest.mark.slow  # whole commands on models


def test_rows_are_those_of_the_library_in_rank_order(run, tiny_model, tiny_corpus, files, tmp_path):
    ran = run("queue", tiny_model, files / "test.jsonl", "--count", 4)
    assert (ran.code, ran.err) == (0, "")
    with denn.load(tiny_model) as model:
        expected = model.queue(tiny_corpus.test, count=4)
    assert [row["id"] for row in ran.rows] == [one.id for one in expected]
    for row, one in zip(ran.rows, expected, strict=True):
        assert list(row) == ["rank", "id", "text", "uncertainty", "nearness", "labels", "scores"]
        assert (row["rank"], row["text"], row["labels"]) == (one.rank, one.text, list(one.prediction.labels))
    out = tmp_path / "queue.jsonl"
    assert run("queue", tiny_model, files / "test.jsonl", "--count", 4, "--out", out).out == ""
    assert [json.loads(line) for line in out.read_text().splitlines()] == ran.rows


def test_plain_lines_are_read_from_a_stream(run, tiny_model):
    ran = run("queue", tiny_model, "-", stdin=b"goal match\ngoal match\norbit\n")
    assert sorted(row["text"] for row in ran.rows) == ["goal match", "orbit"]
    assert all("id" not in row for row in ran.rows)


@pytest.mark.parametrize(
    ("content", "sentence"), [("", "the file is empty"), ("text\n", "no texts to rank"), ("other\nx\n", "'text'")]
)
def test_a_file_without_texts_is_an_error(run, tiny_model, tmp_path, content, sentence):
    file = tmp_path / "texts.csv"
    file.write_text(content)
    ran = run("queue", tiny_model, file)
    assert ran.code == 2
    assert sentence in ran.err
    assert ran.err.count("\n") == 1


def test_a_model_without_a_datastore_is_an_error(run, dummy):
    ran = run("queue", dummy, "-", stdin=b"x\n")
    assert ran.code == 2
    assert "keeps no datastore" in ran.err


def test_a_model_without_validation_ranks_with_a_warning(run, tiny_corpus, tiny_settings, tmp_path):
    corpus = denn.Corpus(train=tiny_corpus.train, name="tiny")
    denn.train(corpus, out=tmp_path / "model", **(tiny_settings | {"epochs": 1})).close()
    ran = run("queue", tmp_path / "model", "-", stdin=b"goal match\n")
    assert ran.code == 0
    assert "without validation documents" in ran.err

"""Commands on many files."""

import json
import sys

import pytest
from batch_inputs import write_lines

import denn
from denn.batch import on_ray
from denn.cli import main

pytestmark = pytest.mark.slow  # whole commands


@pytest.fixture
def run(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        return int(stop.value.code or 0), *capsys.readouterr()

    return call


def test_a_pattern_predicts_many_files_into_a_folder(run, dummy, lines, tmp_path):
    out = tmp_path / "tagged"
    code, stdout, stderr = run("predict", dummy, lines, "--output", out, "--output-format", "csv", "--min-labels", 1)
    assert (code, stdout) == (0, "")
    assert "4 partitions; 35 texts in 0s at " in stderr and f"The results are in {out}." in stderr
    assert sorted(path.name for path in out.iterdir()) == [*(f"{name}.jsonl.csv" for name in "abcd"), "job.json"]
    rows = [line.split(",") for line in (out / "c.jsonl.csv").read_text().splitlines()]
    assert [row[:2] for row in rows[1:]] == [[f"t{n}", f"text number {n}"] for n in range(20, 25)]
    assert all(row[2] for row in rows[1:])
    _, _, stderr = run("predict", dummy, lines, "--output", out, "--output-format", "csv", "--min-labels", 1)
    assert "4 partitions, 4 of them already finished; 0 texts in 0s" in stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["{lines}"], "give a folder for the results: --output DIR"),
        (["-", "--engine", "ray"], "--engine ray reads files, not standard input"),
        (["{lines}", "--output", "{out}", "--evidence", "--output-format", "csv"], ".csv files cannot include --evi"),
        (["{lines}", "--output", "{out}", "--workers", "2"], "--ray-address and --workers need --engine ray."),
        (["{file}", "--workers", "2"], "--workers are for many files. Add --engine ray, or give a pattern"),
        (["Is it a file?"], "To tag a text, write: echo TEXT | denn predict"),
    ],
)
def test_wrong_options_get_a_sentence(run, dummy, lines, tmp_path, options, sentence):
    known = {"lines": lines, "out": tmp_path / "out", "file": tmp_path / "in" / "a.jsonl"}
    code, _, stderr = run("predict", dummy, *(option.format(**known) for option in options))
    assert code == 2 and sentence in " ".join(stderr.replace("│", " ").split())
    assert not (tmp_path / "out" / "job.json").exists()


def test_ray_is_named_if_it_is_missing(run, dummy, lines, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.data", None)
    code, _, stderr = run("predict", dummy, lines, "--engine", "ray", "--output", tmp_path / "out")
    assert code == 2
    assert "The engine ray needs the package 'ray', which is not installed. Run: pip install 'denn[ray]'" in stderr


def test_a_model_that_is_missing_is_reported_before_ray_starts(run, lines, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray, "connected", lambda *_: None)  # cannot be entered
    code, _, stderr = run("predict", tmp_path / "no", lines, "--engine", "ray", "--output", tmp_path / "out")
    assert code == 2 and "no is not a model: no such folder" in stderr


def test_several_files_are_evaluated_together(run, tiny_model, tiny_corpus, tmp_path):
    for name, documents in (("a", tiny_corpus.test[:12]), ("b", tiny_corpus.test[12:])):
        rows = (json.dumps({"text": one.text, "labels": one.labels}) + "\n" for one in documents)
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
    code, stdout, _ = run("evaluate", tiny_model, tmp_path / "*.jsonl", "--json")
    with denn.load(tiny_model) as model:
        assert (code, json.loads(stdout)) == (0, json.loads(json.dumps(model.evaluate(tiny_corpus.test).as_dict())))


def test_embeddings_of_a_file(run, tiny_model, tmp_path):
    write_lines(tmp_path / "in", a=range(3))
    code, _, stderr = run("embed", tiny_model, tmp_path / "in" / "a.jsonl", "--output", tmp_path / "out")
    assert code == 0 and "1 partition; 3 texts in " in stderr
    assert (tmp_path / "out" / "a.jsonl.parquet").exists()

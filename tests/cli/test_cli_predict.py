"""`denn predict`: a line for each text, in order, as soon as its batch is done."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import denn
from denn.cli import main
from denn.cli.predict import as_row
from denn.types import Prediction

pytestmark = pytest.mark.slow  # whole commands on models

BATCH = 256


def test_predictions_are_those_of_the_library_in_order(run, tiny_model, tiny_corpus, tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": d.text, "id": d.id}) + "\n\n" for d in tiny_corpus.test))
    ran = run("predict", tiny_model, file, "--evidence", "--neighbours", 2)
    assert (ran.code, ran.err) == (0, "")
    with denn.load(tiny_model) as model:
        expected = model.predict([document.text for document in tiny_corpus.test], evidence=2)
    assert len(ran.rows) == len(expected)
    for row, document, prediction in zip(ran.rows, tiny_corpus.test, expected, strict=True):
        fields = ["id", "labels", "scores", "confidence", "familiarity", "parts", "words", "neighbours"]
        assert [name for name in row if name != "unfamiliar"] == fields
        assert row["familiarity"] == round(prediction.familiarity, 4)
        assert row.get("unfamiliar", False) is prediction.unfamiliar
        assert row["id"] == document.id
        assert tuple(row["labels"]) == prediction.labels
        assert row["scores"] == {label: round(score, 4) for label, score in prediction.scores.items()}
        assert row["confidence"] == round(prediction.confidence, 4)
        assert row["parts"] == {
            label: {name: round(score, 4) for name, score in heard.items()} for label, heard in prediction.parts.items()
        }
        assert all({"classifier", "neighbours"} <= set(heard) for heard in row["parts"].values())
        assert row["words"] == {label: [word for word, _ in words] for label, words in prediction.words.items()}
        assert [n["id"] for n in row["neighbours"]] == [n.id for n in prediction.neighbours]
        assert set(row["neighbours"][0]) == {"id", "similarity", "labels", "text"}


def test_every_plain_line_is_a_text_and_gets_a_line(run, tiny_model):
    ran = run("predict", tiny_model, stdin="goal match\n\nastroném 電車\n".encode())
    fields = ["labels", "scores", "confidence", "familiarity", "parts"]
    assert [[name for name in row if name != "unfamiliar"] for row in ran.rows] == [fields] * 3
    assert "sport" in ran.rows[0]["labels"]


def test_supporting_words_are_shown_as_evidence_the_strongest_first():
    prediction = Prediction(("sport",), {"sport": 0.9}, None, (), {}, {"sport": (("goal", 2.5), ("red card", 0.5))})
    assert as_row(None, prediction, evidence=True)["words"] == {"sport": ["goal", "red card"]}
    assert "words" not in as_row(None, prediction, evidence=False)


def test_only_unfamiliar_texts_are_flagged():
    def row(familiarity):
        return as_row(None, Prediction((), {}, None, (), familiarity=familiarity), evidence=False)

    assert row(0.012345) == row(0.5) | {"familiarity": 0.0123, "unfamiliar": True}
    assert "unfamiliar" not in row(0.5)


def test_thresholds_and_least_numbers_of_labels_are_obeyed(run, dummy):
    def labels(*options):
        (row,) = run("predict", dummy, "-", *options, stdin=b"any text\n").rows
        return tuple(row["labels"])

    assert len(labels("--threshold", 0)) == 6
    assert labels("--threshold", 1) == ()
    assert labels("--threshold", 1, "--min-labels", 2) == labels("--threshold", 0)[:2]
    with denn.load(dummy) as model:
        assert labels("--per-label") == model.predict(["any text"], per_label=True)[0].labels


def test_a_method_without_neighbours_predicts_too(run, dummy):
    (row,) = run("predict", dummy, "--evidence", stdin=b"x\n").rows
    assert row["confidence"] is None
    assert row["familiarity"] is None
    assert row["neighbours"] == []


def test_each_batch_is_written_before_the_next_is_read(run, dummy, tmp_path, monkeypatch):
    run("--version")
    seen = []

    def lines():
        for number in range(2 * BATCH + 1):
            if number % BATCH == 0:
                seen.append((tmp_path / "out").read_bytes().count(b"\n"))
            yield b"text\n"

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=lines(), isatty=lambda: False))
    with (tmp_path / "out").open("wb") as out, pytest.raises(SystemExit) as stop:
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=out, flush=out.flush))
        main(["predict", str(dummy)])
    assert not stop.value.code
    assert seen == [0, BATCH, 2 * BATCH]
    assert (tmp_path / "out").read_bytes().count(b"\n") == 2 * BATCH + 1


def test_a_bad_line_is_named_and_those_before_it_are_answered(run, dummy, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_bytes(b"fine\n" * 300 + b'{"body": "x"}\nfine\n')
    ran = run("predict", dummy, file)
    assert ran.code == 2
    assert len(ran.rows) == 300
    assert ran.err.startswith(f"denn: {file}, line 301: there is no column 'text'; found: 'body'")
    out = tmp_path / "out.jsonl"
    ran = run("predict", dummy, file, "--output", out)
    assert (ran.code, ran.out) == (2, "")
    assert not out.exists()
    assert len((tmp_path / "out.jsonl.part").read_text().splitlines()) == 300
    assert "out.jsonl.part" in ran.err


def test_an_output_file_appears_when_it_is_complete(run, dummy, tmp_path):
    out = tmp_path / "out.jsonl"
    ran = run("predict", dummy, "--output", out, stdin=b"a\nb\n")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert len(out.read_text().splitlines()) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_someone_at_a_terminal_is_told_what_is_expected(run, dummy, monkeypatch, capsys):
    run("--version")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=iter([b"x\n"]), isatty=lambda: True))
    with pytest.raises(SystemExit):
        main(["predict", str(dummy)])
    ran = capsys.readouterr()
    assert "one a line; end with Ctrl-D" in ran.err
    assert len(ran.out.splitlines()) == 1


def test_a_reader_that_has_enough_ends_it_quietly(dummy, tmp_path):
    (tmp_path / "texts.txt").write_text("text\n" * 20_000)
    code = "from denn.cli import main; main()"
    command = [sys.executable, "-c", code, "predict", str(dummy), str(tmp_path / "texts.txt")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as process:
        assert json.loads(process.stdout.readline())["labels"]
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_int8_that_a_model_cannot_use_is_a_sentence(run, dummy):
    ran = run("predict", dummy, "--precision", "int8", stdin=b"x\n")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == ("denn: int8 cannot be used: the method 'dummy' does not support it. Use --precision auto.\n")

"""`denn predict`: a line for each text, in order, as soon as its batch is done."""

import csv
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

import denn
from denn.cli import main
from denn.cli.output import writing
from denn.data.corpus import read_documents
from denn.errors import ConfigError
from denn.prediction_files import as_row
from denn.prediction_types import Prediction

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
    assert "one per line; end with Ctrl-D" in ran.err
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


def tables(folder, suffix):
    path = folder / f"out{suffix}"
    if suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return list(
        csv.DictReader(path.read_text(encoding="utf-8").splitlines(), delimiter="\t" if suffix == ".tsv" else ",")
    )


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_an_extension_gives_a_table_of_the_same_predictions(run, tiny_model, tiny_corpus, files, tmp_path, suffix):
    ran = run("predict", tiny_model, files / "test.jsonl", "--output", tmp_path / f"out{suffix}")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    rows, expected = tables(tmp_path, suffix), run("predict", tiny_model, files / "test.jsonl").rows
    assert [(row["id"], row["text"]) for row in rows] == [(one.id, one.text) for one in tiny_corpus.test]
    for row, one in zip(rows, expected, strict=True):
        labels = row["labels"] if suffix == ".parquet" else list(filter(None, row["labels"].split("|")))
        scores = row["scores"] if suffix == ".parquet" else [float(cell) for cell in row["scores"].split("|") if cell]
        assert labels == one["labels"]
        assert [round(score, 4) for score in scores] == [one["scores"][label] for label in labels]
        assert str(row["unfamiliar"] or "").lower() == str(one.get("unfamiliar", "")).lower()
    assert not list(tmp_path.glob("*.part"))
    assert run("evaluate", tiny_model, tmp_path / f"out{suffix}").code == 0  # denn reads what it writes


def test_a_table_survives_labels_that_look_like_separators_and_formulas(run, tmp_path):
    labels = ["a|b", "c,d", "=1+1", "[x]", "plain"]
    corpus = denn.Corpus([denn.Document("x", tuple(labels)), denn.Document("y", ("plain",))], name="odd")
    denn.train(corpus, out=tmp_path / "model", method="dummy").close()
    out = tmp_path / "out.csv"
    stdin = b'{"text": "=HYPERLINK(1)", "id": "-2"}\n{"text": "two\\nlines, \\"quoted\\""}\n'
    assert run("predict", tmp_path / "model", "--output", out, "--threshold", 0, stdin=stdin).code == 0
    cells = list(csv.reader(out.read_text(encoding="utf-8").splitlines(keepends=True)))
    assert cells[1][:2] == ["-2", "'=HYPERLINK(1)"]
    read, _ = read_documents(out)
    assert [document.text for document in read] == ["=HYPERLINK(1)", 'two\nlines, "quoted"']
    assert [set(document.labels) for document in read] == [set(labels)] * 2


def test_a_table_has_names_if_there_is_a_vocabulary(run, named_model, tmp_path):
    for suffix in (".csv", ".parquet"):
        assert run("predict", named_model, "--output", tmp_path / f"out{suffix}", stdin=b"referee goal coach").code == 0
        (row,) = tables(tmp_path, suffix)
        assert "sport" in row["names"] and "http://example.org/0" in row["labels"]
        assert read_documents(tmp_path / f"out{suffix}")[0][0].labels[0] == "http://example.org/0"


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_holds_what_was_answered_before_a_bad_row(run, tiny_model, tmp_path, suffix):
    ran = run("predict", tiny_model, "--output", tmp_path / f"out{suffix}", stdin=b'{"text": "goal"}\n{"text": 7}\n')
    assert ran.code == 2 and "line 2: the text is a number" in ran.err
    (tmp_path / f"out{suffix}.part").rename(tmp_path / f"out{suffix}")
    assert [row["text"] for row in tables(tmp_path, suffix)] == ["goal"]


def test_a_table_has_no_room_for_evidence(run, tmp_path):
    ran = run("predict", "no model", "--evidence", "--output", tmp_path / "out.csv", stdin=b"x")
    assert ran.code == 2 and ".csv files cannot include --evidence" in " ".join(ran.err.split())


def test_a_text_in_the_place_of_a_file_is_explained(run):
    ran = run("predict", "model", "wheat exports fell")
    said = " ".join(ran.err.split())
    assert (
        ran.code == 2 and "no file 'wheat exports fell'. To tag a text, write: echo TEXT | denn predict model" in said
    )


def test_predictions_are_not_written_to_workbooks(run, tmp_path):
    ran = run("predict", "no model", "--output", tmp_path / "out.xlsx", stdin=b"x")
    assert ran.code == 2 and ".xlsx files cannot be written. Give an --output that ends with .csv" in ran.err


@pytest.mark.parametrize("name", ["out.csv.gz", "out.jsonl.zst", "OUT.CSV.XZ"])
def test_predictions_are_not_compressed(run, tmp_path, name):
    ran = run("predict", "no model", "--output", tmp_path / name, stdin=b"x")
    suffix = name[name.rindex(".") :].lower()
    said = f"{suffix} files cannot be written. Give an --output without {suffix}, then compress it."
    assert ran.code == 2 and said in " ".join(ran.err.split())


TABLE = 'id,"text"\n7,"goal, match"\n8,referee\n'


@pytest.mark.parametrize("mark", [",", "\t"])
def test_a_table_on_standard_input_is_told_by_its_header(run, tiny_model, mark):
    ran = run(
        "predict",
        tiny_model,
        stdin=TABLE.replace(",", mark, 1).replace("7,", f"7{mark}").replace("8,", f"8{mark}").encode(),
    )
    assert [row["id"] for row in ran.rows] == ["7", "8"]
    assert f"as {'CSV' if mark == ',' else 'TSV'}, because its first line names the column 'text'" in ran.err
    assert [row["id"] for row in run("predict", tiny_model, "--input-format", "csv", stdin=TABLE.encode()).rows] == [
        "7",
        "8",
    ]


def test_lines_stay_lines_if_they_are_meant_or_no_header(run, tiny_model, tmp_path):
    assert len(run("predict", tiny_model, "--input-format", "lines", stdin=TABLE.encode()).rows) == 3
    assert len(run("predict", tiny_model, stdin=b"a text, with labels\ntext\n").rows) == 2
    assert len(run("predict", tiny_model, "--input-format", "csv", stdin=b"text\ngoal\n").rows) == 1
    (tmp_path / "export.dat").write_text(TABLE)
    assert len(run("predict", tiny_model, tmp_path / "export.dat", "--input-format", "csv").rows) == 2
    assert run("predict", tiny_model, tmp_path / "export.dat").code == 2
    assert run("predict", tiny_model, "--input-format", "csv", stdin=b"body\nx\n").code == 2


def test_two_commands_do_not_write_one_file(tmp_path):
    with writing(tmp_path / "out.jsonl") as first:
        first.write(b"first")
        with pytest.raises(ConfigError, match=r"Another process is writing .*out\.jsonl"):
            with writing(tmp_path / "out.jsonl"):
                pass
    assert (tmp_path / "out.jsonl").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]

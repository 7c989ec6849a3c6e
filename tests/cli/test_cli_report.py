"""`denn report`: a page for a file or for a corpus known by name."""

import json
import os
from pathlib import Path

import pytest

from denn.registry import CORPORA

pytestmark = pytest.mark.slow  # whole pages, with every curve


def test_a_page_for_a_file(run, tiny_model, files, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("an older page")
    ran = run("report", tiny_model, files / "test.jsonl", "--valid", files / "valid.jsonl", "--out", page)
    assert ran.code == 0
    found = json.loads(run("evaluate", tiny_model, files / "test.jsonl", "--json").out)
    scores = f"micro-F1 {100 * found['micro_f1']:.1f} %, macro-F1 {100 * found['macro_f1']:.1f} %"
    assert ran.out == f"{page}: {scores} on 20 texts\n"
    html = page.read_text(encoding="utf-8")
    assert "<h1>denn on test.jsonl</h1>" in html
    assert "The combination was fitted to the validation texts, so every point uses the threshold 0." in html
    assert "embedding texts: 20 documents" in ran.err
    assert list(tmp_path.iterdir()) == [page]


@pytest.mark.parametrize("which", ["named_model", "dummy"])
def test_the_numbers_of_a_page_as_json(run, which, files, tmp_path, request):
    model, numbers = request.getfixturevalue(which), tmp_path / "report.json"
    ran = run("report", model, files / "test.jsonl", "--out", tmp_path / "page.html", "--json", numbers)
    assert ran.code == 0
    found = json.loads(numbers.read_text(encoding="utf-8"))
    evaluated = json.loads(run("evaluate", model, files / "test.jsonl", "--json").out)
    assert found["evaluation"]["micro_f1"] == pytest.approx(evaluated["micro_f1"])
    assert found["evaluation"]["per_label"] == evaluated["per_label"]
    assert found["measured_on"] == "test.jsonl" and len(found["curves"]["final"]) > 10
    assert set(found["train_counts"]) == {row["label"] for row in evaluated["per_label"]}
    assert found["errors"][0]["document"]["text"]
    if which == "dummy":
        assert found["neighbourhood"] is None and "names" not in found
    else:
        assert found["names"]["http://example.org/0"] == "sport"
        assert found["neighbourhood"]["map"]["labels"] and found["neighbourhood"]["sweep"]["k"]


def warned(ran):
    return [line for line in ran.err.splitlines() if line.startswith("warning: ")]


def test_texts_that_were_learnt_or_tuned_on_are_warned_of(run, tiny_model, files, tmp_path):
    page = tmp_path / "page.html"
    ran = run("report", tiny_model, files / "train.jsonl", "--valid", files / "test.jsonl", "--out", page)
    (learnt,) = [line for line in warned(ran) if "datastore contains" in line]
    assert "60 of these 60 documents, so the scores are too good" in learnt
    assert not any("The validation texts include" in line for line in warned(ran))
    mixed = tmp_path / "mixed.jsonl"
    lines = (files / "test.jsonl").read_text().splitlines(keepends=True)
    mixed.write_text("".join(lines[:3]) + (files / "valid.jsonl").read_text())
    ran = run("report", tiny_model, files / "test.jsonl", "--valid", mixed, "--out", page)
    (tuned,) = [line for line in warned(ran) if "The validation texts include" in line]
    assert tuned.startswith("warning: The validation texts include 3 of 20 texts")
    assert "The validation texts include 3 of 20 texts" in page.read_text(encoding="utf-8")
    assert not any("datastore contains" in line for line in warned(ran))


@pytest.mark.parametrize("which", ["tiny_model", "dummy"])
def test_texts_without_any_label_that_the_model_knows_are_warned_of(run, which, tmp_path, request):
    strange, page = tmp_path / "strange.jsonl", tmp_path / "page.html"
    rows = [{"text": "violin chord", "labels": ["x"]}, {"text": "goal", "labels": ["y"]}]
    strange.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = run("report", request.getfixturevalue(which), strange, "--out", page)
    assert ran.code == 0 and "micro-F1 0.0 %" in ran.out
    assert [line[:58] for line in warned(ran)] == ["warning: The model knows none of the labels of these texts"]
    assert '<p class="warning">The model knows none of the labels of these texts' in page.read_text(encoding="utf-8")
    rows[0]["labels"].append("sport")
    strange.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = run("report", request.getfixturevalue(which), strange, "--out", page)
    assert ran.code == 0 and not warned(ran)


def test_time_left_is_said_where_there_is_no_bar(run, dummy, files, tmp_path, monkeypatch):
    monkeypatch.setattr("denn.report.gather.BATCH", 3)
    ran = run("report", dummy, files / "test.jsonl", "--out", tmp_path / "page.html")
    notes = [line for line in ran.err.splitlines() if line.startswith("scoring texts: ") and " of 20 " in line]
    assert [note.split()[2] for note in notes] == ["6", "12", "15"]  # first at or after each quarter
    assert all(note.endswith(" left)") for note in notes)


def test_where_the_page_goes_is_checked_before_any_work(run, files, tmp_path):
    def refused(out):
        ran = run("report", tmp_path / "no model", files / "test.jsonl", "--out", out)
        assert ran.code == 2 and ".part" not in ran.err
        assert str(out) in ran.err and "no model" not in ran.err
        return ran.err

    (tmp_path / "file").write_text("x")
    assert f"{tmp_path} is a folder. Give a file" in refused(tmp_path)
    assert f"{tmp_path / 'file'} is not a folder" in refused(tmp_path / "file" / "deep" / "page.html")
    assert "not a regular file" in refused(os.devnull)
    if Path("/proc").is_dir():  # not even root can create a file here
        assert "the folder /proc is not writable" in refused("/proc/page.html")
        assert "the folder /proc is not writable" in refused("/proc/none/page.html")


def test_the_folder_of_the_page_is_made_when_there_is_a_page(run, dummy, files, tmp_path):
    page = tmp_path / "some" / "where" / "page.html"
    assert run("report", tmp_path / "no model", files / "test.jsonl", "--out", page).code == 2
    assert not list(tmp_path.iterdir())
    assert run("report", dummy, files / "test.jsonl", "--out", page).code == 0
    assert page.is_file()


def test_quiet_shows_no_progress(run, dummy, files, tmp_path):
    ran = run("report", dummy, files / "test.jsonl", "--out", tmp_path / "page.html", "--quiet")
    assert ran.code == 0
    assert "scoring" not in ran.err and "writing" not in ran.err


@pytest.fixture
def known(monkeypatch, tiny_corpus, tmp_path):
    """A known corpus in a folder."""
    import denn.cli.sources

    monkeypatch.setitem(CORPORA.own, "tiny", "no module")
    monkeypatch.setattr(denn.cli.sources, "lookup", lambda *_: lambda folder: tiny_corpus)
    (tmp_path / "data" / "tiny").mkdir(parents=True)
    return tmp_path / "data"


def test_a_known_corpus_brings_its_validation_part(run, tiny_model, known, tmp_path):
    page = tmp_path / "page.html"
    assert run("report", tiny_model, "tiny", "--data-dir", known, "--out", page).code == 0
    assert "The combination was fitted to the validation texts" in page.read_text(encoding="utf-8")
    assert run("report", tiny_model, "tiny", "--data-dir", known, "--part", "valid", "--out", page).code == 0
    html = page.read_text(encoding="utf-8")
    assert "<h1>denn on tiny, valid part</h1>" in html
    assert "There are no validation texts" in html  # test documents are not used for tuning


def test_what_can_be_mended(run, dummy, files, tmp_path, known):
    page = tmp_path / "page.html"
    ran = run("report", dummy, files / "test.jsonl", "--part", "valid", "--out", page)
    assert ran.code == 2 and "is a file and has no parts" in ran.err
    (tmp_path / "bare.jsonl").write_text('{"text": "x", "labels": []}\n')
    ran = run("report", dummy, tmp_path / "bare.jsonl", "--out", page)
    assert ran.code == 2 and "has a label" in ran.err
    ran = run("report", dummy, "tiny", "--data-dir", known, "--valid", files / "valid.jsonl", "--out", page)
    assert ran.code == 2 and "Omit the options for reading a file" in ran.err
    assert not page.exists()

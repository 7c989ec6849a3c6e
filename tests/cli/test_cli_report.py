"""`denn report`: a page for a file or for a corpus known by name."""

import json

import pytest

from denn.registry import CORPORA


def test_a_page_for_a_file(run, tiny_model, files, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("an older page")
    ran = run("report", tiny_model, files / "test.jsonl", "--valid", files / "valid.jsonl", "--out", page)
    assert ran.code == 0
    found = json.loads(run("evaluate", tiny_model, files / "test.jsonl", "--json").out)
    scores = f"micro F1 {100 * found['micro_f1']:.1f} %, macro F1 {100 * found['macro_f1']:.1f} %"
    assert ran.out == f"{page}: {scores} on 20 texts\n"
    html = page.read_text(encoding="utf-8")
    assert "<h1>DENN on test.jsonl</h1>" in html
    assert "tuned for each point on 20 validation texts" in html
    assert "reading texts: 20 documents" in ran.err
    assert list(tmp_path.iterdir()) == [page]


def test_quiet_shows_no_progress(run, dummy, files, tmp_path):
    ran = run("report", dummy, files / "test.jsonl", "--out", tmp_path / "page.html", "--quiet")
    assert ran.code == 0
    assert "scoring" not in ran.err and "writing" not in ran.err


@pytest.fixture
def known(monkeypatch, tiny_corpus, tmp_path):
    """A corpus known by name, which lies in a folder."""
    import denn.cli.sources

    monkeypatch.setitem(CORPORA, "tiny", "no module")
    monkeypatch.setattr(denn.cli.sources, "lookup", lambda *_: lambda folder: tiny_corpus)
    (tmp_path / "data" / "tiny").mkdir(parents=True)
    return tmp_path / "data"


def test_a_known_corpus_brings_its_validation_part(run, tiny_model, known, tmp_path):
    page = tmp_path / "page.html"
    assert run("report", tiny_model, "tiny", "--data-dir", known, "--out", page).code == 0
    assert "tuned for each point on 20 validation texts" in page.read_text(encoding="utf-8")
    assert run("report", tiny_model, "tiny", "--data-dir", known, "--part", "valid", "--out", page).code == 0
    html = page.read_text(encoding="utf-8")
    assert "<h1>DENN on tiny, valid part</h1>" in html
    assert "for want of validation texts" in html  # what is measured tunes nothing


def test_what_can_be_mended(run, dummy, files, tmp_path, known):
    ran = run("report", dummy, files / "test.jsonl", "--out", tmp_path)
    assert ran.code == 2 and f"Got the folder {tmp_path}, expected a file" in ran.err
    page = tmp_path / "page.html"
    ran = run("report", dummy, files / "test.jsonl", "--part", "valid", "--out", page)
    assert ran.code == 2 and "is a file and has no parts" in ran.err
    ran = run("report", dummy, files / "test.jsonl", "--out", tmp_path / "none" / "page.html")
    assert ran.code == 2 and "none" in ran.err
    (tmp_path / "bare.jsonl").write_text('{"text": "x", "labels": []}\n')
    ran = run("report", dummy, tmp_path / "bare.jsonl", "--out", page)
    assert ran.code == 2 and "has a label" in ran.err
    ran = run("report", dummy, "tiny", "--data-dir", known, "--valid", files / "valid.jsonl", "--out", page)
    assert ran.code == 2 and "leave out the options" in ran.err
    assert not page.exists()

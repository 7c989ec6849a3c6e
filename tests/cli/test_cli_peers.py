"""`denn bench peers`: a comparison from corpus to table, resuming, and invalid options."""

import json
import shutil

import pytest
import torch

from denn import registry
from denn.data.corpus import read_corpus

pytestmark = pytest.mark.slow  # runs start processes that import scikit-learn


def load(folder):
    """Read the corpus that these tests register."""
    return read_corpus(folder / "train.jsonl", folder / "valid.jsonl", folder / "test.jsonl", name="tiny")


@pytest.fixture
def peers(run, files, tmp_path, monkeypatch):
    """Run `denn bench peers run` on a corpus named tiny."""
    monkeypatch.setitem(registry.CORPORA.own, "tiny", f"{__name__}:load")
    shutil.copytree(files, tmp_path / "data" / "tiny")
    folders = ["--results", tmp_path / "peers.jsonl", "--work", tmp_path / "work", "--data-dir", tmp_path / "data"]

    def call(*arguments):
        return run("bench", "peers", "run", "--corpora", "tiny", "--cores", "0", *folders, *arguments)

    return call


def test_from_a_corpus_to_a_table(peers, run, tmp_path):
    ran = peers("--peers", "svm", "--minutes", "1,5")
    assert ran.code == 0
    assert "svm on tiny, 1 min, seed 0: micro/macro-F1" in ran.err and "5 min, seed 0: already done" in ran.err
    (line,) = (tmp_path / "peers.jsonl").read_text().splitlines()  # it finished early, so it need not run again
    assert json.loads(line)["failure"] is None
    assert "1 min, seed 0: already done" in peers("--peers", "svm", "--minutes", "1").err
    page = tmp_path / "page.md"
    page.write_text("# Peers\n<!-- peers: overview -->\n<!-- end -->\n<!-- peers: machines -->\n<!-- end -->\n")
    assert run("bench", "peers", "table", "--results", tmp_path / "peers.jsonl", "--page", page).code == 0
    overview, machines = run("bench", "peers", "table", "--results", tmp_path / "peers.jsonl").out.split("\n\n| Corpus")
    assert overview.startswith("| Time | System | tiny |")
    assert page.read_text() == (
        f"# Peers\n<!-- peers: overview -->\n{overview}\n<!-- end -->\n"
        f"<!-- peers: machines -->\n| Corpus{machines}<!-- end -->\n"
    )


def test_from_variations_of_a_corpus_to_a_figure(peers, run, tmp_path):
    ran = peers("--peers", "svm", "--minutes", "1", "--vary", "documents=40,100", "--vary", "flipped=0.5")
    assert ran.code == 0
    rows = [json.loads(line) for line in (tmp_path / "peers.jsonl").read_text().splitlines()]
    assert [row["variation"] for row in rows] == ["documents=40", "documents=100", "flipped=0.5"]
    assert [row["documents"] for row in rows] == [36, 90, 60] and len({row["documents_sha256"] for row in rows}) == 3
    assert rows[0]["command"].endswith("--cores 0 --vary documents=40")
    again = peers("--peers", "svm", "--minutes", "1", "--vary", "documents=40")
    assert "svm on tiny with documents=40, 1 min, seed 0: already done" in again.err
    ran = run("bench", "peers", "curves", "documents", "--results", tmp_path / "peers.jsonl", "--out", tmp_path / "out")
    assert ran.out.split() == [str(tmp_path / "out" / f"by-documents.{kind}") for kind in ("svg", "png", "csv")]
    assert (tmp_path / "out" / "by-documents.csv").read_text().splitlines()[1].startswith("tiny,svm,cpu,40,0,1,")
    ran = run("bench", "peers", "curves", "words", "--results", tmp_path / "peers.jsonl", "--out", tmp_path / "out")
    assert ran.code == 2 and "no run with a variation of words" in ran.err
    assert "There is no variation 'length'" in run("bench", "peers", "curves", "length").err


def test_a_corpus_that_cannot_be_read_does_not_stop_the_others(peers, tmp_path):
    ran = peers("--peers", "svm", "--corpora", "aapd,tiny", "--minutes", "1")
    assert ran.code == 2 and "aapd: The corpus aapd was not found at" in ran.err
    assert "svm on tiny, 1 min, seed 0: micro/macro-F1" in ran.err


def test_wrong_options_end_before_any_work(peers, run, tmp_path, monkeypatch):
    assert "There is no peer 'fastext'" in peers("--peers", "fastext").err
    assert "expected numbers such as 1,5" in peers("--peers", "svm", "--minutes", "five").err
    assert peers("--peers", "svm", "--busy", "2").code == 2
    assert "expected whole numbers such as 100" in peers("--peers", "svm", "--vary", "documents=some").err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "PyTorch found no CUDA GPU. Use --device cpu." in peers("--peers", "denn", "--device", "cuda").err
    assert not (tmp_path / "peers.jsonl").exists()
    ran = run("bench", "peers", "table", "--results", tmp_path / "peers.jsonl")
    assert ran.code == 2 and "There are no runs of peers" in ran.err

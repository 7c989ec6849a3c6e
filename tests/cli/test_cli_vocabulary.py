"""Commands on models whose labels are ids of a vocabulary."""

import csv
import shutil

import pytest

from denn.data.corpus import read_documents

pytestmark = pytest.mark.slow

TEXT = "referee goal stadium coach"
SPORT = "http://example.org/0"


@pytest.fixture
def copied(named_model, tmp_path):
    return shutil.copytree(named_model, tmp_path / "named")


def test_commands_take_and_show_names(run, files, tmp_path, copied):
    vocabulary = tmp_path / "v.csv"
    ids = {"sport": SPORT, "haute cuisine": "http://example.org/1"}
    with vocabulary.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "name"), *((id, name) for name, id in ids.items())])
    ran = run(
        "train", files / "train.jsonl", "--out", tmp_path / "dummy", "--method", "dummy", "--vocabulary", vocabulary
    )
    assert ran.code == 0 and "4 labels not in the vocabulary, kept without a name" in ran.err
    assert SPORT in (tmp_path / "dummy" / "labels.txt").read_text().splitlines()
    row = run("predict", copied, "-", "--evidence", stdin=TEXT.encode()).rows[0]
    assert SPORT in row["labels"] and row["names"][SPORT] == "sport"
    assert {label for one in row["neighbours"] for label in one["labels"]} <= set(row["names"])
    assert run("queue", copied, "-", stdin=TEXT.encode()).rows[0]["names"][SPORT] == "sport"
    assert run("audit", copied, "--count", 1).rows[0]["names"]
    ran = run("evaluate", copied, files / "test.jsonl", "--per-label", tmp_path / "labels.tsv")
    assert ran.code == 0
    rows = csv.DictReader((tmp_path / "labels.tsv").read_text().splitlines(), delimiter="\t")
    assert {row["name"] for row in rows if row["label"] == SPORT} == {"sport"}
    ran = run("store", "relabel", copied, "train-0", "--add", "seen nowhere")
    assert ran.code == 0 and "New labels: seen nowhere." in ran.err and "example.org" not in ran.err
    ran = run("store", "relabel", copied, "train-0", "--add", "seen nowere")
    assert "not in the vocabulary, added without a name: seen nowere. Did you mean 'seen nowhere'?" in ran.err
    (row,) = run("store", "list", copied, "--label", "seen nowhere").rows
    assert row["id"] == "train-0" and "http://example.org/unseen" in row["labels"]
    assert row["names"]["http://example.org/unseen"] == "seen nowhere" and "seen nowere" not in row["names"]
    assert run("store", "remove", copied, "train-0", "--dry-run").rows == [row]
    exported = tmp_path / "all.jsonl"
    exported.write_text(run("store", "list", copied).out)
    (document,) = (one for one in read_documents(exported)[0] if one.id == "train-0")
    assert set(document.labels) == set(row["labels"])
    said = " ".join(run("store", "info", copied).out.split())
    assert "Labels added since the training: seen nowhere" in said and "sport (" in said
    ran = run("store", "list", copied, "--label", "")
    assert ran.code == 2 and "--label is empty" in ran.err

"""`denn refit`, and `denn store forget` of the kept validation documents."""

import json
import shutil

import pytest

import denn


@pytest.fixture
def folder(tiny_model, tmp_path):
    return shutil.copytree(tiny_model, tmp_path / "model")


def test_refit(run, folder, tmp_path):
    rows = [{"id": f"later-{n}", "text": f"gambit bishop knight {n}", "labels": ["chess"]} for n in range(20)]
    (tmp_path / "later.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert run("store", "add", folder, tmp_path / "later.jsonl").code == 0
    assert json.loads(run("store", "info", folder, "--json").out)["new_labels"] == ["chess"]
    found = run("refit", folder)
    assert found.code == 0
    assert "training the head" in found.err and "learning the words of labels: 7 labels" in found.err
    assert "Learnt 7 labels from " in found.err and " micro-F1 " in found.err
    assert json.loads(run("store", "info", folder, "--json").out)["new_labels"] == []
    predicted = run("predict", folder, stdin=b"gambit bishop and a knight\n").rows
    assert predicted[0]["labels"] == ["chess"]


def test_a_worse_refit_says_so_and_is_no_error(run, folder):
    with denn.load(folder) as model:
        for n, id in enumerate(model.store.ids()):
            model.store.relabel(id, [model.labels.names[n % 6]])
    found = run("refit", folder)
    assert found.code == 0 and "The model was not changed; use --force to apply the refit." in found.err
    with denn.load(folder) as model:
        assert model.card.refitted is None
    assert run("refit", folder, "--force").code == 0
    with denn.load(folder) as model:
        assert model.card.refitted is not None


def test_documents_to_validate_on(run, folder, files):
    assert run("refit", folder, "--valid", files / "test.jsonl", "--force").code == 0
    with denn.load(folder) as model:
        assert model.card.refitted["held_out"] == 20 and model.card.corpus["valid"] == 20


def test_too_little_time_changes_nothing(run, folder):
    found = run("refit", folder, "--time-budget", "0.001")
    assert (
        found.code == 2
        and "could not learn from 60 documents: there is too little time or text. The model was not changed"
        in found.err
    )
    with denn.load(folder) as model:
        assert model.card.refitted is None


def test_forget_documents_that_are_kept_for_validation(run, folder, tiny_corpus):
    gone = tiny_corpus.valid[5]
    shown = run("store", "forget", folder, gone.id, "train-1", "--dry-run")
    assert [row["id"] for row in shown.rows] == ["train-1"] and f"Matching validation documents: {gone.id}" in shown.err
    found = run("store", "forget", folder, gone.id, "train-1")
    assert found.code == 0 and "forgot 2 documents; the datastore holds 59" in found.err
    assert gone.text.encode() not in b"".join(path.read_bytes() for path in folder.glob("validation*/*"))
    again = run("store", "forget", folder, gone.id)
    assert again.code == 2 and gone.id in again.err
    denn.load(folder).close()

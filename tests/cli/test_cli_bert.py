"""The commands with a trained method that has no datastore: the plain classifier."""

import json

import pytest


@pytest.mark.slow
def test_train_evaluate_and_predict_without_a_datastore(run, files, tiny_settings, tiny_corpus, tmp_path):
    folder = tmp_path / "model"
    settings = {name: value for name, value in tiny_settings.items() if name not in ("k", "gamma")} | {"epochs": 1}
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    assert run("train", files / "train.jsonl", "--method", "bert", "--out", folder, "--allow-poor", *options).code == 0
    evaluated = run("evaluate", folder, files / "test.jsonl", "--json")
    assert evaluated.code == 0
    assert set(json.loads(evaluated.out)["systems"]) == {"final"}
    shown = run("evaluate", folder, files / "test.jsonl")
    assert shown.code == 0
    assert "λ" not in shown.out
    predicted = run("predict", folder, files / "test.jsonl", "--evidence")
    assert predicted.code == 0
    assert [row["id"] for row in predicted.rows] == [document.id for document in tiny_corpus.test]
    assert all(row["neighbours"] == [] and row["confidence"] is None for row in predicted.rows)
    sentence = f"denn: {folder} has no datastore, because its method 'bert' does not use one."
    add = ["add", folder, files / "test.jsonl"]
    for command in (add, ["remove", folder, "test-0"], ["relabel", folder, "test-0", "x"], ["info", folder]):
        refused = run("store", *command)
        assert (refused.code, refused.out, refused.err.splitlines()[-1]) == (2, "", sentence)

"""`denn labels`."""

import json
import shutil

import pytest


@pytest.fixture
def model(tiny_model, tmp_path):
    return shutil.copytree(tiny_model, tmp_path / "model")


def test_labels_are_renamed_and_merged(run, model):
    ran = run("labels", "rename", model, "sport", "Sports")
    assert ran.code == 0 and "renamed sport to Sports (" in ran.err
    rows = [json.loads(line) for line in run("store", "list", model, "--label", "Sports").out.splitlines()]
    assert rows and all(row["names"]["sport"] == "Sports" for row in rows)
    ran = run("store", "relabel", model, "train-0", "--add", "brand new")
    assert ran.code == 0 and "New labels: brand new." in ran.err and "vocabulary" not in ran.err
    ran = run("labels", "merge", model, "Sports", "--into", "music")
    assert ran.code == 2 and "Pass --yes" in ran.err
    ran = run("labels", "merge", model, "Sports", "--into", "music", "--yes", "--by", "ann")
    assert ran.code == 0 and f"merged Sports into music: {len(rows)} documents changed" in ran.err
    assert "denn refit" in ran.err
    newest = json.loads(run("store", "history", model, "--json").out.splitlines()[0])
    assert (newest["action"], newest["source"]) == ("relabel", "ann")
    assert run("labels", "rename", model, "nosuch", "x").code == 2

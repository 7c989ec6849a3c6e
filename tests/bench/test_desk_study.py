"""The simulated desk: what is counted, what each strategy learns, resuming, and the figure."""

import argparse
import json

import pytest

import denn
from denn_bench.studies.desk import Desk, draw, run

KNOWN = [denn.Document("first", ("a", "b"))]
STREAM = [denn.Document("second", ("a",)), denn.Document("third", ("new",)), denn.Document("fourth", ("new",))]
SCORES = {"micro_f1": 0.5, "supported_macro_f1": 0.25}


def test_labels_that_only_the_stream_has_count():
    desk = Desk(KNOWN, STREAM, ("a", "b", "never", "new"), window=2, step=1, settings={}, seed=0)
    found = desk.score([["a"], [], ["new", "b"]])
    assert (found["micro_f1"], found["supported_labels"]) == (round(4 / 6, 4), 2)
    assert (found["supported_macro_f1"], found["macro_f1"]) == (round(5 / 6, 4), round(5 / 12, 4))
    assert desk.score([["new", "b"]], 2)["micro_f1"] == round(2 / 3, 4)
    assert desk.score([["b"], ["a"], ["new"]], later=True)["micro_f1"] == round(2 / 3, 4)


def test_only_ways_that_were_followed_are_drawn(tmp_path):
    points = [{"documents": 2, "window": SCORES, "so_far": SCORES}]
    files = draw({"window": 2, "ways": {"refitted": points}}, tmp_path)
    assert [path.name for path in files] == ["desk.svg", "desk.png", "desk.csv"]
    assert files[2].read_text().splitlines()[1:] == ["refitted,2,0.5,0.25,0.5,0.25"]
    assert files[1].stat().st_size


class Killed(Exception):
    """Simulates the end of the process."""


def test_a_stream_resumes_before_the_window_that_was_cut_off(tiny_corpus, tiny_settings, tmp_path, monkeypatch):
    documents = [*tiny_corpus.train, *tiny_corpus.valid, denn.Document("drizzle", (), "unlabelled")]
    (tmp_path / "made.jsonl").write_text(
        "".join(json.dumps({"id": one.id, "text": one.text, "labels": one.labels}) + "\n" for one in documents)
    )
    asked = argparse.Namespace(
        documents=tmp_path / "made.jsonl", ways=["untaught", "taught", "refitted", "trained"], start=70, stream=48,
        window=20, step=10, seed=0, work=tmp_path / "whole", out=tmp_path / "whole.json",
        set=[f"{name}={value}" for name, value in tiny_settings.items() if name != "epochs"],
    )  # fmt: skip
    run(asked)
    whole = json.loads(asked.out.read_text())
    assert (whole["documents"], whole["start"], whole["stream"]) == (118, 70, 48)
    assert [[one["documents"] for one in found] for found in whole["ways"].values()] == [[20, 40, 48]] * 4
    learning = {name: ["learning_seconds" in one for one in found] for name, found in whole["ways"].items()}
    assert learning["taught"] == [False] * 3 and learning["refitted"] == learning["trained"] == [False, True, True]
    stored = {}
    for name in asked.ways:
        with denn.load(asked.work / name / "3" / "model") as model:
            stored[name] = len(model.store)
    assert stored == {"untaught": 63, "taught": 63 + 48, "refitted": 63 + 48, "trained": 99 + 8}

    asked.work, asked.out, asked.ways = tmp_path / "halves", tmp_path / "halves.json", ["refitted"]
    add = denn.Model.add
    with monkeypatch.context() as patched:

        def add_until_killed(model, some, source):
            add(model, some, source=source)
            if len(model.store) == 63 + 30:
                raise Killed

        patched.setattr(denn.Model, "add", add_until_killed)
        with pytest.raises(Killed):
            run(asked)
    assert len(json.loads(asked.out.read_text())["ways"]["refitted"]) == 1
    run(asked)
    resumed = json.loads(asked.out.read_text())["ways"]["refitted"]
    assert [one["so_far"] for one in resumed] == [one["so_far"] for one in whole["ways"]["refitted"]]
    asked.seed = 1
    with pytest.raises(SystemExit, match="other documents or settings"):
        run(asked)

"""The study of effort levels: what it trains, keeps and draws."""

import argparse
import json

import pytest

from denn_bench.studies.effort import draw, run

POINTS = [
    {"system": "br", "minutes": None, "seconds": 3.0, "micro_f1": 0.5, "macro_f1": 0.25},
    {"system": "quick", "minutes": 1.0, "seconds": 50.0, "micro_f1": 0.6, "macro_f1": 0.3},
    {"system": "balanced", "minutes": 1.0, "seconds": 8.0, "said": "too short"},
]


def test_a_training_that_came_to_nothing_is_not_drawn(tmp_path):
    files = draw([{"corpus": "made", "points": POINTS}], tmp_path)
    assert [path.name for path in files] == ["effort.svg", "effort.png", "effort.csv"]
    assert all(path.stat().st_size for path in files)
    assert files[2].read_text().splitlines()[2:] == ["made,quick,1.0,50.0,0.6,0.3", "made,balanced,1.0,8.0,,"]


def arguments(folder, seed=0):
    return argparse.Namespace(
        corpus=folder, documents=None, minutes=[1.0], set=[], seed=seed, out=folder.parent / "effort.json"
    )


@pytest.mark.slow
def test_only_what_is_missing_is_trained(tiny_corpus, tiny_settings, tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    for part in ("train", "valid", "test"):
        lines = [json.dumps({"text": d.text, "labels": d.labels}) + "\n" for d in getattr(tiny_corpus, part)]
        (folder / f"{part}.jsonl").write_text("".join(lines))
    asked = arguments(folder)
    asked.set = [f"{name}={value}" for name, value in tiny_settings.items() if name != "epochs"]
    run(asked)
    found = json.loads(asked.out.read_text())
    assert [(point["system"], point["minutes"]) for point in found["points"]] == [
        ("br", None), ("quick", 1.0), ("balanced", 1.0),
    ]  # fmt: skip
    assert all(point["micro_f1"] > 0.5 for point in found["points"]) and found["points"][1]["frozen"]
    before = asked.out.read_bytes()
    run(asked)
    assert asked.out.read_bytes() == before
    with pytest.raises(SystemExit, match="other documents or settings"):
        run(arguments(folder, seed=1))

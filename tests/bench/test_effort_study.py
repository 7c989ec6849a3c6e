"""The study of effort levels: what it trains, keeps and draws."""

import argparse
import json
from pathlib import Path

import pytest

from denn_bench.studies.effort import draw, run

POINTS = [
    {"system": "br", "minutes": None, "seconds": 3.0, "micro_f1": 0.5, "macro_f1": 0.25},
    {"system": "quick", "minutes": 1.0, "seconds": 50.0, "micro_f1": 0.6, "macro_f1": 0.3},
    {"system": "balanced", "minutes": 1.0, "seconds": 8.0, "said": "too short"},
]


def test_a_training_that_came_to_nothing_is_not_drawn(tmp_path):
    files = draw([{"corpus": "made", **point} for point in POINTS], tmp_path)
    assert [path.name for path in files] == ["effort.svg", "effort.png", "effort.csv"]
    assert all(path.stat().st_size for path in files)
    assert files[2].read_text().splitlines()[2:] == ["made,quick,1.0,50.0,0.6,0.3", "made,balanced,1.0,8.0,,"]


@pytest.mark.slow
def test_only_what_is_missing_is_trained(tiny_corpus, tiny_settings, tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    for part in ("train", "valid", "test"):
        lines = [json.dumps({"text": d.text, "labels": d.labels}) + "\n" for d in getattr(tiny_corpus, part)]
        (folder / f"{part}.jsonl").write_text("".join(lines))
    encoder = str(tiny_settings["encoder"])
    asked = argparse.Namespace(
        corpus=folder, documents=None, systems=["quick", "br"], minutes=[1.0], seed=0, encoder=encoder,
        set=[f"{name}={value}" for name, value in tiny_settings.items() if name not in ("encoder", "epochs")],
        out=tmp_path / "effort.jsonl",
    )  # fmt: skip
    run(asked)
    asked.systems = ["quick", "balanced", "br"]
    run(asked)
    found = [json.loads(line) for line in asked.out.read_text().splitlines()]
    assert [(one["system"], one["minutes"]) for one in found] == [("br", None), ("quick", 1.0), ("balanced", 1.0)]
    assert all(one["micro_f1"] > 0.5 for one in found) and found[1]["frozen"]
    assert {one["encoder"] for one in found} == {Path(encoder).name}

"""AAPD by what the reconstructed training part holds: are the documents of a test document's kind there, or missing?

    python benchmarks/coverage.py DATA/aapd_recon --results results --out results/aapd-coverage.json

`covered` in the reconstruction's test.jsonl is false where a document's labels all lie in categories whose papers the
reconstruction could not get (above all cs.IT + math.IT alone: 22 % of the test part, 4 % of this training part).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from denn.bench.result import Result, read_all, select
from denn.bench.significance import METRICS, pooled_bootstrap
from denn.core.metrics import multilabel_scores
from denn.data.files import open_bytes
from machine import report


def main() -> None:
    """Read the marks, score every recipe on either kind, and compare DENN with BERT on each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with open_bytes(next(arguments.folder.glob("test.jsonl*"))) as file:
        marks = torch.tensor([json.loads(line)["covered"] for line in file.read().splitlines()])
    runs = select(read_all(arguments.results), "aapd")
    kinds = {"covered": marks, "missing": ~marks}
    rows = [
        score(runs, recipe, part, kind, members)
        for recipe in dict.fromkeys(run.recipe for run in runs)
        for part in select(runs, "aapd", recipe)[0].data["thresholds"]
        for kind, members in kinds.items()
    ]
    gains = [gain(runs, part, kind, members) for part in ("final", "average") for kind, members in kinds.items()]
    sizes = {kind: int(members.sum()) for kind, members in kinds.items()}
    report({"documents": sizes, "scores": rows, "denn minus bert": gains}, arguments.out)


def score(runs: list[Result], recipe: str, part: str, kind: str, members: torch.Tensor) -> dict[str, Any]:
    """Average a part's scores on one kind of documents over the seeds, in per cent."""
    chosen = select(runs, "aapd", recipe)
    found = [multilabel_scores(run.decisions(part)[members], run.gold()[members]) for run in chosen]
    named = ("micro_f1", "micro_precision", "micro_recall")
    means = {name: round(100 * sum(f[name] for f in found) / len(found), 1) for name in named}
    return {"recipe": recipe, "part": part, "documents": kind, "seeds": [run.seed for run in chosen], **means}


def gain(runs: list[Result], part: str, kind: str, members: torch.Tensor) -> dict[str, Any]:
    """Compare a part of DENN with BERT on one kind of documents, pooled over the seeds."""
    ours, plain = select(runs, "aapd", "denn"), select(runs, "aapd", "bert")
    pairs = [
        (a.decisions(part)[members], b.decisions("final")[members], a.gold()[members])
        for a, b in zip(ours, plain, strict=True)
    ]
    found = {metric: pooled_bootstrap(pairs, metric) for metric in METRICS}
    points = {m: [round(100 * v, 2) for v in (c.difference, c.low, c.high)] for m, c in found.items()}
    return {"part": part, "documents": kind, **points}


if __name__ == "__main__":
    main()

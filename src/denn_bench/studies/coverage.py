"""AAPD by coverage: is a test document's kind in the reconstructed training split, or missing?

    python -m denn_bench.studies.coverage DATA/aapd_recon --results results --out results/aapd-coverage.json

`covered` in the reconstruction's test.jsonl is false if a document's labels all belong to categories whose papers the
reconstruction lacks (mostly cs.IT + math.IT alone: 22 % of the test split, 4 % of this training split).

"With the official share" replaces a method's score on that kind by its score when `denn_bench.studies.missing` trained
it with 21 % of the kind (aapd-missing-shares-METHOD.json in the results).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from denn.core.metrics import multilabel_scores
from denn.data.compressed import open_bytes
from denn_bench import paper
from denn_bench.result import Result, read_all, select
from denn_bench.significance import METRICS, pooled_bootstrap
from denn_bench.studies.machine import report


def main() -> None:
    """Read the marks, score every recipe on each kind, and compare DENN with BERT on each."""
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
    expected = [
        row for file in sorted(arguments.results.glob("aapd-missing-shares-*.json")) for row in with_share(runs, file)
    ]
    found = {"documents": sizes, "scores": rows, "denn minus bert": gains, "with the official share": expected}
    report(found, arguments.out)


def score(runs: list[Result], recipe: str, part: str, kind: str, members: torch.Tensor) -> dict[str, Any]:
    """Average a part's scores on one kind of document over the seeds, in percent."""
    chosen = select(runs, "aapd", recipe)
    found = [multilabel_scores(run.decisions(part)[members], run.gold()[members]) for run in chosen]
    named = ("micro_f1", "micro_precision", "micro_recall")
    means = {name: round(100 * sum(f[name] for f in found) / len(found), 1) for name in named}
    return {"recipe": recipe, "part": part, "documents": kind, "seeds": [run.seed for run in chosen], **means}


def with_share(runs: list[Result], file: Path) -> Iterator[dict[str, Any]]:
    """Estimate the micro-F1 of a method's rows in the main table with the official share of one kind.

    Micro-F1 is 2 TP / (predicted + gold): the counts of the kind follow from the precision and recall found there,
    those of the other documents are the row's own.
    """
    trained = json.loads(file.read_text())
    precision, recall = (trained["rows"][-1][f"micro_{name}"]["of the kind"] / 100 for name in ("precision", "recall"))
    for run in select(runs, "aapd"):
        if run.recipe not in paper.SYSTEMS or run.data["recipe"]["method"] != trained["recipe"]["method"]:
            continue
        gold, chosen = run.gold(), run.decisions("final")
        labels = run.data["test"]["per_label"]["label"]
        kind = (gold == torch.tensor([label in trained["kind"] for label in labels])).all(1)
        others, here = (multilabel_scores(chosen[some], gold[some])["micro_f1"] for some in (~kind, kind))
        hits = recall * float(gold[kind].sum())
        found = float((chosen & gold)[~kind].sum()) + hits
        sizes = float(chosen[~kind].sum() + gold.sum()) + hits / precision
        f1 = {
            "others": others,
            "of the kind": here,
            "all": run.metric("final", "tuned", "micro_f1"),
            "of the kind, with its share": 2 / (1 / precision + 1 / recall),
            "all, with its share": 2 * found / sizes,
        }
        yield {"recipe": run.recipe, "seed": run.seed, **{name: round(100 * value, 1) for name, value in f1.items()}}


def gain(runs: list[Result], part: str, kind: str, members: torch.Tensor) -> dict[str, Any]:
    """Compare a part of DENN with BERT on one kind of document, pooled over the seeds."""
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

r"""What is best with few documents: validation documents alone, fine-tuning as well, or cross-fitting.

    python -m denn_bench.studies.few_documents DATA --seeds 0 1 2 --ways "held out" cross-fitted \
        --out results/few-documents.jsonl

Trains on random documents of each corpus, a tenth of them for validation, and scores 1,000 random test documents:
`held out` tunes on the validation documents alone, `fine-tuned` also trains the encoder and keeps the better model, and
`cross-fitted` is the default: tuned on all documents, each scored by a model that has not learnt from it.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import denn
from denn.methods import cross_fitting
from denn.registry import CORPORA, lookup
from denn.types import Corpus
from denn_bench.peers.variations import varied
from denn_bench.studies.machine import machine

CORPORA_SHOWN = {
    "reuters21578": "Reuters-21578", "goemotions": "GoEmotions", "debian": "Debian packages", "aapd": "AAPD",
}  # fmt: skip
TESTED = 1_000
WAYS: Mapping[str, Mapping[str, Any]] = {  # name → parameters
    "held out": {"effort": "quick"},
    "fine-tuned": {"effort": "balanced"},
    "cross-fitted": {"effort": "quick"},
}
METRICS = ("micro_f1", "macro_f1")
KEY = ("corpus", "documents", "seed", "way")


def train(corpus: Corpus, way: str, seed: int) -> dict[str, Any]:
    """Train once, and score the test documents."""
    most, begun = cross_fitting.FEW, time.monotonic()
    cross_fitting.FEW = most if way == "cross-fitted" else 0
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            denn.train(
                corpus, out=Path(folder) / "model", allow_poor=True, progress=False, seed=seed, **WAYS[way]
            ) as model,
        ):
            seconds = time.monotonic() - begun
            found, card = model.evaluate(list(corpus.test)).headline, model.card
    finally:
        cross_fitting.FEW = most
    return {
        "seconds": round(seconds, 1),
        "fine_tuned": not card.training["frozen"],
        "expected": {name: round(card.metrics[name], 5) for name in METRICS},
        "test": {name: round(found[name], 5) for name in METRICS},
    }


def run(a: argparse.Namespace) -> None:
    """Write a line for every run that has none yet."""
    known = [json.loads(line) for line in a.out.read_text(encoding="utf-8").splitlines()] if a.out.exists() else []
    for name in a.corpora:
        whole = lookup(CORPORA, name, "corpus")(a.data / name)
        test = random.Random(0).sample(list(whole.test), min(TESTED, len(whole.test)))
        for documents in a.documents:
            for seed in a.seeds:
                part = replace(varied(whole, f"documents={documents}", seed), test=test)
                for way in a.ways:
                    about = {"corpus": name, "documents": documents, "seed": seed, "way": way}
                    if any(all(line[key] == about[key] for key in KEY) for line in known):
                        continue
                    row = {**about, **train(part, way, seed), "machine": machine()}
                    with a.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
                    print(*about.values(), row["test"], f"{row['seconds']} s", flush=True)


def table(path: Path) -> None:
    """Compare cross-fitting with each other way, by means over the seeds that both have."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    by_way: dict[str, dict[tuple[str, int, int], dict[str, Any]]] = {way: {} for way in WAYS}
    for line in lines:
        by_way[line["way"]][line["corpus"], line["documents"], line["seed"]] = line
    default = by_way.pop("cross-fitted")
    for way, found in by_way.items():
        print(f"\n| corpus | documents | seeds | {way} | error | s | cross-fitted | error | s |")
        print("|---|--:|--:|---|--:|--:|---|--:|--:|")
        for corpus, documents in dict.fromkeys(key[:2] for key in found):
            seeds = [key for key in found if key[:2] == (corpus, documents) and key in default]
            cells = [cell for rows in (found, default) for cell in _cells([rows[key] for key in seeds])]
            print(f"| {CORPORA_SHOWN[corpus]} | {documents} | {len(seeds)} | {' | '.join(cells)} |")


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the mean F1, how far the reported micro-F1 was from that on the test documents, and the seconds."""
    scores = " / ".join(f"{100 * fmean(row['test'][name] for row in rows):.1f}" for name in METRICS)
    error = fmean(abs(row["expected"]["micro_f1"] - row["test"]["micro_f1"]) for row in rows)
    return [scores, f"{100 * error:.1f}", f"{fmean(row['seconds'] for row in rows):.0f}"]


def main() -> None:
    """Run what has not run yet, and print tables of all runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with one subfolder for each corpus")
    parser.add_argument("--corpora", nargs="*", choices=CORPORA_SHOWN, default=list(CORPORA_SHOWN))
    parser.add_argument("--documents", nargs="+", type=int, default=[100, 300])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    run(a)
    table(a.out)


if __name__ == "__main__":
    main()

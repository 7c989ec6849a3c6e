r"""What is best with few documents: validation documents alone, fine-tuning as well, or cross-fitting.

    python -m denn_bench.studies.few_documents run DATA --seeds 0 1 2 --out results/few-documents.jsonl
    python -m denn_bench.studies.few_documents table results/few-documents.jsonl

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
from collections.abc import Mapping
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
    """Print mean scores over the seeds that every way of a corpus and size has."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    groups: dict[tuple[str, int], dict[str, dict[int, dict[str, Any]]]] = {}
    for line in lines:
        groups.setdefault((line["corpus"], line["documents"]), {}).setdefault(line["way"], {})[line["seed"]] = line
    print(f"| corpus | documents | {' | '.join(f'{way} | s' for way in WAYS)} | seeds |")
    print("|---|--:|" + "---|--:|" * len(WAYS) + "--:|")
    for (corpus, documents), ways in groups.items():
        seeds = sorted(set.intersection(*(set(found) for found in ways.values())))
        cells = []
        for way in WAYS:
            found = [ways[way][seed] for seed in seeds] if way in ways else []
            scores = " / ".join(f"{100 * fmean(one['test'][name] for one in found):.1f}" for name in METRICS if found)
            cells += [scores or "-", f"{fmean(one['seconds'] for one in found):.0f}" if found else "-"]
        print(f"| {CORPORA_SHOWN[corpus]} | {documents} | {' | '.join(cells)} | {', '.join(map(str, seeds))} |")


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="train and test")
    running.add_argument("data", type=Path, help="folder with one subfolder for each corpus")
    running.add_argument("--corpora", nargs="+", choices=CORPORA_SHOWN, default=list(CORPORA_SHOWN))
    running.add_argument("--documents", nargs="+", type=int, default=[100, 300])
    running.add_argument("--seeds", nargs="+", type=int, default=[0])
    running.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    running.add_argument("--out", type=Path, required=True)
    showing = commands.add_parser("table", help="print a table")
    showing.add_argument("records", type=Path)
    a = parser.parse_args()
    if a.command == "run":
        run(a)
    else:
        table(a.records)


if __name__ == "__main__":
    main()

r"""Whether trainings are stable: many of them, with their validations and collapses.

    python benchmarks/stability.py run DATA --corpus aapd --encoder mpnet --seeds 0 1 2 3 --out results/stability.jsonl
    python benchmarks/stability.py run DATA --corpus aapd-extra --recipe denn-tuned --out results/stability.jsonl
    python benchmarks/stability.py table results/stability.jsonl

Trains DENN's network by its defaults, or by a recipe, and scores validation and test by the classifier; no datastore is
built. A line is written when a training ends. A training whose line is there already is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from denn.build import Silent
from denn.clock import Clock
from denn.config import make_recipe, parse_settings, read_recipe
from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.registry import CORPORA, lookup
from denn.types import Corpus
from machine import machine

RECIPES = Path(__file__).parents[1] / "recipes"
FOLDERS = {"aapd": "aapd_recon", "aapd-extra": "aapd_recon", "amazon531": "amazon531_subset"}  # others: their own name
KEY = ("corpus", "recipe", "encoder", "settings", "seed")


def train(corpus: Corpus, recipe: str | None, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Train once and return what came of it."""
    _, written = ("denn", {}) if recipe is None else read_recipe(RECIPES / name / f"{recipe}.toml")
    made = make_recipe("denn", {**written, "checkpoint_seconds": 1e9, **settings})
    method, begun = made.build(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        facts = method.fit(corpus, Path(folder), Silent(), Clock()).facts
    seconds = time.monotonic() - begun
    parts = {part: getattr(corpus, part) for part in ("valid", "test")}
    tokens = {part: method.network.tokenize([d.text for d in documents]) for part, documents in parts.items()}
    scores = {part: method.network.score(tokens[part])["final"] for part in parts}
    gold = {part: corpus.labels.matrix(documents) for part, documents in parts.items()}
    threshold = tune_global(scores["valid"], gold["valid"])
    found = {part: multilabel_scores(decide(scores[part], threshold), gold[part]) for part in parts}
    return {
        "steps": facts["steps"],
        "best_step": facts["best_step"],
        "collapses": facts["collapses"],
        "seconds": round(seconds, 1),
        "threshold": threshold,
        **{part: {key: round(values[key], 5) for key in ("micro_f1", "macro_f1")} for part, values in found.items()},
        "history": [{key: round(value, 4) for key, value in entry.items()} for entry in facts["history"]],
        "parameters": made.as_dict()["parameters"],
    }


def run(a: argparse.Namespace) -> None:
    """Train with every seed that has no line yet."""
    corpus = lookup(CORPORA, a.corpus, "corpus")(a.data / FOLDERS.get(a.corpus, a.corpus))
    known = [json.loads(line) for line in a.out.read_text().splitlines()] if a.out.exists() else []
    encoder = {} if a.encoder is None else {"encoder": str(a.encoder)}
    for seed in a.seeds:
        about = {"corpus": a.corpus, "recipe": a.recipe, "encoder": Path(a.encoder or "").name or None}
        about |= {"settings": parse_settings(a.set), "seed": seed}
        if any(all(line[key] == about[key] for key in KEY) for line in known):
            continue
        found = train(corpus, a.recipe, a.corpus, {**encoder, **about["settings"], "seed": seed})
        with a.out.open("a") as file:
            file.write(json.dumps({**about, **found, "machine": machine()}) + "\n")
        shown = {key: found[key] for key in ("steps", "collapses", "seconds", "valid", "test")}
        print(a.corpus, a.recipe, about["encoder"], about["settings"], seed, shown, flush=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def table(path: Path) -> None:
    """Print a line for every setting: runs, collapses, and mean and standard deviation of micro- and macro-F1."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for line in path.read_text().splitlines():
        one = json.loads(line)
        key = (one["corpus"], one["recipe"] or "defaults", one["encoder"] or "", json.dumps(one["settings"]))
        groups.setdefault(key, []).append(one)
    print("| corpus | recipe | encoder | settings | runs | steps | collapses | micro-F1 | macro-F1 |\n|" + 9 * "---|")
    for key, runs in groups.items():
        steps = f"{statistics.mean(one['steps'] for one in runs):.0f}"
        collapses = str(sum(len(one["collapses"]) for one in runs))
        scores = [_spread([100 * one["test"][name] for one in runs]) for name in ("micro_f1", "macro_f1")]
        print("|", " | ".join([*key, str(len(runs)), steps, collapses, *scores]), "|")


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="train with some seeds")
    running.add_argument("data", type=Path, help="folder of all corpora")
    running.add_argument("--corpus", choices=sorted(CORPORA), required=True)
    running.add_argument("--recipe", help="of the corpus; the defaults where none is named")
    running.add_argument("--encoder", help="a name or a folder; the recipe's or the default one where none is named")
    running.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a parameter of the method")
    running.add_argument("--seeds", type=int, nargs="+", default=[0])
    running.add_argument("--out", type=Path, required=True)
    showing = commands.add_parser("table", help="show what came of all runs")
    showing.add_argument("records", type=Path)
    a = parser.parse_args()
    if a.command == "run":
        run(a)
    else:
        table(a.records)


if __name__ == "__main__":
    main()

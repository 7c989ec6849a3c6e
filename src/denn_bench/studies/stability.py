r"""Stability of training: many runs, with their validations and collapses.

    python -m denn_bench.studies.stability run DATA --corpus aapd --encoder mpnet --seeds 0 1 2 3 \
        --out results/stability.jsonl
    python -m denn_bench.studies.stability run DATA --corpus aapd-extra --recipe denn-tuned \
        --out results/stability.jsonl
    python -m denn_bench.studies.stability table results/stability.jsonl

Trains DENN's network with its defaults or a recipe, and scores validation and test with the classifier; with
`--neighbours` also with the nearest training documents, with λ, and with the average. A line is written after each
run; runs that have a line are not repeated. `--scores FOLDER` saves the scores of both witnesses for
`denn bench combine`.
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
import torch.nn.functional as F
from torch import Tensor

from denn.clock import Clock
from denn.config import make_recipe, parse_settings, read_recipe
from denn.core.combine import combine, debiased_confidence, vote
from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.methods.denn import DENN
from denn.prediction_types import Context
from denn.progress import Silent
from denn.registry import CORPORA, lookup
from denn.types import Corpus
from denn_bench.studies.machine import machine
from denn_bench.witness_scores import WitnessScores

RECIPES = Path(__file__).parents[3] / "recipes"
FOLDERS = {"aapd": "aapd_recon", "aapd-extra": "aapd_recon", "amazon531": "amazon531_subset"}  # others: their own name
METRICS = ("micro_f1", "macro_f1")
KEY = ("corpus", "recipe", "encoder", "settings", "seed", "idea")


def train(
    corpus: Corpus,
    recipe: str | None,
    name: str,
    settings: dict[str, Any],
    neighbours: bool,
    kept: Path | None,
    kind: type[DENN] = DENN,
) -> dict[str, Any]:
    """Train once and return the result."""
    _, written = ("denn", {}) if recipe is None else read_recipe(RECIPES / name / f"{recipe}.toml")
    made = make_recipe("denn", {**written, "checkpoint_seconds": 1e9, **settings})
    method, begun = kind(made.parameters), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        facts: Any = method.fit(corpus, Path(folder), Silent(), Clock()).facts
    seconds = time.monotonic() - begun
    parts = {part: getattr(corpus, part) for part in ("valid", "test")}
    tokens = {part: method.network.tokenize([d.text for d in documents]) for part, documents in parts.items()}
    embeddings = {part: method.network.encode(tokens[part]) for part in parts}
    scores = {part: {"classifier": method.network.score(tokens[part])["final"]} for part in parts}
    gold = {part: corpus.labels.matrix(documents) for part, documents in parts.items()}
    if neighbours or kept:
        stored, p = corpus.labels.matrix(corpus.train), method.parameters
        keys = method.network.encode(method.network.tokenize([d.text for d in corpus.train]))
        for part in parts:
            similarity, rows = nearest(embeddings[part], keys, p.k, method.network.device)
            known, votes = scores[part]["classifier"], votes_of(similarity, rows, stored, p.vote_temperature)
            scores[part]["neighbours"] = votes
            if kept:
                context = Context(stored.sum(0), similarity, p.gamma, p.vote_temperature)
                WitnessScores(name, p.seed, dict(scores[part]), gold[part], context).save(kept / f"{part}.npz")
            scores[part]["average"] = (known + votes) / 2
            scores[part]["confidence"] = combine(known, votes, debiased_confidence(known, votes, p.gamma))
    found: dict[str, dict[str, Any]] = {}
    for system in scores["valid"]:
        threshold = tune_global(scores["valid"][system], gold["valid"])
        found[system] = {"threshold": threshold}
        for part in parts:
            values = multilabel_scores(decide(scores[part][system], threshold), gold[part])
            found[system][part] = {key: round(values[key], 5) for key in METRICS}
    return {
        "steps": facts["steps"],
        "best_step": facts["best_step"],
        "collapses": facts["collapses"],
        "seconds": round(seconds, 1),
        "systems": found,
        "history": [{key: round(value, 4) for key, value in entry.items()} for entry in facts["history"]],
        "parameters": {**made.as_dict()["parameters"], "encoder": Path(made.parameters.encoder).name},
    }


def nearest(queries: Tensor, keys: Tensor, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the cosine similarities and rows of the k nearest keys, nearest first."""
    keys = F.normalize(keys.to(device), dim=1)
    some = min(k, len(keys))
    starts = range(0, len(queries), 500)
    found = [(F.normalize(queries[i : i + 500].to(device), dim=1) @ keys.T).topk(some) for i in starts]
    return torch.cat([one.values for one in found]).cpu(), torch.cat([one.indices for one in found]).cpu()


def votes_of(similarity: Tensor, rows: Tensor, stored: Tensor, temperature: float) -> Tensor:
    """Return the (n,L) votes of the training documents in these rows, whose labels are `stored`."""
    pairs = zip(similarity, rows, strict=True)
    return torch.cat([vote(one[None], stored[row][None].float(), temperature) for one, row in pairs])


def run(a: argparse.Namespace, idea: str | None = None, kind: type[DENN] = DENN) -> None:
    """Train with every seed that has no line yet; `idea` says how `kind` differs from DENN."""
    corpus = lookup(CORPORA, a.corpus, "corpus")(a.data / FOLDERS.get(a.corpus, a.corpus))
    known = [json.loads(line) for line in a.out.read_text().splitlines()] if a.out.exists() else []
    encoder = {} if a.encoder is None else {"encoder": str(a.encoder)}
    for seed in a.seeds:
        about = {"corpus": a.corpus, "recipe": a.recipe, "encoder": Path(a.encoder or "").name or None}
        about |= {"settings": parse_settings(a.set), "seed": seed, "idea": idea}
        if any(all(line.get(key) == about.get(key) for key in KEY) for line in known):  # older lines have no idea
            continue
        name = (a.corpus, a.recipe or "defaults", about["encoder"] or "own", idea, str(seed))
        kept = a.scores and a.scores / "-".join(filter(None, name))
        settings = {**encoder, **about["settings"], "seed": seed}
        found = train(corpus, a.recipe, a.corpus, settings, a.neighbours, kept, kind)
        with a.out.open("a") as file:
            file.write(json.dumps({**about, **found, "machine": machine()}) + "\n")
        shown = {key: found[key] for key in ("steps", "collapses", "seconds", "systems")}
        print(*about.values(), shown, flush=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def table(path: Path) -> None:
    """Print a line per setting: runs, collapses, and mean and standard deviation of micro- and macro-F1."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for line in path.read_text().splitlines():
        one = json.loads(line)
        settings = ", ".join(f"{key} {value}" for key, value in one["settings"].items())
        settings += f", idea: {one['idea']}" if one.get("idea") else ""
        for system in one["systems"]:
            key = (one["corpus"], one["recipe"] or "defaults", one["parameters"]["encoder"], settings, system)
            groups.setdefault(key, []).append(one)
    print("| corpus | recipe | encoder | settings | scores of | runs | steps | collapses | validation | test |")
    print("|" + 10 * "---|")
    for about, runs in groups.items():
        steps = f"{statistics.mean(one['steps'] for one in runs):.0f}"
        collapses = str(sum(len(one["collapses"]) for one in runs))
        scores = [
            " / ".join(_spread([100 * one["systems"][about[-1]][part][name] for one in runs]) for name in METRICS)
            for part in ("valid", "test")
        ]
        print("|", " | ".join([*about, str(len(runs)), steps, collapses, *scores]), "|")


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what to train and where to write."""
    parser.add_argument("data", type=Path, help="folder with all corpora")
    parser.add_argument("--corpus", choices=sorted(CORPORA), required=True)
    parser.add_argument("--recipe", help="recipe of the corpus; default: the method's defaults")
    parser.add_argument("--encoder", help="name or folder; default: the recipe's, or the method's default")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="parameter of the method")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--scores", type=Path, metavar="FOLDER", help="folder to save the scores of every text in")
    parser.add_argument("--out", type=Path, required=True)


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="train with some seeds")
    add_options(running)
    running.add_argument("--neighbours", action="store_true", help="also score with neighbours, λ and the average")
    showing = commands.add_parser("table", help="show the results of all runs")
    showing.add_argument("records", type=Path)
    a = parser.parse_args()
    if a.command == "run":
        run(a)
    else:
        table(a.records)


if __name__ == "__main__":
    main()

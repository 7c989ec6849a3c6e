r"""Test F1 of each effort level by time budget, compared with TF-IDF + linear SVM.

    python -m denn_bench.studies.effort run DATA/goemotions --minutes 1 5 20 --out results/effort.jsonl
    python -m denn_bench.studies.effort draw results/effort.jsonl --out docs/figures

The folder contains train.jsonl[.zst], test.jsonl[.zst] and optionally valid.jsonl[.zst]; by default, 10 % of train is
split off. Every level gets every time budget; the seconds count from the call to the model on disk. A line is written
after each training run; runs that have a line are not repeated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

import denn
from denn.config import parse_settings
from denn.errors import TrainingError
from denn_bench.figures import STYLE, save
from denn_bench.studies.machine import machine
from denn_bench.studies.quality import Notes

LEVELS = ("quick", "balanced")
SHOWN = {"quick": ("#009E73", "o"), "balanced": ("#0072B2", "s"), "br": ("#D55E00", "^")}
NAMES = {"quick": "effort quick", "balanced": "effort balanced", "br": "TF-IDF + SVM"}
TITLES = {"debian": "Debian packages", "goemotions": "GoEmotions", "reuters21578": "Reuters-21578"}
METRICS = {"micro_f1": "micro-F1, %", "macro_f1": "macro-F1, %"}
TICKS = (1, 10, 60, 300, 1200)
COLUMNS = ("corpus", "system", "minutes", "seconds", *METRICS)
PARTS = ("train", "valid", "test", "labels")


def train(corpus: denn.Corpus, settings: dict[str, Any]) -> dict[str, Any]:
    """Train once, evaluate on the test split, and return the result."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        try:
            model = denn.train(corpus, out=Path(folder) / "model", allow_poor=True, progress=Notes(), **settings)
        except TrainingError as error:  # not enough time
            return {"seconds": round(time.monotonic() - begun, 1), "said": str(error)}
        seconds = time.monotonic() - begun
        with model:
            found, facts = model.evaluate(corpus.test).headline, model.card.training
    kept = {name: facts[name] for name in ("frozen", "steps", "documents_used", "effort") if name in facts}
    return {"seconds": round(seconds, 1), **{name: round(found[name], 4) for name in METRICS}, **kept}


def read(folder: Path, documents: int | None) -> denn.Corpus:
    """Read a corpus, or its first documents."""
    files = {part: next(iter(folder.glob(f"{part}.jsonl*")), None) for part in ("train", "valid", "test")}
    corpus = denn.read_corpus(files["train"], files["valid"], files["test"], name=folder.name)
    if documents is None:
        return corpus
    others = max(50, documents // 10)
    return replace(corpus, train=corpus.train[:documents], valid=corpus.valid[:others], test=corpus.test[:others])


def run(a: argparse.Namespace) -> None:
    """Perform the runs that have no line yet."""
    corpus = read(a.corpus, a.documents)
    about = {"corpus": corpus.name, **{part: len(getattr(corpus, part)) for part in PARTS}}
    about |= {"encoder": Path(a.encoder).name if a.encoder else None, "settings": a.set, "seed": a.seed}
    known = [json.loads(line) for line in a.out.read_text().splitlines()] if a.out.exists() else []
    levels = [system for system in a.systems if system in LEVELS]
    wanted: list[tuple[str, float | None]] = [("br", None)] if "br" in a.systems else []
    wanted += [(level, minutes) for minutes in a.minutes for level in levels]
    for system, minutes in wanted:
        key = about | {"system": system, "minutes": minutes}
        if any(key.items() <= line.items() for line in known):
            continue
        settings: dict[str, Any] = {"method": "br", "seed": a.seed}
        if system != "br":
            settings = {"effort": system, "time_budget": 60.0 * (minutes or 0), "seed": a.seed, **parse_settings(a.set)}
            settings |= {"encoder": a.encoder} if a.encoder else {}
        found = key | train(corpus, settings) | {"machine": machine()}
        with a.out.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(json.dumps(found), flush=True)


def draw(found: Sequence[dict[str, Any]], out: Path) -> list[Path]:
    """Draw F1 by seconds, one row of panels per corpus, as SVG, PNG and CSV."""
    corpora = list(dict.fromkeys(one["corpus"] for one in found))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.0, 3.2 * len(corpora)))
        rows = figure.subplots(len(corpora), len(METRICS), squeeze=False)
        for corpus, panels in zip(corpora, rows, strict=True):
            for panel, (metric, label) in zip(panels, METRICS.items(), strict=True):
                for system, (colour, marker) in SHOWN.items():
                    mine = [
                        one for one in found if (one["corpus"], one["system"]) == (corpus, system) and metric in one
                    ]
                    points = sorted((one["seconds"], 100 * one[metric]) for one in mine)
                    line = "none" if system == "br" else "-"
                    seconds, scores = zip(*points, strict=True) if points else ((), ())
                    panel.plot(seconds, scores, linestyle=line, color=colour, marker=marker, label=NAMES[system])
                panel.set(xscale="log", xlim=(1, 2000), xlabel="training time, seconds", ylabel=label)
                panel.set_title(TITLES.get(corpus, corpus))
                panel.set_xticks(TICKS, labels=[str(tick) for tick in TICKS])
                panel.minorticks_off()
        figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(SHOWN))
        return save(figure, out, "effort", COLUMNS, ([one.get(name) for name in COLUMNS] for one in found))


def main() -> None:
    """Run or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="train and evaluate")
    running.add_argument("corpus", type=Path, help="folder of a corpus")
    running.add_argument("--minutes", type=float, nargs="+", default=[1, 5, 20])
    running.add_argument("--systems", nargs="+", choices=list(SHOWN), default=list(SHOWN))
    running.add_argument(
        "--documents", type=int, help="use only the first documents, and 10 % as many for validation and test"
    )
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--encoder", help="encoder, by name or folder; default: the default encoder")
    running.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="parameter of denn")
    running.add_argument("--out", type=Path, required=True)
    drawing = commands.add_parser("draw", help="draw the results")
    drawing.add_argument("results", type=Path, help="file of `run`")
    drawing.add_argument("--out", type=Path, default=Path("docs/figures"))
    a = parser.parse_args()
    if a.command == "run":
        run(a)
    else:
        for path in draw([json.loads(line) for line in a.results.read_text().splitlines()], a.out):
            print(path)


if __name__ == "__main__":
    main()

r"""What an effort level gives in a time: F1 on test documents by minutes, beside TF-IDF + linear SVM.

    python -m denn_bench.studies.effort run DATA/goemotions --minutes 1 5 20 --out results/effort-goemotions.json
    python -m denn_bench.studies.effort draw results/effort-goemotions.json --out docs/figures

The folder holds train.jsonl[.zst], test.jsonl[.zst] and perhaps valid.jsonl[.zst]; without one, a tenth of train is
split off. Every level gets every time as its time budget; the seconds are those from the call to the model on disk. The
file is written after each training, and trainings that it has are not repeated.
"""

from __future__ import annotations

import argparse
import csv
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
from denn_bench.figures import DPI, STYLE
from denn_bench.studies.machine import machine
from denn_bench.studies.quality import Notes

LEVELS = ("quick", "balanced")
SHOWN = {"quick": ("#009E73", "o"), "balanced": ("#0072B2", "s"), "br": ("#D55E00", "^")}
NAMES = {"quick": "effort quick", "balanced": "effort balanced", "br": "TF-IDF + SVM"}
METRICS = {"micro_f1": "micro-F1, %", "macro_f1": "macro-F1, %"}
TICKS = (1, 10, 60, 300, 1200)
COLUMNS = ("corpus", "system", "minutes", "seconds", *METRICS)


def train(corpus: denn.Corpus, settings: dict[str, Any]) -> dict[str, Any]:
    """Train once, evaluate on the test part, and return what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        try:
            model = denn.train(corpus, out=Path(folder) / "model", allow_poor=True, progress=Notes(), **settings)
        except TrainingError as error:  # too short a time
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
    """Train what the file lacks, and write each result as it comes."""
    corpus = read(a.corpus, a.documents)
    sizes = {part: len(getattr(corpus, part)) for part in ("train", "valid", "test", "labels")}
    about = {"corpus": corpus.name, **sizes, "settings": a.set, "seed": a.seed}
    points: list[dict[str, Any]] = []
    if a.out.exists():
        earlier = json.loads(a.out.read_text())
        if any(earlier.get(name) != value for name, value in about.items()):
            raise SystemExit(f"{a.out} is of other documents or settings. Move it away, or give another --out.")
        points = earlier["points"]
    levels = [system for system in a.systems if system in LEVELS]
    wanted: list[tuple[str, float | None]] = [("br", None)] if "br" in a.systems else []
    wanted += [(level, minutes) for minutes in a.minutes for level in levels]
    for system, minutes in wanted:
        if any((point["system"], point["minutes"]) == (system, minutes) for point in points):
            continue
        settings = {"method": "br"} if system == "br" else {"effort": system, "time_budget": 60.0 * (minutes or 0)}
        settings |= {"seed": a.seed} | ({} if system == "br" else parse_settings(a.set))
        points.append({"system": system, "minutes": minutes, **train(corpus, settings)})
        print(json.dumps(points[-1]), flush=True)
        a.out.write_text(json.dumps({**about, "points": points, "machine": machine()}, indent=1) + "\n")


def draw(studies: Sequence[dict[str, Any]], out: Path) -> list[Path]:
    """Draw F1 by seconds, a row of panels for each corpus, as SVG, PNG and CSV."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.0, 3.2 * len(studies)))
        rows = figure.subplots(len(studies), len(METRICS), squeeze=False)
        for study, panels in zip(studies, rows, strict=True):
            for panel, (metric, label) in zip(panels, METRICS.items(), strict=True):
                for system, (colour, marker) in SHOWN.items():
                    mine = sorted(
                        (p["seconds"], 100 * p[metric])
                        for p in study["points"]
                        if p["system"] == system and metric in p
                    )
                    line = "none" if system == "br" else "-"
                    seconds, scores = zip(*mine, strict=True) if mine else ((), ())
                    panel.plot(seconds, scores, linestyle=line, color=colour, marker=marker, label=NAMES[system])
                panel.set(xscale="log", xlim=(1, 2000), xlabel="seconds", ylabel=label, title=study["corpus"])
                panel.set_xticks(TICKS, labels=[str(tick) for tick in TICKS])
                panel.minorticks_off()
        figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(SHOWN))
        out.mkdir(parents=True, exist_ok=True)
        figure.savefig(out / "effort.svg", metadata={"Date": None, "Creator": None})
        figure.savefig(out / "effort.png", dpi=DPI, metadata={"Software": None})
    with (out / "effort.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for study in studies:
            writer.writerows([study["corpus"], *(p.get(name) for name in COLUMNS[1:])] for p in study["points"])
    return [out / f"effort.{suffix}" for suffix in ("svg", "png", "csv")]


def main() -> None:
    """Run or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="train and evaluate")
    running.add_argument("corpus", type=Path, help="folder of a corpus")
    running.add_argument("--minutes", type=float, nargs="+", default=[1, 5, 20])
    running.add_argument("--systems", nargs="+", choices=list(SHOWN), default=list(SHOWN))
    running.add_argument(
        "--documents", type=int, help="take the first documents only, and a tenth as many to validate and to test"
    )
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a parameter of denn")
    running.add_argument("--out", type=Path, required=True)
    drawing = commands.add_parser("draw", help="draw what was measured")
    drawing.add_argument("results", type=Path, nargs="+", help="files of `run`")
    drawing.add_argument("--out", type=Path, default=Path("docs/figures"))
    a = parser.parse_args()
    if a.command == "run":
        run(a)
    else:
        for path in draw([json.loads(file.read_text()) for file in a.results], a.out):
            print(path)


if __name__ == "__main__":
    main()

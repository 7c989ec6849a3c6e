r"""Show the records of `collapse.py`: a table of all runs, and curves of some.

python -m denn_bench.studies.collapse_page table results/collapse
python -m denn_bench.studies.collapse_page plot RUNS/NAME.jsonl.xz --first 1050 --last 1180 --out collapse.png
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from denn_bench.studies.collapse_probes import SPIKE

SETTLED = 50  # steps before spikes are counted
CURVES = {
    "gradient": "gradient norm",
    "loss": "loss",
    "contrast": "contrastive loss",
    "own_view": "cosine of a text's two views",
    "other_texts": "cosine of different texts",
}
TITLES = {"as-is": "same learning rate in all layers", "layers": "each layer at 0.85 of the layer above"}


def read_record(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a record, compressed or not; ignore a truncated last line."""
    text = lzma.open(path, "rt").read() if path.suffix == ".xz" else path.read_text()
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def trace(lines: Sequence[dict[str, Any]], name: str) -> list[float]:
    """Return one quantity of every step."""
    found = [value for line in lines if "trace" in line for value in line["trace"][name]]
    return [math.nan if value is None else value for value in found]


def table(folder: Path) -> None:
    """Print a line per run, with its validation micro-F1 and where and why it collapsed; then one per variant."""
    print(f"{'run':80} {'steps':>6} {'collapse':>16} {'best':>6} {'last':>6} {'cosine':>7} {'s':>6}")
    groups: dict[tuple[str, str, float], list[tuple[bool, float, float]]] = {}
    for path in sorted(folder.glob("*.jsonl*")):
        lines = read_record(path)
        looks = [line for line in lines if line["kind"] == "look"]
        scores = [line["micro_f1"] for line in lines if line["kind"] == "deep"]
        if not looks or not scores:
            continue
        found = next((line for line in lines if line["kind"] == "collapse"), None)
        where = f"{found['step']} {found['why']}" if found else "-"
        open_end = "" if lines[-1]["kind"] == "end" else "…"
        best, last, cosine = 100 * max(scores), 100 * scores[-1], looks[-1]["cosine"]
        step, seconds = f"{looks[-1]['step']}{open_end}", lines[-1]["seconds"]
        cosine = "null" if cosine is None else f"{cosine:.3f}"
        name = path.name.split(".jsonl")[0]
        print(f"{name:80} {step:>6} {where:>16} {best:6.1f} {last:6.1f} {cosine:>7} {seconds:6.0f}")
        start, end = lines[0], found["step"] if found else math.inf
        kind = ("fork of " if start["began_at"] else "") + start["variant"]
        norms = trace(lines, "gradient")[: int(min(end, 1e9)) - start["began_at"]]
        usual = statistics.median(norms)
        share = 1000 * sum(norm > SPIKE * usual for norm in norms[SETTLED:]) / max(1, len(norms) - SETTLED)
        key = start["corpus"], kind, start["parameters"]["learning_rate"]
        groups.setdefault(key, []).append((found is not None, share, best))
    print(f"\n{'corpus':12} {'variant':28} {'rate':>8} {'runs':>5} {'collapsed':>10} {'spikes/1000':>12} {'best':>6}")
    for (corpus, kind, rate), runs in groups.items():
        spikes, best = (statistics.mean(run[i] for run in runs) for i in (1, 2))
        print(f"{corpus:12} {kind:28} {rate:8g} {len(runs):5} {sum(r[0] for r in runs):10} {spikes:12.1f} {best:6.1f}")


def plot(paths: Sequence[Path], first: int, last: int, out: Path) -> None:
    """Draw gradient norm, losses and cosine similarities of runs, step by step, below each other."""
    figure = Figure(figsize=(9, 7), layout="constrained")
    grid = figure.subplots(3, len(paths), sharex=True, sharey="row", squeeze=False)
    for column, path in enumerate(paths):
        lines = read_record(path)
        steps = range(first, last)
        for row, names in enumerate((("gradient",), ("loss", "contrast"), ("own_view", "other_texts"))):
            axes = grid[row][column]
            for name in names:
                values = trace(lines, name)[first:last]
                axes.plot(list(steps)[: len(values)], values, label=CURVES[name], linewidth=1)
            if row < 2:
                axes.set_yscale("log")
            axes.legend(loc="center left" if row == 2 else "upper left", fontsize=8, frameon=False)
            axes.grid(alpha=0.3)
        variant = lines[0]["variant"]
        grid[0][column].set_title(f"{TITLES.get(variant, variant)}, seed {lines[0]['seed']}", fontsize=10)
        grid[2][column].set_xlabel("step")
    figure.savefig(out)


def main() -> None:
    """Show runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("table", help="runs and collapses")
    listing.add_argument("folder", type=Path)
    drawing = commands.add_parser("plot", help="runs step by step")
    drawing.add_argument("records", type=Path, nargs="+")
    drawing.add_argument("--first", type=int, default=0, help="step")
    drawing.add_argument("--last", type=int, default=1600)
    drawing.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    if a.command == "table":
        table(a.folder)
    else:
        plot(a.records, a.first, a.last, a.out)


if __name__ == "__main__":
    main()

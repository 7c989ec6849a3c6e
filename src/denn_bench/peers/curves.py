"""Draw what systems make of variations of corpora: one row of panels per corpus, one line per system."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes

from denn_bench.peers.catalogue import PEERS
from denn_bench.peers.runs import CPU, Row, run_of
from denn_bench.peers.table import NAMES
from denn_bench.plots import METRICS, Drawing, deviation_of, legend, panels

AXES = {  # variation → label of its axis
    "documents": "labelled documents",
    "labels": "labels",
    "words": "words per text",
    "flipped": "wrong labels in training and validation, %",
}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito's
Line = tuple[str, str]  # peer, device


def curves(rows: Iterable[Row], name: str) -> Drawing:
    """Draw F1 against the values of a variation, as a mean over seeds; of several time limits, the longest."""
    lines: dict[tuple[str, Line], dict[float, list[Row]]] = {}
    for row in sorted(_longest(rows, name), key=lambda row: list(PEERS).index(row["peer"])):
        run = run_of(row)
        points = lines.setdefault((run.corpus, (run.peer, run.device)), {})
        points.setdefault(float(run.variation.partition("=")[2]), []).append(row)
    corpora = list(dict.fromkeys(corpus for corpus, _ in lines))
    figure, axes = panels(corpora, len(METRICS), f"a variation of {name}", "denn bench peers run --vary")
    peers = list(dict.fromkeys(peer for peer in PEERS if any(line[0] == peer for _, line in lines)))
    colours = dict(zip(peers, cycle(COLOURS), strict=False))
    table: list[list[object]] = []
    for row_of_panels, corpus in zip(axes, corpora, strict=True):
        for panel, (metric, label) in zip(row_of_panels, METRICS.items(), strict=True):
            for (of_corpus, line), points in lines.items():
                if of_corpus == corpus:
                    _draw(panel, line, points, metric, colours[line[0]], 100 if name == "flipped" else 1)
            panel.set(xlabel=AXES[name], ylabel=label, title=NAMES.get(corpus, corpus))
            if name != "flipped":
                panel.set_xscale("log")
        for (of_corpus, (peer, device)), points in lines.items():
            if of_corpus == corpus:
                table += [
                    [corpus, peer, device, value, run["seed"], run["minutes"], *(100 * run[key] for key in METRICS)]
                    for value, found in sorted(points.items())
                    for run in found
                ]
    legend(figure, axes)
    return Drawing(figure, ["corpus", "system", "device", name, "seed", "minutes", *METRICS], table)


def _longest(rows: Iterable[Row], name: str) -> list[Row]:
    """Return the successful runs on a variation, each with the longest time limit."""
    found: dict[tuple[object, ...], Row] = {}
    for row in sorted(rows, key=lambda row: float(row["minutes"])):
        run = run_of(row)
        if run.variation.partition("=")[0] == name and not row["failure"]:
            found[run.corpus, run.peer, run.device, run.variation, run.seed] = row
    return list(found.values())


def _draw(panel: Axes, line: Line, points: dict[float, list[Row]], metric: str, colour: str, scale: float) -> None:
    peer, device = line
    places = sorted(points)
    means = [100 * fmean(row[metric] for row in points[place]) for place in places]
    spread = [100 * deviation_of([row[metric] for row in points[place]]) for place in places]
    label = PEERS[peer].title if device == CPU else f"{PEERS[peer].title}, GPU"
    looks: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 4, "label": label, "capsize": 2}
    dashed = "-" if device == CPU else "--"
    bars = spread if any(spread) else None
    panel.errorbar([scale * place for place in places], means, yerr=bars, linestyle=dashed, **looks)

r"""A simulated desk: documents arrive in random order and are predicted, then taught.

    python -m denn_bench.studies.desk run DOCUMENTS --work FOLDER --out results/desk.json
    python -m denn_bench.studies.desk draw results/desk.json --out docs/figures

A model learns the first documents. The next ones arrive in steps: each step is predicted, then added with its true
labels. The same stream runs once for each way to keep the model up to date. F1 covers the labels of all documents, in
each window of the stream and over the stream so far. The file is written after each window; run the same command again
to resume.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.figure import Figure

import denn
from denn.bundle import read_card
from denn.cli.demo import SETTINGS
from denn.config import parse_settings
from denn.core.metrics import all_scores
from denn.data.corpus import read_documents, split_documents
from denn.types import LabelSpace
from denn_bench.figures import STYLE, save
from denn_bench.studies.machine import machine
from denn_bench.studies.quality import Notes

COMMON = ("encoder", "max_length")  # settings of the demo for every training run; fine-tuning uses all of them
VALID_SHARE = 0.1
METRICS = {"micro_f1": "micro-F1, %", "supported_macro_f1": "macro-F1, %"}
KEPT = (*METRICS, "macro_f1", "supported_labels", "labels_per_text")
PANELS = {"window": "in each window of {:,}", "so_far": "over the stream so far"}
STATE = "state.json"


@dataclass(frozen=True)
class Way:
    """A way to keep the model up to date."""

    shown: str  # in the legend, with the documents between two refits or trainings
    colour: str
    marker: str
    teaches: bool = True
    learns: Literal["refit", "train"] | None = None  # before a window
    every: int = 1  # windows
    effort: Literal["quick", "balanced"] = "quick"  # of all its training runs, including the first


WAYS = {
    "untaught": Way("not taught", "#999999", "v", teaches=False),
    "taught": Way("taught", "#E69F00", "o"),
    "refitted": Way("taught, refit every {:,}", "#009E73", "s", learns="refit"),
    "trained": Way("taught, trained from scratch every {:,}", "#0072B2", "^", learns="train"),
    "fine-tuned": Way(
        "taught, fine-tuned from scratch every {:,}", "#CC79A7", "D", learns="train", every=4, effort="balanced"
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Desk:
    """The documents of a simulation and how they arrive."""

    known: Sequence[denn.Document]  # at the start
    stream: Sequence[denn.Document]
    labels: Sequence[str]  # of all documents, including those that never arrive
    window: int
    step: int
    settings: dict[str, Any]
    seed: int

    def window_at(self, number: int) -> Sequence[denn.Document]:
        """Return the documents of a window."""
        return self.stream[number * self.window : (number + 1) * self.window]

    def train(self, folder: Path, come: int, effort: str) -> None:
        """Train from scratch on the documents so far."""
        rest, valid = split_documents([*self.known, *self.stream[:come]], VALID_SHARE, self.seed)
        names = SETTINGS if effort == "balanced" else COMMON
        settings = {name: SETTINGS[name] for name in names} | self.settings | {"effort": effort, "seed": self.seed}
        corpus = denn.Corpus(rest, valid, name="desk")
        denn.train(corpus, out=folder, replace=True, allow_poor=True, progress=Notes(), **settings).close()

    def work(self, way: Way, folder: Path, number: int) -> tuple[list[list[str]], dict[str, Any]]:
        """Bring the model in a folder up to date, predict one window and teach it; return the labels, and facts."""
        begun, facts, predicted = time.monotonic(), {}, []
        if way.learns is not None and number > 0 and number % way.every == 0:
            if way.learns == "train":
                self.train(folder, number * self.window, way.effort)
            else:
                before = read_card(folder).refitted
                with denn.refit(folder, progress=Notes()) as model:
                    facts["refit_taken"] = model.card.refitted != before
            facts["learning_seconds"] = round(time.monotonic() - begun, 1)
        begun, documents = time.monotonic(), self.window_at(number)
        with denn.load(folder) as model:
            for start in range(0, len(documents), self.step):
                some = documents[start : start + self.step]
                predicted += [list(one.labels) for one in model.predict([one.text for one in some], evidence=0)]
                if way.teaches:
                    model.add(some, source="desk")
        return predicted, {**facts, "seconds": round(time.monotonic() - begun, 1)}

    def score(self, predicted: Sequence[Sequence[str]], start: int = 0, *, later: bool = False) -> dict[str, float]:
        """Compare predictions with the stream from a document on; `later`: only labels that no initial document has."""
        first = {label for document in self.known for label in document.labels} if later else set()
        labels = LabelSpace(tuple(name for name in self.labels if name not in first))
        gold = labels.matrix(self.stream[start : start + len(predicted)])
        found = all_scores(labels.matrix([denn.Document("", tuple(names)) for names in predicted]), gold)
        return {name: round(found[name], 4) for name in KEPT}


def follow(desk: Desk, way: Way, work: Path) -> Iterator[list[dict[str, Any]]]:
    """Run or resume the stream in a folder; after each window, yield the results of all windows so far."""
    start, count = work.parent / f"start-{way.effort}", -(-len(desk.stream) // desk.window)
    if not (start / "model" / "bundle.json").exists():
        desk.train(start / "model", 0, way.effort)
    done = max((int(folder.name) for folder in work.glob("[0-9]*")), default=0)
    state: dict[str, Any] = {"predicted": [], "facts": []}
    if done:
        state = json.loads((work / str(done) / STATE).read_text())
        yield windows(desk, state)
    for number in range(done, count):
        before, coming = work / str(number) if number else start, work / "coming"
        shutil.rmtree(coming, ignore_errors=True)
        shutil.copytree(before / "model", coming / "model")
        predicted, facts = desk.work(way, coming / "model", number)
        state = {"predicted": [*state["predicted"], *predicted], "facts": [*state["facts"], facts]}
        (coming / STATE).write_text(json.dumps(state))
        coming.rename(work / str(number + 1))
        if number:
            shutil.rmtree(before)
        yield windows(desk, state)


def windows(desk: Desk, state: dict[str, Any]) -> list[dict[str, Any]]:
    """Score the predictions, window by window."""
    found = []
    for number, facts in enumerate(state["facts"]):
        start, end = number * desk.window, min((number + 1) * desk.window, len(desk.stream))
        scores = {"window": desk.score(state["predicted"][start:end], start)}
        scores |= {"so_far": desk.score(state["predicted"][:end])}
        scores |= {"so_far_later_labels": desk.score(state["predicted"][:end], later=True)}
        found.append({"documents": end, **facts, **scores})
    return found


def run(a: argparse.Namespace) -> None:
    """Run the stream for each way, and write the file after each window."""
    documents = [document for document in read_documents(a.documents)[0] if document.labels]
    drawn = random.Random(a.seed).sample(documents, min(a.start + a.stream, len(documents)))
    labels = tuple(sorted({label for document in documents for label in document.labels}))
    desk = Desk(drawn[: a.start], drawn[a.start :], labels, a.window, a.step, parse_settings(a.set), a.seed)
    about = {
        "corpus": a.documents.name, "documents": len(documents), "labels": len(labels), "start": len(desk.known),
        "stream": len(desk.stream), "window": a.window, "step": a.step, "settings": a.set, "seed": a.seed,
    }  # fmt: skip
    a.work.mkdir(parents=True, exist_ok=True)
    for path in (a.work / "about.json", a.out):
        if path.exists() and not about.items() <= json.loads(path.read_text()).items():
            raise SystemExit(
                f"{path} belongs to other documents or settings. Move it, or choose another --work and --out."
            )
    (a.work / "about.json").write_text(json.dumps(about))
    ways = json.loads(a.out.read_text())["ways"] if a.out.exists() else {}
    for name in a.ways:
        for found in follow(desk, WAYS[name], a.work / name):
            ways[name] = found
            a.out.write_text(json.dumps({**about, "ways": ways, "machine": machine()}, indent=1) + "\n")
            print(name, json.dumps(found[-1]), flush=True)


def draw(study: dict[str, Any], out: Path) -> list[Path]:
    """Draw F1 over the stream, in windows and so far, as SVG, PNG and CSV."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.0, 6.4))
        grid = figure.subplots(len(PANELS), len(METRICS), sharex=True)
        for (part, title), row in zip(PANELS.items(), grid, strict=True):
            for (metric, unit), panel in zip(METRICS.items(), row, strict=True):
                for name, way in WAYS.items():
                    points = [(one["documents"], 100 * one[part][metric]) for one in study["ways"].get(name, ())]
                    if points:
                        label = way.shown.format(way.every * study["window"])
                        panel.plot(*zip(*points, strict=True), color=way.colour, marker=way.marker, label=label)
                panel.set(ylabel=unit, title=title.format(study["window"]))
        for panel in grid[-1]:
            panel.set(xlabel="documents seen")
        figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        columns = ["way", "documents", *(f"{part}_{metric}" for part in PANELS for metric in METRICS)]
        rows = [
            [name, one["documents"], *(one[part][metric] for part in PANELS for metric in METRICS)]
            for name, found in study["ways"].items()
            for one in found
        ]
        return save(figure, out, "desk", columns, rows)


def main() -> None:
    """Run or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run the simulation")
    running.add_argument("documents", type=Path, help="file of documents; those without labels are skipped")
    running.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    running.add_argument("--start", type=int, default=1000, help="number of initial documents")
    running.add_argument("--stream", type=int, default=4000, help="number of documents that arrive")
    running.add_argument("--window", type=int, default=500, help="documents per window")
    running.add_argument("--step", type=int, default=50, help="documents per step")
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="training setting")
    running.add_argument("--work", type=Path, required=True, help="folder for the models and for resuming")
    running.add_argument("--out", type=Path, required=True)
    drawing = commands.add_parser("draw", help="draw the results")
    drawing.add_argument("results", type=Path, help="file of `run`")
    drawing.add_argument("--out", type=Path, default=Path("docs/figures"))
    a = parser.parse_args()
    if a.command == "run":
        run(a)
    else:
        for path in draw(json.loads(a.results.read_text()), a.out):
            print(path)


if __name__ == "__main__":
    main()

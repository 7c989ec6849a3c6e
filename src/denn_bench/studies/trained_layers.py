r"""Effect of training fewer layers of the encoder on a CPU: validation scores over seconds.

    python -m denn_bench.studies.trained_layers run debian --out results/trained-layers.json
    python -m denn_bench.studies.trained_layers run DATA/reuters21578 --out results/trained-layers.json
    python -m denn_bench.studies.trained_layers draw results/trained-layers.json --out docs/figures

Every choice (`all`, or a number of last layers, with a learning rate: `2@4e-4`) trains the demo's network with the
demo's settings. All choices of a seed alternate in one process, each with its own clock. The clocks count CPU
time of one thread, so other work on the machine has little effect; two idle cores take about half as long. They
count the embedding of all documents, the steps, and the embedding of the datastore at the end, for which each choice
stops in time; validations are not counted. The first pass is shared by all choices. The test split is not read. Runs
are added to those in the file.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

from denn.cli.demo import SETTINGS, parts
from denn.data import reuters21578
from denn.data.debian import load_debian
from denn.encoders.packed import pool
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder
from denn.encoders.weights import cache_folder
from denn.methods.contrastive import DennParameters, DennTraining
from denn.methods.denn import DENN
from denn.training.batches import Batches, seed_of
from denn.training.gradients import Gradients
from denn.training.session import micro_f1
from denn.types import Corpus
from denn_bench.figures import STYLE, save
from denn_bench.studies.effort import TITLES
from denn_bench.studies.machine import report

VALID = 500  # documents
TURN = 3.0  # seconds per turn
LOOKS = 3  # validations of each
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
COLUMNS = ("corpus", "seed", "layers", "learning_rate", "seconds", "steps", "tuned_micro_f1")


def read(name: str, documents: int, seed: int) -> Corpus:
    """Sample documents of a corpus, including validation documents."""
    if name == "debian":
        return replace(parts(load_debian(cache_folder() / "debian")[0], documents, seed), test=[])
    drawn = random.Random(seed).sample(list(reuters21578.load(Path(name)).train), documents + VALID)
    return Corpus(drawn[:documents], drawn[documents:], [], name="reuters21578")


class Pass:
    """One pass over all documents: their embeddings, the states below each number of trained layers, and its time."""

    def __init__(self, training: DennTraining) -> None:
        self.seconds = 0.0  # for the training documents
        self.valid, self.valid_embeddings = self.read(training.network.encoder, training.valid_tokens)
        begun = time.process_time()
        self.train, self.embeddings = self.read(training.network.encoder, training.train_tokens)
        self.seconds = time.process_time() - begun

    def read(self, encoder: TransformerEncoder, tokens: Tokens) -> tuple[dict[int, Tokens], Tensor]:
        """Return the states by the number of layers above them, and (n,d) embeddings."""
        layers = encoder.model.config.num_hidden_layers
        size, embeddings = (len(tokens.flat), encoder.width), torch.empty(len(tokens), encoder.width)
        states = {above: torch.empty(size, dtype=torch.float16) for above in range(1, layers)}
        with torch.inference_mode():
            for rows in tokens.by_length(encoder.pass_tokens):
                ids, layout = tokens.pack(rows)
                places = tokens.offsets[rows][layout.document] + layout.positions
                x = encoder.lower(ids, layout)
                for layer in range(layers):
                    if layer:
                        states[layers - layer][places] = x.half()
                    x = encoder._run(x, layout, slice(layer, layer + 1), (0.0, 0.0), None)
                embeddings[rows] = pool(x, layout, encoder.pooling)
        return {above: Tokens(some, tokens.offsets) for above, some in states.items()}, embeddings


class Choice:
    """Training of some layers, with its own clock."""

    def __init__(self, text: str, corpus: Corpus, seed: int) -> None:
        self.layers, _, rate = text.partition("@")
        chosen = {**SETTINGS, "seed": seed, "trained_layers": None if self.layers == "all" else int(self.layers)}
        self.parameters = p = DennParameters(**chosen | ({"learning_rate": float(rate)} if rate else {}))
        torch.manual_seed(seed)
        encoder = p.new_encoder(corpus)
        p.freeze(encoder, torch.device("cpu"))
        self.network = DENN(p).make(encoder, len(corpus.labels)).eval()
        self.training = DennTraining(self.network, corpus, p)
        self.curve: list[dict[str, float]] = []
        self.steps: list[float] = []  # seconds of each

    def start(self, first: Pass, seconds: float) -> None:
        """Use the output of the first pass, and initialise the head."""
        t, p = self.training, self.parameters
        self.clock = first.seconds
        self.end = seconds - first.seconds * self.network.encoder.trained_share
        if self.layers != "all":
            above = int(self.layers)
            t.train_tokens, t.on_device, t.valid_tokens = first.train[above], first.train[above], first.valid[above]
        begun = time.process_time()
        self.network.learn_head(first.embeddings, t.labels, p, p.head_start)
        self.clock += time.process_time() - begun
        self.begun = self.clock
        self.optimiser = torch.optim.Adam(self.network.groups(p), fused=True)
        self.rates = [group["lr"] for group in self.optimiser.param_groups]
        self.gradients = Gradients(self.network.parameters(), t.prepare, t.compute)
        self.batches = Batches(len(t.train_tokens), p.batch_size, p.seed)

    def done(self) -> float:
        """Return the elapsed share of the training time."""
        return (self.clock - self.begun) / (self.end - self.begun)

    def look(self) -> None:
        """Validate without counting the time."""
        found = self.training.validate()
        kept = {name: round(found[name], 4) for name in ("micro_f1", "tuned_micro_f1")}
        self.curve.append({"seconds": round(self.clock, 1), "steps": len(self.steps), **kept})
        print(self.layers, self.parameters.learning_rate, self.curve[-1], flush=True)

    def turn(self) -> None:
        """Train for one turn, and validate if it is due."""
        looks, until = int(LOOKS * self.done()), min(self.clock + TURN, self.end)
        while self.clock < until:
            begun, p = time.process_time(), self.parameters
            warmup = p.warmup or 1e-3
            factor = min((self.done() + 1e-3) / warmup, (1 - self.done()) / (1 - warmup))
            for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
                group["lr"] = rate * factor
            self.network.train()
            torch.default_generator.manual_seed(seed_of(p.seed, "step", len(self.steps)))
            self.gradients(self.batches.rows(len(self.steps)))
            self.optimiser.step()
            self.steps.append(time.process_time() - begun)
            self.clock += self.steps[-1]
        if int(LOOKS * self.done()) > looks:
            self.look()

    def combined(self, embeddings: Tensor, stored: Tensor) -> float:
        """Score the validation documents by the mean of classifier and neighbours."""
        t = self.training
        return round(
            micro_f1(t.combined(embeddings, self.network.probabilities(embeddings), stored), t.valid_labels), 4
        )

    def facts(self) -> dict[str, Any]:
        """Return the result."""
        p, t, embed = self.parameters, self.training, self.network.encode
        return {
            "layers": self.layers,
            "learning_rate": p.learning_rate,
            "documents_a_second": round(p.batch_size / statistics.median(self.steps), 2),
            "steps": len(self.steps),
            "combined_micro_f1": self.combined(embed(t.valid_tokens), embed(t.train_tokens)),
            "curve": self.curve,
        }


def compare(corpus: Corpus, texts: Sequence[str], seed: int, seconds: float) -> list[dict[str, Any]]:
    """Train all choices of a seed alternately; the first validation is of the unchanged encoder."""
    choices = [Choice(text, corpus, seed) for text in texts]
    first = Pass(Choice("all", corpus, seed).training)
    for choice in choices:
        choice.start(first, seconds)
    untrained = choices[0].combined(first.valid_embeddings, first.embeddings)
    choices[0].look()
    for choice in choices[1:]:
        choice.curve = choices[0].curve[:1]
    while waiting := [choice for choice in choices if choice.clock < choice.end]:
        for choice in waiting:
            choice.turn()
    about = {"corpus": corpus.name, "seed": seed, "train": len(corpus.train), "valid": len(corpus.valid)}
    about |= {"seconds": seconds, "pass_seconds": round(first.seconds, 1), "quick_combined_micro_f1": untrained}
    return [about | choice.facts() for choice in choices]


def draw(found: Sequence[dict[str, Any]], out: Path) -> list[Path]:
    """Draw validation scores over seconds, one panel per corpus, one line per choice and seed."""
    corpora = list(dict.fromkeys(one["corpus"] for one in found))
    colours = dict(zip(dict.fromkeys(map(_label, found)), COLOURS, strict=False))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(max(6.0, 4.0 * len(corpora)), 3.8))
        panels = figure.subplots(1, len(corpora), squeeze=False)[0]
        lines = {}
        for corpus, panel in zip(corpora, panels, strict=True):
            for one in found:
                if one["corpus"] == corpus:
                    points = [(p["seconds"], 100 * p["tuned_micro_f1"]) for p in one["curve"]]
                    style = {"color": colours[_label(one)], "linestyle": ("-", "--", ":")[one["seed"] % 3]}
                    (lines[_label(one)],) = panel.plot(*zip(*points, strict=True), marker="o", markersize=3, **style)
            panel.set(xlabel="CPU seconds", ylabel="micro-F1 on validation, %", title=TITLES.get(corpus, corpus))
        figure.legend([*lines.values()], [*lines], loc="outside lower center", ncols=2)
        rows = ([{**one, **point}[name] for name in COLUMNS] for one in found for point in one["curve"])
        return save(figure, out, "trained-layers", COLUMNS, rows)


def _label(one: dict[str, Any]) -> str:
    layers = {"all": "all layers", "1": "last layer"}.get(one["layers"], f"last {one['layers']} layers")
    return f"{layers}, learning rate {one['learning_rate']:g}"


def main() -> None:
    """Run or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="train alternately")
    running.add_argument("corpus", help="debian, or the folder of Reuters-21578")
    running.add_argument("--choices", nargs="+", default=["all", "3", "2", "1"], metavar="LAYERS[@RATE]")
    running.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    running.add_argument("--documents", type=int, default=3000, help="number of training documents; default: 3000")
    running.add_argument("--seconds", type=float, default=360.0, help="CPU seconds per choice; default: 360")
    running.add_argument("--out", type=Path, required=True)
    drawing = commands.add_parser("draw", help="draw the results")
    drawing.add_argument("results", type=Path)
    drawing.add_argument("--out", type=Path, default=Path("docs/figures"))
    a = parser.parse_args()
    if a.command == "draw":
        for path in draw(json.loads(a.results.read_text())["runs"], a.out):
            print(path)
        return
    torch.set_num_threads(1)
    runs = json.loads(a.out.read_text())["runs"] if a.out.exists() else []
    for seed in a.seeds:
        found = compare(read(a.corpus, a.documents, seed), a.choices, seed, a.seconds)
        command = f"run {Path(a.corpus).name} --documents {a.documents} --choices {' '.join(a.choices)}"
        runs += [one | {"command": f"{command} --seeds {seed} --seconds {a.seconds:g}"} for one in found]
        settings = {name: value for name, value in SETTINGS.items() if name != "trained_layers"}
        report({"settings": settings, "runs": runs}, a.out)


if __name__ == "__main__":
    main()

"""Compare labels that only the datastore knows with retraining: ten labels of a corpus are added after training.

python -m denn_bench.studies.new_labels CORPUS_FOLDER --work FOLDER [--seeds 0 1] [--set key=value …] [--json FILE]

Ten labels are drawn: those with at least 20 training and 10 test documents are sorted by frequency and divided into
ten groups, and one is drawn from each group. Every training and validation document with one of them is held out. DENN
is trained on the rest and evaluated on the whole test split; the held-out training documents are then added to its
datastore, and it is evaluated again; finally DENN is trained on everything with the same settings. Models that exist in
the work folder are not trained again. Every figure uses the model's own thresholds, and nothing is tuned on test.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import denn
from denn.bundle import read, versions
from denn.config import parse_settings
from denn.data import reuters21578
from denn.types import Corpus, Document
from denn_bench.machine import commit
from denn_bench.studies.machine import machine

DRAWN, TRAINED, TESTED = 10, 20, 10  # labels, and the documents that each needs
SETTINGS: dict[str, Any] = {  # otherwise the defaults
    "encoder": "minilm",
    "max_length": 64,  # title and first sentences, so that training takes minutes on two cores
    "epochs": 1,
    "device": "cpu",
}
COLUMNS = {
    "the ten labels": "ten",
    "the labels trained on": "trained",
    "the same, texts without the ten": "trained_apart",
    "labels that went with the ten": "gone",
    "texts without the ten that get one, %": "flooded",
}
STATES = {
    "before": "before adding",
    "after": "added, not trained",
    "retrained": "trained again",
    "retrained_per_label": "trained again, thresholds per label",
}


def draw(corpus: Corpus, seed: int) -> list[str]:
    """Draw one label from each of ten groups of about the same frequency."""
    train, test = (
        Counter(label for document in part for label in document.labels) for part in (corpus.train, corpus.test)
    )
    fit = [name for name in corpus.labels.names if train[name] >= TRAINED and test[name] >= TESTED]
    fit.sort(key=lambda name: (-train[name], name))
    chance = random.Random(seed)
    return [chance.choice(fit[i * len(fit) // DRAWN : (i + 1) * len(fit) // DRAWN]) for i in range(DRAWN)]


def without(documents: Sequence[Document], labels: Collection[str]) -> list[Document]:
    """Return the documents that carry none of the labels."""
    return [document for document in documents if set(labels).isdisjoint(document.labels)]


def trained(corpus: Corpus, folder: Path, settings: dict[str, Any]) -> Path:
    """Train on a corpus unless its model exists."""
    if not folder.exists():
        denn.train(corpus, out=folder, **settings).close()
    parameters = read(folder)[0].parameters
    if any(parameters[name] != value for name, value in settings.items()):
        raise SystemExit(f"{folder} was trained with other settings; choose another --work")
    return folder


def judge(
    model: denn.Model, test: Sequence[Document], ten: Collection[str], known: Collection[str], per_label: bool = False
) -> dict[str, Any]:
    """Return micro-F1 in percent of each kind of label, and the share of texts wrongly assigned one of the ten."""
    begun = time.perf_counter()
    predictions = model.predict([document.text for document in test], per_label=per_label, evidence=0)
    given = [set(prediction.labels) for prediction in predictions]
    seconds = time.perf_counter() - begun
    gold = [set(document.labels) for document in test]
    apart = [row for row, labels in enumerate(gold) if labels.isdisjoint(ten)]
    every = range(len(test))

    def micro(labels: Collection[str], rows: Sequence[int]) -> float:
        pairs = [(given[row].intersection(labels), gold[row].intersection(labels)) for row in rows]
        size = sum(len(a) + len(b) for a, b in pairs)
        return round(100 * 2 * sum(len(a & b) for a, b in pairs) / max(1, size), 2)

    return {
        "ten": micro(ten, every),
        "trained": micro(known, every),
        "trained_apart": micro(known, apart),
        "gone": micro(set().union(*gold) - {*ten, *known}, every),
        "flooded": round(100 * sum(not given[row].isdisjoint(ten) for row in apart) / len(apart), 2),
        "labels": {name: micro([name], every) for name in ten},
        "seconds": round(seconds, 1),
    }


def thresholds(model: denn.Model, ten: Collection[str], documents: Sequence[Document]) -> dict[str, float]:
    """Return the thresholds of the ten labels, which the model estimates when it predicts their texts."""
    scores = model.scores([document.text for document in documents])
    cuts = model.later_thresholds(scores)["final"].tolist()
    found = dict(zip(scores.names[len(model.labels) :], cuts, strict=True))
    return {name: round(found[name], 3) for name in ten}


def run(corpus: Corpus, seed: int, work: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Train without the labels, add them, train with them; evaluate each."""
    ten = draw(corpus, seed)
    kept, valid = without(corpus.train, ten), without(corpus.valid, ten)
    removed = [document for document in corpus.train if not set(ten).isdisjoint(document.labels)]
    known = {label for document in kept for label in document.labels}
    counts = Counter(label for document in removed for label in document.labels)
    found: dict[str, Any] = {"seed": seed, "documents": {name: counts[name] for name in ten}, "removed": len(removed)}
    reduced = trained(Corpus(kept, valid, name=corpus.name), work / f"reduced-{seed}", settings)
    with tempfile.TemporaryDirectory() as folder:  # a copy, because adding changes it
        with denn.load(shutil.copytree(reduced, Path(folder) / "model")) as model:
            found["before"] = judge(model, corpus.test, ten, known)
            begun = time.perf_counter()
            model.add(removed)
            found["adding_seconds"] = round(time.perf_counter() - begun, 1)
            found["after"] = judge(model, corpus.test, ten, known)
            found["threshold"] = model.card.thresholds["final"].overall
            found["thresholds"] = thresholds(model, ten, removed)
    with denn.load(
        trained(Corpus(corpus.train, corpus.valid, name=corpus.name), work / f"whole-{seed}", settings)
    ) as model:
        found["retrained"] = judge(model, corpus.test, ten, known)
        found["retrained_per_label"] = judge(model, corpus.test, ten, known, per_label=True)
        found["retrained"]["training_seconds"] = model.card.training["seconds"]
    found["share_of_retraining"] = round(100 * found["after"]["ten"] / found["retrained"]["ten"], 1)
    for key in ("trained", "trained_apart"):
        found[f"change_of_{key}"] = round(found["after"][key] - found["before"][key], 2)
    return found


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Return the figures of all seeds as Markdown."""
    head = ["seed", "model", *COLUMNS]
    rows = [
        [str(found["seed"]), name, *(f"{found[state][key]:.1f}" for key in COLUMNS.values())]
        for found in runs
        for state, name in STATES.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def main() -> None:
    """Run every seed, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not args.corpus.is_dir():
        print(f"skipped: there is no folder {args.corpus} with the documents of Reuters-21578")
        return
    corpus = reuters21578.load(args.corpus)
    args.work.mkdir(parents=True, exist_ok=True)
    settings, runs = SETTINGS | parse_settings(args.set), []
    for seed in args.seeds:
        runs.append(run(corpus, seed, args.work, settings | {"seed": seed}))
        print(json.dumps(runs[-1], indent=1), flush=True)
    print(table(runs))
    head = {"corpus": corpus.name, "settings": settings, "commit": commit(), "versions": versions()}
    if args.json:
        args.json.write_text(json.dumps({**head, "machine": machine(), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()

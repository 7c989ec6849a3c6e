r"""How many planted errors `Model.audit` finds, and how many cleanlab finds on the same scores.

python -m denn_bench.studies.audit CORPUS FOLDER --cleanlab PYTHON [--documents 4000] [--max-length 64] [--seed 0]
    [--data-dir DIR] [--out FILE]

Flips 5 % of the labels of a file or a known corpus: half are dropped, and the same number is added to random
documents, each label in proportion to its frequency. Trains a head on `minilm` with these labels, unless FOLDER has
such a model, and ranks the stored documents. PYTHON is an interpreter with cleanlab. The result is added to the file
--out.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import denn
from denn.analysis.audit import doubts, label_shares
from denn.analysis.unseen import FOLDS, Judge, Stored, fold_of
from denn.cli.sources import Reading, open_corpus
from denn.data.corpus import split_documents
from denn.model import Model
from denn.prediction_types import Scores
from denn.progress import Silent
from denn.types import Document, LabelSpace
from denn_bench.studies.machine import machine

SHARE = 0.05
METHODS = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")
CLEANLAB = """
import sys
import numpy as np
from importlib import metadata
from cleanlab.multilabel_classification import filter, rank
given, scores = (np.load(sys.argv[1])[name] for name in ("given", "scores"))
labels = [np.flatnonzero(row).tolist() for row in given]
found = {"version": np.array(metadata.version("cleanlab"))}
for method in METHODS:
    pairs = rank.get_label_quality_scores_per_class(labels, scores, method=method)
    flagged = np.array(filter.find_multilabel_issues_per_class(labels, scores))
    found["pairs " + method] = pairs
    found["filtered pairs " + method] = pairs - flagged.reshape(pairs.shape)
    quality = rank.get_label_quality_scores(labels, scores, method=method)
    found["documents " + method] = quality
    issues = filter.find_label_issues(labels, scores, return_indices_ranked_by=method)
    first = np.full(len(labels), 0)
    first[issues] = np.arange(len(issues)) - len(issues)
    found["filtered " + method] = np.lexsort((quality, first)).argsort().astype(float)
np.savez(sys.argv[2], **found)
"""


def plant(documents: Sequence[Document], seed: int) -> tuple[list[Document], dict[str, set[tuple[int, str]]]]:
    """Drop and add labels; return the documents and the (row, label) pairs of each kind."""
    draw = random.Random(seed)
    entries = [(row, label) for row, document in enumerate(documents) for label in document.labels]
    half = round(SHARE * len(entries) / 2)
    dropped = set(draw.sample(entries, half))
    added: set[tuple[int, str]] = set()
    while len(added) < half:
        row, label = draw.randrange(len(documents)), draw.choice(entries)[1]
        if label not in documents[row].labels:
            added.add((row, label))
    noisy = []
    for row, document in enumerate(documents):
        labels = [label for label in document.labels if (row, label) not in dropped]
        labels += sorted(label for other, label in added if other == row)
        noisy.append(replace(document, labels=tuple(labels)))
    return noisy, {"dropped": dropped, "added": added}


def train(documents: Sequence[Document], folder: Path, max_length: int, seed: int) -> None:
    """Train only the head, with 10 % of the documents for validation."""
    kept, valid = split_documents(documents, 0.1)
    corpus = denn.Corpus(train=kept, valid=valid, name=folder.name)
    options = {"encoder": "minilm", "epochs": 0, "head_start": 20, "max_length": max_length, "seed": seed}
    denn.train(corpus, out=folder, **options).close()


def judged(model: Model) -> tuple[list[Document], dict[str, torch.Tensor]]:
    """Return the stored documents, and the scores of each without its own labels: (n,L) of all and of each witness."""
    stored = Stored(model.method)
    found: dict[str, torch.Tensor] = {}
    for fold in range(FOLDS):
        rows = [row for row, document in enumerate(stored.documents) if fold_of(document.text) == fold]
        scores = Judge(model.method, stored, fold, Silent()).score([stored.documents[row] for row in rows])
        for name, part in (("final", scores.final), *scores.parts.items()):
            found.setdefault(name, torch.empty(len(stored.documents), len(scores.names)))[rows] = part
    return stored.documents, found


def precision(worst: np.ndarray, wrong: np.ndarray) -> float:
    """Return the precision of the n worst pairs, where n is the number of wrong ones; the worst come first."""
    return round(float(wrong.ravel()[np.argsort(worst.ravel(), kind="stable")[: int(wrong.sum())]].mean()), 4)


def both(worst: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """Return the precision over pairs and over documents; a document is as bad as its worst pair."""
    return {"pairs": precision(worst, wrong), "documents": precision(worst.min(1), wrong.any(1))}


def cleanlab(python: str, folder: Path, scores: np.ndarray, given: np.ndarray, wrong: np.ndarray) -> dict[str, Any]:
    """Return cleanlab's rankings of the scores, with all its methods."""
    asked, answered = folder.with_suffix(".scores.npz"), folder.with_suffix(".cleanlab.npz")
    np.savez(asked, scores=scores.astype(np.float64), given=given)
    code = f"METHODS = {METHODS!r}\n{CLEANLAB}"
    subprocess.run([python, "-c", code, asked, answered], check=True)
    found = np.load(answered)
    result: dict[str, Any] = {"version": str(found["version"])}
    for method in METHODS:
        result[method] = {
            "pairs": precision(found[f"pairs {method}"], wrong),
            "pairs, find_multilabel_issues_per_class first": precision(found[f"filtered pairs {method}"], wrong),
            "documents": precision(found[f"documents {method}"], wrong.any(1)),
            "documents, find_label_issues first": precision(found[f"filtered {method}"], wrong.any(1)),
        }
    return result


def main() -> None:
    """Plant, train, rank and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cleanlab", required=True)
    parser.add_argument("--documents", type=int, default=4000)
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    corpus = open_corpus(a.corpus, a.data_dir, Reading(), valid_share=0 if Path(a.corpus).is_file() else 0.1)
    documents = [*corpus.train, *corpus.valid]
    if a.documents < len(documents):
        documents = random.Random(a.seed).sample(documents, a.documents)
    noisy, planted = plant(documents, a.seed)
    if not (a.folder / "bundle.json").exists():
        train(noisy, a.folder, a.max_length, a.seed)
    with denn.load(a.folder) as model:
        stored, scores = judged(model)
        names, shares = model.store.labels, label_shares(model.method)
        thresholds = {name: found.overall for name, found in model.card.thresholds.items()}
    labels, row_of = LabelSpace(names), {document.id: row for row, document in enumerate(stored)}
    given, wrong = labels.matrix(stored), np.zeros((len(stored), len(names)), dtype=bool)
    for row, label in planted["dropped"] | planted["added"]:
        if documents[row].id in row_of and label in labels:
            wrong[row_of[documents[row].id], labels.index[label]] = True
    ranked = {
        name: both(-doubts(Scores(part.nan_to_num(0), names), stored, thresholds[name], shares).numpy(), wrong)
        for name, part in scores.items()
    }
    result = {
        "seed": a.seed,
        "max_length": a.max_length,
        "documents": len(stored),
        "labels": len(names),
        "planted": {"pairs": int(wrong.sum()), "documents": int(wrong.any(1).sum()),
                    "dropped": int((wrong & ~given.numpy()).sum())},
        "audit": ranked.pop("final"),
        "audit by one witness": ranked,
        "1 - p": both(-torch.where(given, 1 - scores["final"], scores["final"]).numpy(), wrong),
        "cleanlab": cleanlab(a.cleanlab, a.folder, scores["final"].numpy(), given.numpy(), wrong),
        "machine": machine(),
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    if a.out:
        kept = json.loads(a.out.read_text()) if a.out.exists() else {}
        a.out.write_text(json.dumps({**kept, corpus.name: result}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""AAPD: what the documents that the reconstruction lacks would be worth, by taking more of them away.

    python benchmarks/missing.py DATA/aapd_recon --out results/aapd-missing.json

22 % of the test documents have the labels cs.IT and math.IT and no other, 4 % of the reconstructed training documents
do. BR is trained with none, a quarter, a half and all of those that are there, and with as many other documents taken
away in their place, so that both the kind and the number of documents can be seen to matter or not.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from denn.build import train
from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide
from denn.data import aapd
from denn.types import Corpus
from machine import report

KIND = {"cs.IT", "math.IT"}
SHARES = (0.0, 0.25, 0.5, 1.0)


def main() -> None:
    """Train with every share of the kind, and once without as many documents of other kinds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    corpus, chance = aapd.load(arguments.folder), random.Random(arguments.seed)
    kind = [document for document in corpus.train if set(document.labels) == KIND]
    others = [document for document in corpus.train if set(document.labels) != KIND]
    rows = []
    for share in SHARES:
        kept = chance.sample(kind, round(share * len(kind)))
        rows.append(score(replace(corpus, train=others + kept), f"{share:.0%} of the kind", len(kept)))
    fewer = chance.sample(others, len(others) - len(kind))
    rows.append(score(replace(corpus, train=fewer + kind), "as many others taken away", len(kind)))
    report({"seed": arguments.seed, "kind": sorted(KIND), "rows": rows}, arguments.out)


def score(corpus: Corpus, what: str, count: int) -> dict[str, Any]:
    """Train BR on a corpus and score all test documents, those of the kind, and the others, in per cent."""
    of_kind = torch.tensor([set(document.labels) == KIND for document in corpus.test])
    gold = corpus.labels.matrix(corpus.test)
    with tempfile.TemporaryDirectory() as folder, train(corpus, method="br", out=Path(folder) / "model") as model:
        scores = model.scores([document.text for document in corpus.test]).final
        chosen = decide(scores, model.card.thresholds["final"].overall)
    parts = {"all": torch.ones_like(of_kind), "of the kind": of_kind, "others": ~of_kind}
    found = {name: multilabel_scores(chosen[members], gold[members]) for name, members in parts.items()}
    percent = {name: round(100 * metrics["micro_f1"], 1) for name, metrics in found.items()}
    row = {"training": what, "documents": len(corpus.train), "of the kind in training": count, "micro_f1": percent}
    print(row)
    return row


if __name__ == "__main__":
    main()

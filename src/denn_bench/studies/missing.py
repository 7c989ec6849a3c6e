r"""AAPD: estimate the value of the documents that the reconstruction lacks by removing more of them.

    python -m denn_bench.studies.missing DATA/aapd_recon --out results/aapd-missing.json
    python -m denn_bench.studies.missing DATA/aapd_recon --others 5488 --shares 0.14 1 --recipe FILE.toml \
        --out FILE.json \
        --set epochs=15

22 % of the test documents have the labels cs.IT and math.IT and no other; 21 % of the official training documents do
(11,428), and 4 % of the reconstructed ones (1,479). A method, BR unless a recipe names another, is trained with none, a
quarter, a half and all of the available ones, and with the same number of other documents removed instead. This shows
whether the kind or the number of documents matters.

With 5,488 of the others, all of the kind are 21 %, as in the official split, and 14 % of them are 4 %, as in this one.
"""

from __future__ import annotations

import argparse
import logging
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from denn.build import train
from denn.cli.progress import watching
from denn.config import make_recipe, parse_settings, read_recipe
from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide
from denn.data import aapd
from denn.errors import DennError
from denn.types import Corpus
from denn_bench.studies.machine import report

KIND = {"cs.IT", "math.IT"}
SHARES = (0.0, 0.25, 0.5, 1.0)


def main() -> None:
    """Train with every share of the kind, and once with the same number of other documents removed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recipe", type=Path, help="recipe file of the method; default: BR")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="parameter of the method")
    parser.add_argument(
        "--shares", type=float, nargs="+", help="shares of the kind, one training run each; default: 0, ¼, ½, 1"
    )
    parser.add_argument("--others", type=int, help="number of random documents of other kinds; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if wrong := [share for share in arguments.shares or () if not 0 <= share <= 1]:
        parser.error(f"got --shares {wrong[0]}, expected 0 to 1")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        method, parameters = read_recipe(arguments.recipe) if arguments.recipe else ("br", {})
        parameters |= parse_settings(arguments.set)
        make_recipe(method or "denn", parameters)
    except DennError as error:
        parser.error(str(error))
    corpus, chance = aapd.load(arguments.folder), random.Random(arguments.seed)
    kind = [document for document in corpus.train if set(document.labels) == KIND]
    others = [document for document in corpus.train if set(document.labels) != KIND]
    if arguments.others is not None:
        if not 0 < arguments.others <= len(others):
            parser.error(f"got --others {arguments.others}, expected 1 to {len(others)}")
        others = chance.sample(others, arguments.others)
    parts = []
    for share in arguments.shares or SHARES:
        parts.append((f"{share:.0%} of the kind", others, chance.sample(kind, round(share * len(kind)))))
    if not arguments.shares:
        parts.append(("the same number of others removed", chance.sample(others, len(others) - len(kind)), kind))
    settings = {"method": method or "denn", **parameters, "seed": arguments.seed}
    rows = []
    for what, rest, some in parts:
        row = score(replace(corpus, train=[*rest, *some]), settings)
        rows.append({"training": what, "of the kind in training": len(some), **row})
    report({"recipe": settings, "kind": sorted(KIND), "rows": rows}, arguments.out)


def score(corpus: Corpus, settings: dict[str, Any]) -> dict[str, Any]:
    """Train a method on a corpus and score all test documents, those of the kind, and the others, in percent."""
    of_kind = torch.tensor([set(document.labels) == KIND for document in corpus.test])
    gold = corpus.labels.matrix(corpus.test)
    with (
        tempfile.TemporaryDirectory() as folder,
        watching() as progress,
        train(corpus, out=Path(folder) / "model", progress=progress, allow_poor=True, **settings) as model,
    ):
        scores = model.scores([document.text for document in corpus.test]).final
        chosen = decide(scores, model.card.thresholds["final"].overall)
    parts = {"all": torch.ones_like(of_kind), "of the kind": of_kind, "others": ~of_kind}
    found = {name: multilabel_scores(chosen[members], gold[members]) for name, members in parts.items()}
    metrics = ("micro_f1", "micro_precision", "micro_recall", "macro_f1")
    row = {metric: {name: round(100 * f[metric], 1) for name, f in found.items()} for metric in metrics}
    row["documents"] = len(corpus.train)
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()

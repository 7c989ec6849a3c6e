"""Effect of the pooled vector's length and the head's initialisation on the start of training.

python -m denn_bench.studies.scale CORPUS_FOLDER --encoder minilm [--documents 10000] [--epochs 1] [--json FILE]

Trains every variant briefly from the same weights with the same seed and prints validation scores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from denn.config import make_recipe
from denn.data.corpus import read_corpus
from denn.progress import Silent
from denn.types import Corpus
from denn_bench.studies.machine import machine

VARIANTS: dict[str, dict[str, Any]] = {
    "unscaled": {"embedding_norm": None},
    "norm 5": {"embedding_norm": 5},
    "norm 10": {"embedding_norm": 10},
    "norm 15": {"embedding_norm": 15},
    "norm 20": {"embedding_norm": 20},
    "norm 40": {"embedding_norm": 40},
    "unscaled, head rate x10": {"embedding_norm": None, "head_learning_rate": 5e-4},
    "unscaled, head rate x50": {"embedding_norm": None, "head_learning_rate": 2.5e-3},
    "unscaled, head start": {"embedding_norm": None, "head_start": 20},
    "norm 15, head start": {"embedding_norm": 15, "head_start": 20},
    "cls, unscaled": {"pooling": "cls", "embedding_norm": None},
    "cls, norm 15": {"pooling": "cls", "embedding_norm": 15},
    "no contrast, unscaled": {"alpha": 0.0, "embedding_norm": None},
    "no contrast, norm 15": {"alpha": 0.0, "embedding_norm": 15},
}


def main() -> None:
    """Run the variants and print one row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS))
    parser.add_argument("--set", nargs="*", default=[], help="key=value for every variant")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    files = {part: next(iter(args.corpus.glob(f"{part}.jsonl*")), None) for part in ("train", "valid")}
    corpus = read_corpus(files["train"], files["valid"])
    corpus = Corpus(corpus.train[: args.documents], corpus.valid, labels=corpus.labels, name=args.corpus.name)
    common = {key: json.loads(value) for key, value in (setting.split("=") for setting in args.set)}
    rows = []
    for name in args.only:
        settings = {"encoder": args.encoder, "epochs": args.epochs, "seed": args.seed, "select": "combined"}
        recipe = make_recipe("denn", settings | common | VARIANTS[name])
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as workdir:
            facts = recipe.build().fit(corpus, Path(workdir), Silent()).facts
        last = facts["history"][-1]
        rows.append(
            {"variant": name, "seconds": round(time.perf_counter() - begun, 1), "steps": facts["steps"], **last}
        )
        print(
            f"{args.encoder:7} {corpus.name:14} {name:34} micro-F1 at 0.5 {100 * last['micro_f1']:5.1f}, tuned "
            f"{100 * last['tuned_micro_f1']:5.1f}, with neighbours {100 * last['combined_micro_f1']:5.1f}",
            flush=True,
        )
    if args.json:
        head = {"encoder": args.encoder, "corpus": corpus.name, "documents": len(corpus.train), "seed": args.seed}
        args.json.write_text(
            json.dumps({**head, "settings": common, "machine": machine(), "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()

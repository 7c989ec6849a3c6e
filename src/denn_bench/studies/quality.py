r"""Train DENN on a corpus folder and evaluate it on the test split, compared with TF-IDF + linear SVM.

python -m denn_bench.studies.quality CORPUS_FOLDER --out MODEL [--encoder minilm] [--seed 0] [--set key=value …] \
    [--json FILE]

The folder contains train.jsonl[.zst], test.jsonl[.zst] and optionally valid.jsonl[.zst]; by default, 10 % of train is
split off. Thresholds of both systems are tuned on the validation split; the SVM is also shown at 0, its own threshold.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import denn
from denn.config import parse_settings
from denn.core.metrics import all_scores
from denn.core.thresholds import decide
from denn.progress import Silent
from denn.witnesses.sparse_linear import available_cores
from denn_bench.studies.machine import machine
from denn_bench.systems.br import BR


class Notes(Silent):
    """Progress that prints its notes."""

    def note(self, message: str) -> None:
        """Print a line."""
        print(f"  {message}", flush=True)


def svm(corpus: denn.Corpus) -> dict[str, dict[str, float]]:
    """Return the SVM's scores on the test split, at 0 and at the threshold tuned on validation."""
    texts = [document.text for document in (*corpus.valid, *corpus.test)]
    scores = BR.decision_scores(corpus.train, texts, corpus.labels, jobs=available_cores())
    valid, test = scores[: len(corpus.valid)], scores[len(corpus.valid) :]
    tuned = BR.tune_decision(valid, corpus.labels.matrix(corpus.valid))
    gold = corpus.labels.matrix(corpus.test)
    return {kind: all_scores(decide(test, threshold), gold, test) for kind, threshold in (("0", 0.0), ("tuned", tuned))}


def main() -> None:
    """Train, evaluate, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--svm", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    files = {part: next(iter(args.corpus.glob(f"{part}.jsonl*")), None) for part in ("train", "valid", "test")}
    corpus = denn.read_corpus(files["train"], files["valid"], files["test"], name=args.corpus.name)
    begun = time.perf_counter()
    settings = {"encoder": args.encoder, "seed": args.seed, "effort": None} | parse_settings(args.set)
    model = denn.train(corpus, out=args.out, restart=True, replace=True, allow_poor=True, progress=Notes(), **settings)
    seconds = time.perf_counter() - begun
    evaluation = model.evaluate(corpus.test)
    for system, kinds in evaluation.systems.items():
        cells = [f"{kind} {100 * s['micro_f1']:.1f}/{100 * s['macro_f1']:.1f}" for kind, s in kinds.items()]
        print(f"{system:11} micro/macro-F1: {', '.join(cells)}", flush=True)
    result: dict[str, Any] = {
        "corpus": corpus.name,
        "documents": {part: len(getattr(corpus, part)) for part in ("train", "valid", "test")},
        "labels": len(corpus.labels),
        "settings": model.card.parameters,
        "training": model.card.training,
        "seconds": round(seconds, 1),
        "mean_confidence": evaluation.confidence,
        "systems": evaluation.systems,
        "bands": list(evaluation.bands),
        "machine": machine(),
    }
    if args.svm:
        result["svm"] = svm(corpus)
        for kind, s in result["svm"].items():
            print(f"SVM at {kind}: {100 * s['micro_f1']:.1f}/{100 * s['macro_f1']:.1f}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

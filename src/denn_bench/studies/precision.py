"""Effect of the encoder's precision on F1: validation and test documents, in float32 and other precisions.

python -m denn_bench.studies.precision MODEL TEST [--count 2000] [--precision int8 ...] [--json FILE]

The datastore stays in the precision of training; only the predicted texts change.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch.nn.functional as F

import denn
from denn.data.corpus import read_documents
from denn.methods.neighbours import WithNeighbours
from denn.types import Document
from denn.validation import Kept
from denn_bench.studies.machine import report


def f1(model: denn.Model, documents: list[Document]) -> dict[str, float]:
    """Return micro- and macro-F1 in percent, at the model's threshold."""
    found = model.evaluate(documents).headline
    return {name: round(100 * found[name], 3) for name in ("micro_f1", "macro_f1")}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--precision", nargs="+", default=["int8"], choices=["bfloat16", "int8"])
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    test = read_documents(a.test)[0][: a.count]
    found: dict[str, object] = {"model": a.model.name, "test": len(test)}
    vectors = {}
    for precision in ("float32", *a.precision):
        with denn.load(a.model, device="cpu", precision="float32" if precision == "int8" else precision) as model:
            method = model.method
            assert isinstance(method, WithNeighbours)
            valid = Kept.load(a.model / model.card.validation).documents[: a.count]
            if precision == "int8":  # whatever the loss
                encoder = method.network.encoder
                encoder.quantise(encoder.measure_ranges(encoder.tokenize([one.text for one in valid])))
                method.in_int8 = True
            vectors[precision] = method.embed([one.text for one in test[:200]], in_int8=method.in_int8)
            cosine = F.cosine_similarity(vectors[precision], vectors["float32"])
            found |= {"corpus": model.card.corpus["name"], "valid": len(valid)}
            found[precision] = {
                "valid": f1(model, list(valid)),
                "test": f1(model, test),
                "cosine_min": float(cosine.min()),
                "cosine_mean": float(cosine.mean()),
            }
    report(found, a.json)


if __name__ == "__main__":
    main()

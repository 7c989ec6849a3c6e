"""Texts per second of our encoder and of sentence-transformers' `encode`, same weights, side by side on the CPU.

python -m denn_bench.studies.encoding [--texts FILE] [--count 500] [--encoder minilm] [--precision auto] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer

from denn.data.files import iterate_texts
from denn.encoders.transformer import TransformerEncoder
from denn.encoders.weights import locate
from denn_bench.studies.machine import report


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    """Measure both in turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, default=Path("../shared/data/aapd_recon/test.jsonl.zst"))
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    texts = [text for text, _ in iterate_texts(args.texts)][: args.count]
    theirs = SentenceTransformer(str(locate(args.encoder)), device="cpu")
    length = int(theirs.max_seq_length or 256)
    ours = TransformerEncoder.load(args.encoder, max_length=length, precision=args.precision)

    def our_way() -> torch.Tensor:
        return ours.encode(ours.tokenize(texts))

    def their_way() -> torch.Tensor:
        return torch.tensor(theirs.encode(texts, show_progress_bar=False))

    cosine = F.cosine_similarity(our_way(), their_way())  # also warms both up
    times = [(seconds(our_way), seconds(their_way)) for _ in range(args.rounds)]
    result = {
        "encoder": args.encoder,
        "precision": ours.precision,
        "texts": len(texts),
        "tokens": int(ours.tokenize(texts).lengths.sum()),
        "max_length": length,
        "ours_texts_per_second": len(texts) / statistics.median(own for own, _ in times),
        "theirs_texts_per_second": len(texts) / statistics.median(other for _, other in times),
        "ratio": statistics.median(other / own for own, other in times),
        "cosine_min": float(cosine.min()),
        "cosine_mean": float(cosine.mean()),
    }
    report(result, args.json)


if __name__ == "__main__":
    main()

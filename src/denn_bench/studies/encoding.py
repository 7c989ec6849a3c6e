"""Compare the speed of our encoder and sentence-transformers' `encode` with the same weights on the CPU.

python -m denn_bench.studies.encoding [--texts FILE] [--count 500] [--encoder minilm] [--precision auto] [--json FILE]

`--precision auto` is float32 or bfloat16; `int8` measures its ranges on texts after the timed ones. On shared cores,
`cpu_ratio`, the ratio of CPU seconds, is more reliable than `ratio`, that of wall-clock time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer

from denn.data.files import iterate_texts
from denn.encoders.transformer import TransformerEncoder
from denn.encoders.weights import locate
from denn_bench.studies.machine import report

SAMPLES = 200  # texts for the ranges of int8


class Taken(NamedTuple):
    """Duration of a call."""

    seconds: float
    cpu_seconds: float  # of all threads


def taken(work: Callable[[], object]) -> Taken:
    """Time one call."""
    begun, cpu = time.perf_counter(), time.process_time()
    work()
    return Taken(time.perf_counter() - begun, time.process_time() - cpu)


def main() -> None:
    """Measure both alternately and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, default=Path("../shared/data/aapd_recon/test.jsonl.zst"))
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16", "int8"])
    parser.add_argument("--max-length", type=int, help="default: that of sentence-transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    everything = [text for text, _ in islice(iterate_texts(args.texts), args.count + SAMPLES)]
    texts, samples, in_int8 = everything[: args.count], everything[args.count :], args.precision == "int8"
    theirs = SentenceTransformer(str(locate(args.encoder)), device="cpu")
    length = theirs.max_seq_length = int(args.max_length or theirs.max_seq_length or 256)
    exact = "float32" if in_int8 else args.precision
    ours = TransformerEncoder.load(args.encoder, max_length=length, precision=exact).eval()
    if in_int8:
        ours.quantise(ours.measure_ranges(ours.tokenize(samples or texts)))

    def our_way() -> torch.Tensor:
        return ours.encode(ours.tokenize(texts), in_int8=in_int8)

    def their_way() -> torch.Tensor:
        return torch.tensor(theirs.encode(texts, show_progress_bar=False))

    cosine = F.cosine_similarity(our_way(), their_way())  # also a warm-up for both
    times = [(taken(our_way), taken(their_way)) for _ in range(args.rounds)]
    result = {
        "encoder": args.encoder,
        "precision": "int8" if in_int8 else str(ours.dtype).removeprefix("torch."),
        "texts": len(texts),
        "tokens": int(ours.tokenize(texts).lengths.sum()),
        "max_length": length,
        "ours_texts_per_second": len(texts) / statistics.median(own.seconds for own, _ in times),
        "theirs_texts_per_second": len(texts) / statistics.median(other.seconds for _, other in times),
        "ratio": statistics.median(other.seconds / own.seconds for own, other in times),
        "cpu_ratio": statistics.median(other.cpu_seconds / own.cpu_seconds for own, other in times),
        "load": os.getloadavg()[0],
        "cosine_min": float(cosine.min()),
        "cosine_mean": float(cosine.mean()),
    }
    report(result, args.json)


if __name__ == "__main__":
    main()

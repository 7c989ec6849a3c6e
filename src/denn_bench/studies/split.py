"""Time of the stratified split, and the deviation of each label's share, compared with a random split.

python -m denn_bench.studies.split [--rows 800000] [--labels 103] [--json FILE]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from denn.data.split import stratified_split
from denn_bench.studies.machine import report


def main() -> None:
    """Split synthetic rows with labels of very different frequency."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=800_000)
    parser.add_argument("--labels", type=int, default=103)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    draw = np.random.default_rng(0)
    sizes = draw.poisson(2.24, args.rows) + 1  # 3.24 labels per row, as in RCV1-V2
    weights = 1 / np.arange(1, args.labels + 1)
    columns = draw.choice(args.labels, int(sizes.sum()), p=weights / weights.sum())
    rows = [np.unique(some).tolist() for some in np.split(columns, sizes.cumsum()[:-1])]
    begun = time.perf_counter()
    _, valid = stratified_split(rows, args.share, 0)
    seconds = time.perf_counter() - begun
    counts = np.bincount([label for row in rows for label in row], minlength=args.labels)

    def deviation(chosen: list[int]) -> float:
        got = np.bincount([label for row in chosen for label in rows[row]], minlength=args.labels)
        return float(np.abs(got - args.share * counts).mean())

    result = {
        "rows": args.rows,
        "labels": args.labels,
        "seconds": round(seconds, 2),
        "mean_deviation": round(deviation(valid), 2),
        "mean_deviation_of_a_random_split": round(deviation(draw.permutation(args.rows)[: len(valid)].tolist()), 2),
    }
    report(result, args.json)


if __name__ == "__main__":
    main()

"""Time the embedded datastore: loading, adding, and searching compared with one bare matrix product with top-k."""

from __future__ import annotations

import argparse
import json
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch

from denn.stores.embedded.store import EmbeddedStore
from denn.types import Document

RATIO_GOAL = 1.3  # search relative to the bare product
LOAD_GOAL = 2.0  # seconds, warm


def seconds(work: Callable[[], object]) -> float:
    """Return the duration of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def cpu_name() -> str:
    """Return the name of the CPU, if known."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].partition(": ")[2] if names else platform.machine()


def measure_adds(store: EmbeddedStore, vectors: torch.Tensor, single: int) -> dict[str, float]:
    """Add all but a few documents at once, then those few one by one."""
    documents = [
        Document(f"document {i} " * 80, tuple(f"label {(i * step) % 4271}" for step in (1, 7, 31)))
        for i in range(len(vectors))
    ]
    bulk = len(documents) - single
    together = seconds(lambda: store.add(documents[:bulk], vectors[:bulk]))
    one_by_one = [seconds(lambda i=i: store.add([documents[i]], vectors[i : i + 1])) for i in range(bulk, len(vectors))]
    return {"bulk_per_s": bulk / together, "single_per_s": 1 / statistics.median(one_by_one)}


def measure_search(store: EmbeddedStore, queries: torch.Tensor, matrix: torch.Tensor, k: int, runs: int) -> dict:
    """Time store and bare product alternately, so that a busy machine slows both down."""
    ours, bare = [], []
    for _ in range(runs + 1):
        bare.append(seconds(lambda: torch.topk(queries @ matrix.T, k)))
        ours.append(seconds(lambda: store.search(queries, k)))
    store_s, bare_s = statistics.median(ours[1:]), statistics.median(bare[1:])  # the first round is a warm-up
    return {"queries": len(queries), "store_s": store_s, "bare_s": bare_s, "ratio": store_s / bare_s}


def measure(arguments: argparse.Namespace, folder: Path) -> dict:
    """Build a store of random unit vectors and time it."""
    torch.manual_seed(0)
    matrix = torch.nn.functional.normalize(torch.randn(arguments.documents, arguments.dimension))
    path = folder / "store.sqlite"
    with EmbeddedStore.create(path, arguments.dimension) as store:
        adds = measure_adds(store, matrix, min(50, arguments.documents // 2))
    loads = [seconds(lambda: EmbeddedStore.open(path, read_only=True).close()) for _ in range(4)][1:]
    with EmbeddedStore.open(path, read_only=True) as store, torch.inference_mode():
        queries = [torch.randn(n, arguments.dimension) for n in arguments.queries]
        searches = [measure_search(store, q, matrix, arguments.k, arguments.runs) for q in queries]
        size = store.info()["bytes"]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{cpu_name()}, {torch.get_num_threads()} threads",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "sqlite": sqlite3.sqlite_version},
        "documents": arguments.documents,
        "dimension": arguments.dimension,
        "k": arguments.k,
        "bytes": size,
        "load_s": statistics.median(loads),
        "adds": adds,
        "searches": searches,
    }


def show(result: dict) -> None:
    """Print the figures as a table."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    print(f"{result['date']}  {result['machine']}  {versions}")
    print(
        f"{result['documents']} × {result['dimension']}, k = {result['k']}, {result['bytes'] / 2**20:.0f} MiB on disk"
    )
    print(f"load, warm          {result['load_s']:8.3f} s   (goal {LOAD_GOAL:.1f} s)")
    print(f"add, one transaction{result['adds']['bulk_per_s']:8.0f} documents/s")
    print(f"add, one by one     {result['adds']['single_per_s']:8.0f} documents/s")
    print(f"{'queries':>8} {'store ms':>10} {'bare ms':>10} {'ratio':>6}   (goal {RATIO_GOAL})")
    for row in result["searches"]:
        print(f"{row['queries']:8} {row['store_s'] * 1e3:10.2f} {row['bare_s'] * 1e3:10.2f} {row['ratio']:6.2f}")


def main() -> None:
    """Parse the arguments, measure, print, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=53840)
    parser.add_argument("--dimension", type=int, default=768)
    parser.add_argument("--k", type=int, default=30)
    parser.add_argument("--queries", type=lambda text: [int(n) for n in text.split(",")], default=[1, 64, 1000])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(arguments, Path(folder))
    show(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

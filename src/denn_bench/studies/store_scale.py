r"""How the embedded datastore grows: time, memory, disk and recall from 10⁴ to 10⁷ documents on two cores.

    python -m denn_bench.studies.store_scale run --cache FOLDER --documents 10000 100000 1000000 10000000 \
        --work FOLDER --out results/store-scale.jsonl
    python -m denn_bench.studies.store_scale table results/store-scale.jsonl

Vectors are those of `denn_bench.studies.datastore`, made and added part by part, so that the collection itself takes no
memory. Every size is measured in a store of its own: documents added per second, the time to build the index, then, in
a process that only opens the store, memory, latencies of single queries and recall of their 30 nearest against exact
search; at last documents added one by one while another thread searches without a pause. A line is written after each
size; sizes that have a line are not measured again. The table ends with what the last two sizes predict for ten times
as many documents: each figure grows by the same factor again.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denn.stores.embedded.index_maintenance import AUTO_FLOATS
from denn.stores.embedded.store import EmbeddedStore
from denn.types import Document
from denn_bench.studies.datastore import TEXT, K, documents, resident, seconds
from denn_bench.studies.machine import machine
from denn_bench.studies.vectors import stream

DIMENSION = 384
QUERIES = 500
ADDED = 200  # documents added one by one while others search
TABLE = {
    "documents": ("documents", "{:,.0f}"), "p50_ms": ("p50, ms", "{:.1f}"), "p99_ms": ("p99, ms", "{:.1f}"),
    "recall": ("recall", "{:.3f}"), "adds_per_s": ("bulk adds/s", "{:,.0f}"),
    "single_adds_per_s": ("single adds/s during searches", "{:,.0f}"), "build_s": ("build, s", "{:,.0f}"),
    "open_s": ("open, s", "{:,.1f}"), "memory_gb": ("memory, GB", "{:.2f}"), "disk_gb": ("disk, GB", "{:.1f}"),
}  # fmt: skip
GROWING = ("documents", "p50_ms", "p99_ms", "build_s", "open_s", "memory_gb", "disk_gb")


def fill(store: EmbeddedStore, parts: Any, queries: Tensor) -> tuple[Tensor, float, int]:
    """Add all parts; return the (n,1) similarities of the exact K-th nearest of the queries, seconds, and documents."""
    best, taken, count = torch.empty(len(queries), 0), 0.0, 0
    for part in parts:
        best = torch.cat([best, queries @ part.T], 1)
        best = best.topk(min(K, best.shape[1])).values
        made = documents(range(count, count + len(part)))
        taken += seconds(lambda made=made, part=part: store.add(made, part))
        count += len(part)
        if count % 500_000 == 0:
            print(f"added {count:,} documents, {count / taken:,.0f} a second", flush=True)
    return best[:, -1:], taken, count


def search_alone(path: Path, queries: Tensor, least: Tensor, answer: Any) -> None:
    """Open a store and search it, in a process that does nothing else."""
    import faiss  # noqa: F401 - what it takes is not the store's

    before, begun = resident(), time.perf_counter()
    with EmbeddedStore.open(path, read_only=True) as store:
        open_s = time.perf_counter() - begun
        for query in queries[: QUERIES // 5].split(1):  # reads what is read for the first time
            store.search(query, K)
        times, hits = [], 0.0
        for query, bound in zip(queries.split(1), least.tolist(), strict=True):
            begun = time.perf_counter()
            found = store.search(query, K)
            times.append(1e3 * (time.perf_counter() - begun))
            hits += float((found.similarity >= bound[0] - 1e-6).float().mean())
        answer.put(
            {
                "open_s": open_s, "p50_ms": float(np.percentile(times, 50)), "p99_ms": float(np.percentile(times, 99)),
                "recall": hits / len(queries), "memory_gb": (resident() - before) / 1e9,
            }
        )  # fmt: skip


def adds_during_searches(path: Path, queries: Tensor) -> float:
    """Return how many documents a second can be added one by one while a thread searches without a pause."""
    ended = threading.Event()
    with EmbeddedStore.open(path) as store:

        def search() -> None:
            while not ended.is_set():
                for query in queries.split(1):
                    if ended.is_set():
                        break
                    store.search(query, K)

        searching = threading.Thread(target=search)
        searching.start()
        vectors = torch.nn.functional.normalize(queries[:ADDED] + queries[-ADDED:])
        begun = time.perf_counter()
        for number, vector in enumerate(vectors.split(1)):
            store.add([Document(TEXT, ("label 0",), f"single {number}")], vector)
        taken = time.perf_counter() - begun
        ended.set()
        searching.join()
    return len(vectors) / taken


def measure(a: argparse.Namespace, size: int) -> dict[str, Any]:
    """Measure a store of one size."""
    parts, queries = stream(size, DIMENSION, a.real, a.data, a.cache, QUERIES)
    folder = a.work / f"scale-{size}"
    shutil.rmtree(folder, ignore_errors=True)
    path = folder / "store.sqlite"
    with EmbeddedStore.create(path, DIMENSION, index="exact") as store:
        least, taken, count = fill(store, parts, queries)
    found: dict[str, Any] = {"documents": count, "dimension": DIMENSION, "k": K, "adds_per_s": count / taken}
    with EmbeddedStore.open(path) as store:
        if count * DIMENSION >= AUTO_FLOATS:
            found["build_s"] = seconds(store.build_index)
        info = store.info()
    found |= {"disk_gb": float(str(info["bytes"])) / 1e9}
    found["index"] = {key: value for key, value in info.items() if key not in ("path", "bytes", "documents")}
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=search_alone, args=(path, queries, least, answer))
    process.start()
    found |= answer.get()
    process.join()
    found["single_adds_per_s"] = adds_during_searches(path, queries)
    if not a.keep:
        shutil.rmtree(folder)
    return {**found, "load_average": os.getloadavg(), "machine": machine()}


def run(a: argparse.Namespace) -> None:
    """Measure every size that has no line yet."""
    known = [json.loads(line)["documents"] for line in a.out.read_text().splitlines()] if a.out.exists() else []
    for size in a.documents:
        if size not in known:
            found = measure(a, size)
            print(found, flush=True)
            with a.out.open("a") as file:
                file.write(json.dumps(found) + "\n")


def table(path: Path) -> str:
    """Return the sizes as a table, and what the last two predict for ten times as many documents."""
    rows = sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda row: row["documents"])
    if len(rows) > 1:
        last, before = rows[-1], rows[-2]
        power = 1 / math.log10(last["documents"] / before["documents"])
        both = [name for name in GROWING if name in last and name in before]
        rows.append({name: last[name] * (last[name] / before[name]) ** power for name in both})
    lines = ["| " + " | ".join(title for title, _ in TABLE.values()) + " |", "|" + "--:|" * len(TABLE)]
    for row in rows:
        cells = (pattern.format(row[name]) if name in row else "-" for name, (_, pattern) in TABLE.items())
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Read the arguments and do what they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--documents", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    running.add_argument("--data", type=Path, default=Path("../shared/data"), help="a folder with the corpora")
    running.add_argument("--cache", type=Path, required=True, help="where embeddings are kept between runs")
    running.add_argument("--real", type=int, default=100_000, help="embeddings of real windows at most")
    running.add_argument("--work", type=Path, required=True, help="where the stores are made: 4 kB a document")
    running.add_argument("--keep", action="store_true", help="keep the stores")
    running.add_argument("--out", type=Path, required=True)
    showing = commands.add_parser("table")
    showing.add_argument("file", type=Path)
    a = parser.parse_args()
    if a.command == "run":
        run(a)
    else:
        print(table(a.file))


if __name__ == "__main__":
    main()

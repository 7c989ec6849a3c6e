r"""Scaling of the embedded datastore: time, memory, disk and recall from 10⁴ to 10⁷ documents on two cores.

    python -m denn_bench.studies.store_scale run --cache FOLDER --documents 10000 100000 1000000 10000000 \
        --work FOLDER --out results/store-scale.jsonl
    python -m denn_bench.studies.store_scale table results/store-scale.jsonl

Vectors are those of `denn_bench.studies.datastore`, created and added part by part, so that the collection itself takes
no memory. Every size is measured in its own store: documents added per second; time and peak memory of a process that
builds the index; then, in a process that only opens the store, memory, latencies of single queries and recall of their
30 nearest against exact search; finally, documents added one by one while another thread searches constantly. A
line is written after each size; sizes that have a line are not measured again, and a store filled by an interrupted run
is reused. The table ends with an extrapolation from the last two sizes to ten times as many documents:
each figure grows by the same factor again.

With --cgroup FOLDER, building and searching run in this memory cgroup with a limit, each from an empty page cache
(needs root). Cached file pages then count against the limit:

    mkdir /sys/fs/cgroup/memory/scale && echo 16G > /sys/fs/cgroup/memory/scale/memory.limit_in_bytes
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import resource
import shutil
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denn.stores.embedded import index_file
from denn.stores.embedded.index_maintenance import AUTO_FLOATS
from denn.stores.embedded.sqlite import connect_reader
from denn.stores.embedded.store import EmbeddedStore
from denn.stores.embedded.vectors import matrix
from denn.types import Document
from denn_bench.studies.datastore import TEXT, K, documents, resident, seconds
from denn_bench.studies.machine import machine
from denn_bench.studies.vectors import stream

DIMENSION = 384
QUERIES, FIRST = 500, 100  # number of measured queries, and of warm-up queries
BLOCK = 32_768  # vectors compared with the queries at a time
ADDED = 200  # documents added one by one during searches
TABLE = {
    "documents": ("documents", "{:,.0f}"), "p50_ms": ("p50, ms", "{:.1f}"), "p99_ms": ("p99, ms", "{:.1f}"),
    "recall": ("recall", "{:.3f}"), "adds_per_s": ("bulk adds/s", "{:,.0f}"),
    "single_adds_per_s": ("single adds/s during searches", "{:,.0f}"), "build_s": ("build, s", "{:,.0f}"),
    "build_gb": ("memory of building, GB", "{:.1f}"), "open_s": ("open, s", "{:,.1f}"),
    "memory_gb": ("memory of searching, GB", "{:.2f}"), "disk_gb": ("disk, GB", "{:.1f}"),
}  # fmt: skip
GROWING = ("documents", "p50_ms", "p99_ms", "build_s", "build_gb", "open_s", "memory_gb", "disk_gb")


def fill_alone(path: Path, size: int, real: int, data: Path, cache: Path, answer: Any) -> None:
    """Create a store in a separate process."""
    parts, _ = stream(size, DIMENSION, real, data, cache, FIRST + QUERIES)
    taken, count = 0.0, 0
    with EmbeddedStore.create(path, DIMENSION, index="exact") as store:
        for part in parts:
            made = documents(range(count, count + len(part)))
            taken += seconds(lambda made=made, part=part: store.add(made, part))
            count += len(part)
            if count % 500_000 == 0:
                print(f"added {count:,} documents, {count / taken:,.0f} a second", flush=True)
    answer.put({"documents": count, "adds_per_s": count / taken})


def least_similarity(path: Path, queries: Tensor) -> Tensor:
    """Return the (n,1) similarities of the exact K-th nearest of the queries among all vectors in a store's file."""
    best = torch.empty(len(queries), 0)
    with closing(connect_reader(path, 10.0)) as reader:
        rows = reader.execute("SELECT embedding FROM documents")
        while chunk := rows.fetchmany(BLOCK):
            vectors = matrix([blob for (blob,) in chunk], DIMENSION)
            best = torch.cat([best, queries @ vectors.T], 1)
            best = best.topk(min(K, best.shape[1])).values
    return best[:, -1:]


def enter(cgroup: Path | None) -> int:
    """Move this process into a memory cgroup and empty the page cache; return its private memory in bytes."""
    if cgroup is not None:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    return private()


def private() -> int:
    """Return the private memory of this process in bytes, without mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def limit(cgroup: Path) -> float:
    """Return the limit of a memory cgroup, v1 or v2, in GiB."""
    file = next(file for file in (cgroup / "memory.max", cgroup / "memory.limit_in_bytes") if file.exists())
    return int(file.read_text()) / 2**30


def build_alone(path: Path, cgroup: Path | None, answer: Any) -> None:
    """Build the index in a separate process."""
    import faiss  # noqa: F401 - its memory is not the store's

    before = enter(cgroup)
    begun = time.perf_counter()
    with EmbeddedStore.open(path) as store:
        store.build_index()
        taken = time.perf_counter() - begun
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer.put({"build_s": taken, "build_gb": (peak - before) / 1e9})


def search_alone(path: Path, queries: Tensor, least: Tensor, cgroup: Path | None, answer: Any) -> None:
    """Open a store and search it in a separate process."""
    import faiss  # noqa: F401 - its memory is not the store's

    before, begun = enter(cgroup), time.perf_counter()
    with EmbeddedStore.open(path, read_only=True) as store:
        open_s = time.perf_counter() - begun
        for query in queries[:FIRST].split(1):
            store.search(query, K)
        times, hits, reads = [], 0.0, resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        for query, bound in zip(queries[FIRST:].split(1), least[FIRST:].tolist(), strict=True):
            begun = time.perf_counter()
            found = store.search(query, K)
            times.append(1e3 * (time.perf_counter() - begun))
            hits += float((found.similarity >= bound[0] - 1e-6).float().mean())
        reads = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - reads
        info = store.info()
        answer.put(
            {
                "open_s": open_s, "p50_ms": float(np.percentile(times, 50)), "p99_ms": float(np.percentile(times, 99)),
                "recall": hits / len(times), "memory_gb": (private() - before) / 1e9,
                "resident_gb": resident() / 1e9, "page_faults_per_query": reads / len(times),
                "disk_gb": float(str(info["bytes"])) / 1e9,
                "index": {key: value for key, value in info.items() if key not in ("path", "bytes", "documents")},
            }
        )  # fmt: skip


def alone(work: Any, *arguments: Any) -> dict[str, Any]:
    """Run a measurement in a new process."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=work, args=(*arguments, answer))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{work.__name__} ended with {process.exitcode}. Was there enough memory?")
    found: dict[str, Any] = answer.get()
    return found


def adds_during_searches(path: Path, queries: Tensor) -> float:
    """Return the rate of single adds per second while a thread searches constantly."""
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
    _, queries = stream(size, DIMENSION, a.real, a.data, a.cache, FIRST + QUERIES)
    folder = a.work / f"scale-{size}"
    path, filled = folder / "store.sqlite", folder / "filled.json"
    if not filled.exists():
        shutil.rmtree(folder, ignore_errors=True)
        filling = alone(fill_alone, path, size, a.real, a.data, a.cache)
        filled.write_text(json.dumps(filling))
    found: dict[str, Any] = {"dimension": DIMENSION, "k": K, **json.loads(filled.read_text())}
    if a.cgroup is not None:
        found["limit_gib"] = limit(a.cgroup)
    index_file.beside(path).unlink(missing_ok=True)
    if size * DIMENSION >= AUTO_FLOATS:
        found |= alone(build_alone, path, a.cgroup)
    found |= alone(search_alone, path, queries, least_similarity(path, queries), a.cgroup)
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
    """Return the sizes as a table, with an extrapolation to ten times as many documents."""
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
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--documents", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    running.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with the corpora")
    running.add_argument("--cache", type=Path, required=True, help="cache folder for embeddings")
    running.add_argument("--real", type=int, default=100_000, help="maximum number of embeddings of real windows")
    running.add_argument("--work", type=Path, required=True, help="folder for the stores: 4 kB per document")
    running.add_argument("--cgroup", type=Path, help="folder of a memory cgroup to build and search in")
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

"""Time datastores of many documents: recall, latency, adding, building and bytes, beside the bare engines.

python benchmarks/datastore.py --cache FOLDER [--data CORPORA] [--documents 50000 200000 800000] [--dimension 384]
    [--real 100000] [--stores exact approximate] [--address postgresql://…] [--work FOLDER] [--out results]

Vectors are embeddings of windows of real texts, cached in --cache; past --real of them the rest is made of them, as
vectors.py says and the result too. Queries are windows that are not stored. For d = 768 two embeddings stand side by
side. The bare engine runs in turns with the store, on the same vectors: for exact search one matrix product and top-k,
for the approximate one faiss with the same number of lists, then a ranking by vectors in memory. PostgreSQL has none.
Results go to OUT/datastore-STORE-DIMENSION.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denn.registry import STORES, lookup
from denn.stores.address import create_store, kind_of, open_store
from denn.stores.approximate import Approximate, candidates
from denn.types import Datastore, Document
from machine import report
from vectors import NEAR, collection

K = 30
QUERIES = 256
BATCH = 64
SINGLE = 40  # documents added one by one
PART = 20_000  # documents of one bulk add
TEXT = "A short text of about the length of an abstract's first sentence, so that the file is a real one. " * 4
OPTIONS: dict[str, dict[str, Any]] = {
    "exact": {"index": "exact"},
    "approximate": {"index": "approximate"},
    "postgres": {},
}


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def documents(numbers: Iterable[int]) -> list[Document]:
    """Make documents of some numbers, with three labels each."""
    return [Document(f"{i} {TEXT}", tuple(f"label {i * s % 541}" for s in (1, 7, 31)), f"d{i}") for i in numbers]


def fill(store: Datastore, matrix: Tensor) -> float:
    """Add all in parts; return documents per second."""
    total = 0.0
    for begin in range(0, len(matrix), PART):
        part = matrix[begin : begin + PART]
        made = documents(range(begin, begin + len(part)))
        total += seconds(lambda made=made, part=part: store.add(made, part))
    return len(matrix) / total


def least_similarity(queries: Tensor, matrix: Tensor) -> Tensor:
    """Return the (n,1) similarities of the exact K-th nearest."""
    best = torch.empty(len(queries), 0)
    for part in matrix.split(PART):
        best = torch.cat([best, queries @ part.T], 1)
        best = best.topk(min(K, best.shape[1])).values
    return best[:, -1:]


def recall(store: Datastore, queries: Tensor, matrix: Tensor, least: Tensor) -> float:
    """Return the share of what is found that is as near as the K-th nearest; windows that are equal count as one."""
    found = [ids for part in queries.split(BATCH) for ids in store.search(part, K).ids]
    near = matrix[torch.tensor([[int(id[1:]) for id in ids] for ids in found])]  # (n,K,d)
    return float((torch.einsum("nd,nkd->nk", queries, near) >= least - 1e-6).float().mean())


def bare_exact(matrix: Tensor) -> Callable[[Tensor], object]:
    """Return one product with top-k."""
    return lambda queries: torch.topk(queries @ matrix.T, K)


def bare_faiss(index: Approximate, matrix: Tensor) -> Callable[[Tensor], object]:
    """Return a search of the same lists and a ranking of the same candidates by vectors in memory."""
    import faiss

    parameters = faiss.SearchParametersIVF(nprobe=index.probes)
    vectors, rows = matrix.numpy(), index.rows.numpy()

    def search(queries: Tensor) -> object:
        _, found = index.ivf.search(queries.numpy(), candidates(K), params=parameters)
        near = vectors[rows[found] - 1]  # rows count the documents from one, in the order of adding
        return torch.topk(torch.from_numpy(np.einsum("nd,ncd->nc", queries.numpy(), near)), K)

    return search


def compare(store: Datastore, bare: Callable[[Tensor], object] | None, batches: list[Tensor]) -> dict[str, float]:
    """Time store and bare engine in turns, so that a busy machine slows both alike."""
    ours, theirs = [], []
    for queries, others in zip(batches, batches[1:] + batches[:1], strict=True):  # what one read is not yet near
        ours.append(seconds(lambda queries=queries: store.search(queries, K)))
        if bare is not None:
            theirs.append(seconds(lambda queries=others: bare(queries)))
    result = {"ms": 1e3 * statistics.median(ours[1:])}  # the first turn warms up
    if theirs:
        bare_ms = 1e3 * statistics.median(theirs[1:])
        result |= {"bare_ms": bare_ms, "ratio": result["ms"] / bare_ms}
    return result


def resident() -> int:
    """Return the bytes of memory that this process holds now."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def opened_alone(address: str, options: dict[str, Any], query: Tensor, answer: Any) -> None:
    """Open a store in a process of its own: how long that takes and what it needs."""
    lookup(STORES, kind_of(address), "store")  # what it imports is no memory of the store's
    if options.get("index") == "approximate":
        import faiss  # noqa: F401
    before = resident()
    begun = time.perf_counter()
    with open_store(address, read_only=True, **options) as store:
        load = time.perf_counter() - begun
        store.search(query, K)
        answer.put((load, resident() - before))


def opening(address: str, options: dict[str, Any], query: Tensor, size: int) -> dict[str, float]:
    """Return seconds to open and bytes of memory for each document."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=opened_alone, args=(address, options, query, answer))
    process.start()
    load, memory = answer.get()
    process.join()
    return {"open_s": load, "memory_bytes_per_document": memory / size}


def adding(store: Datastore, address: str, options: dict[str, Any], vectors: Tensor) -> dict[str, float]:
    """Add one by one; time each add, and from its return until another opening finds the document."""
    single, visible = [], []
    with open_store(address, read_only=True, **options) as second:
        for i, vector in enumerate(vectors[:, None]):
            document = Document(TEXT, ("label 0",), f"single {i}")
            single.append(seconds(lambda document=document, vector=vector: store.add([document], vector)))
            begun = time.perf_counter()
            while document.id not in second.search(vector, 5).ids[0]:
                pass
            visible.append(time.perf_counter() - begun)
    return {"single_per_s": 1 / statistics.median(single), "visible_ms": 1e3 * statistics.median(visible)}


def measure(
    name: str, store: Datastore, address: str, matrix: Tensor, queries: Tensor, least: Tensor
) -> dict[str, Any]:
    """Measure one kind of search over a filled store."""
    options, build = OPTIONS[name], None
    if name == "approximate":
        build = seconds(store.build_index)
    bare = bare_exact(matrix) if name == "exact" else None
    if name == "approximate":
        bare = bare_faiss(store._replica.main, matrix)
    info = store.info()
    return {
        "documents": len(matrix),
        "dimension": matrix.shape[1],
        "recall": recall(store, queries, matrix, least),
        "single": compare(store, bare, list(queries[:200].split(1))),
        "batch": {"queries": BATCH} | compare(store, bare, list(queries.split(BATCH)) * 2),
        "build_s": build,
        "disk_bytes_per_document": info["bytes"] / len(matrix),
        **opening(address, options, queries[:1], len(matrix)),
        # Last, as it changes the store: vectors between two queries, which nothing stored equals.
        **adding(store, address, options, torch.nn.functional.normalize(queries[:SINGLE] + queries[-SINGLE:])),
        "info": {key: value for key, value in info.items() if key not in ("path", "address")},
        "load_average": os.getloadavg(),
    }


def run(arguments: argparse.Namespace, size: int, dimension: int, work: Path) -> dict[str, dict[str, Any]]:
    """Measure the asked stores of one size; the two kinds of embedded search share their file."""
    matrix, queries = collection(size, dimension, arguments.real, arguments.data, arguments.cache, QUERIES)
    least = least_similarity(queries, matrix)
    results: dict[str, dict[str, Any]] = {}
    places = {str(work / "store.sqlite"): ("exact", "approximate"), arguments.address: ("postgres",)}
    for place, kinds in places.items():
        names = [name for name in arguments.stores if name in kinds]
        if not names:
            continue
        address = place.format(documents=size, dimension=dimension)
        with create_store(address, dimension, **OPTIONS[kinds[0]]) as store:
            bulk = fill(store, matrix)
        for name in names:
            with open_store(address, **OPTIONS[name]) as store:
                results[name] = {"bulk_per_s": bulk} | measure(name, store, address, matrix, queries, least)
                store.remove([f"single {i}" for i in range(SINGLE)])
            print(name, size, dimension, results[name], flush=True)
    return results


def main() -> None:
    """Read the arguments, measure, and write a result for each store and dimension."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="a folder with the corpora")
    parser.add_argument("--cache", type=Path, required=True, help="where embeddings are kept between runs")
    parser.add_argument("--documents", type=int, nargs="+", default=[50_000, 200_000, 800_000])
    parser.add_argument("--dimension", type=int, nargs="+", choices=[384, 768], default=[384, 768])
    parser.add_argument("--real", type=int, default=100_000, help="embeddings of real windows at most")
    parser.add_argument("--stores", nargs="+", choices=list(OPTIONS), default=["exact", "approximate"])
    parser.add_argument("--address", help="of PostgreSQL; {documents} and {dimension} in it are filled in")
    parser.add_argument("--work", type=Path, help="where the stores are made, a temporary folder if not given")
    parser.add_argument("--out", type=Path, help="the folder of the results; printed only if not given")
    arguments = parser.parse_args()
    if "postgres" in arguments.stores and not arguments.address:
        parser.error("postgres needs --address")
    for dimension in arguments.dimension:
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in arguments.stores}
        for size in arguments.documents:
            with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
                for name, result in run(arguments, size, dimension, Path(folder)).items():
                    rows[name].append(result)
        for name, results in rows.items():
            head = {
                "store": name,
                "dimension": dimension,
                "k": K,
                "vectors": f"{arguments.real:,} at most are embeddings of real windows, the rest is made of them: "
                f"between a real one and one of its {NEAR} nearest, with noise that gives back the spread",
                "faiss": metadata.version("faiss-cpu") if name == "approximate" else None,
            }
            file = arguments.out and arguments.out / f"datastore-{name}-{dimension}.json"
            report(head | {"sizes": results}, file)


if __name__ == "__main__":
    main()

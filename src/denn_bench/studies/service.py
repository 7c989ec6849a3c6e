"""Load-test a service on this machine: throughput compared with the bare model, latency, queue, memory, refit.

python -m denn_bench.studies.service MODEL TEXTS.jsonl [--parts throughput latency soak full_queue refit]
    [--seconds 20] [--soak 600] [--out results]

TEXTS has one text per line, as for `denn predict`. The service is `denn serve` in a separate process; the
model itself runs in this process, alternately and on the same batches. Each client is a connection that sends a
request, waits for the response and repeats. The part `refit` refits MODEL, so pass a copy. The result goes to
OUT/service.json, which keeps parts that are not measured again.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import denn
from denn_bench.studies.machine import report

BATCH = 64  # texts per request in the throughput comparison
TURNS = 7
CLIENTS = (1, 8, 64)
REFITTED = (1, 8)  # clients during a refit
QUEUE = 32  # size of the queue in the overload test
EVERY = 5.0  # seconds between memory readings


@dataclass
class Server:
    """A service and its process."""

    port: int
    pid: int
    key: str  # with write access

    def resident(self) -> int:
        """Return its memory in bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()


@contextmanager
def serving(model: Path, *options: str) -> Iterator[Server]:
    """Start a service on a free port."""
    command = [sys.executable, "-m", "denn", "serve", str(model), "--port", "0", "--log", "none", "--teach", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            found = re.search(r":(\d+)/#key=(\S+)", process.stdout.readline())
            yield Server(int(found[1]), process.pid, found[2])
        finally:
            process.terminate()
            process.wait(60)


@dataclass
class Client:
    """One persistent connection."""

    port: int
    key: str = ""
    statuses: Counter = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """Send a request and read the whole response."""
        content = json.dumps(body).encode() if body is not None else b""
        head = f"{'POST' if body is not None else 'GET'} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        head += f"Authorization: Bearer {self.key}\r\n" if self.key else ""
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        begun = time.perf_counter()
        self.writer.write(head.encode() + content)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", answer, re.I)[1])
        found = await self.reader.readexactly(length)
        status = int(answer.split(b" ", 2)[1])
        self.times.append(time.perf_counter() - begun)
        self.statuses[status] += 1
        return status, found


async def load(
    port: int, clients: int, seconds: float, texts: list[str], evidence: int = 10, over: asyncio.Event | None = None
) -> dict[str, Any]:
    """Run clients that request one text after the other, for some seconds or until an event."""
    begun = time.perf_counter()

    async def ask(client: Client, mine: Iterator[str]) -> None:
        async with client:
            while not over.is_set() if over else time.perf_counter() < begun + seconds:
                status, _ = await client.ask("/v1/predict", {"text": next(mine), "evidence": evidence})
                if status == 503:
                    await asyncio.sleep(0.2)

    asked = [Client(port) for _ in range(clients)]
    starts = [itertools.cycle(texts[i * 7 % len(texts) :] + texts[: i * 7 % len(texts)]) for i in range(clients)]
    await asyncio.gather(*(ask(*pair) for pair in zip(asked, starts, strict=True)))
    lasted = time.perf_counter() - begun if over else seconds
    times = sorted(seconds for client in asked for seconds in client.times)
    statuses = sum((client.statuses for client in asked), Counter())
    return {
        "clients": clients,
        "answers": dict(statuses),
        "texts_per_s": statuses[200] / lasted,
        "p50_ms": 1e3 * statistics.median(times),
        "p99_ms": 1e3 * times[int(0.99 * len(times))],
        "max_ms": 1e3 * times[-1],
    }


async def batches(port: int, parts: list[list[str]]) -> float:
    """Return the time of three clients for all batches; one waits while two are computed."""
    left = iter(parts)

    async def work() -> None:
        async with Client(port) as client:
            for part in left:
                status, _ = await client.ask("/v1/predict/batch", {"texts": part, "evidence": 10})
                assert status == 200, status

    begun = time.perf_counter()
    await asyncio.gather(work(), work(), work())
    return time.perf_counter() - begun


def throughput(folder: Path, server: Server, texts: list[str]) -> dict[str, Any]:
    """Compare the service with the model itself, alternately."""
    parts = [texts[i : i + BATCH] for i in range(0, len(texts) - BATCH + 1, BATCH)][:8]
    count = sum(map(len, parts))
    direct, served = [], []
    with denn.load(folder) as model:
        for _ in range(TURNS + 1):  # the first round is a warm-up
            begun = time.perf_counter()
            for part in parts:
                model.predict(part, evidence=10)
            direct.append(time.perf_counter() - begun)
            served.append(asyncio.run(batches(server.port, parts)))
    direct_s, served_s = statistics.median(direct[1:]), statistics.median(served[1:])
    return {
        "batch": BATCH,
        "direct_texts_per_s": count / direct_s,
        "service_texts_per_s": count / served_s,
        "ratio": statistics.median(one / other for one, other in zip(direct[1:], served[1:], strict=True)),
    }


async def soak(server: Server, seconds: float, texts: list[str]) -> dict[str, Any]:
    """Run 64 clients, and record the memory."""
    sizes: list[tuple[float, int]] = []

    async def watch() -> None:
        begun = time.perf_counter()
        while True:
            sizes.append((time.perf_counter() - begun, server.resident()))
            await asyncio.sleep(EVERY)

    watching = asyncio.create_task(watch())
    found = await load(server.port, 64, seconds, texts)
    watching.cancel()
    later = [size for moment, size in sizes if moment > seconds / 3]  # caches are full by then
    half = len(later) // 2
    found["memory_mb"] = [round(size / 1e6, 1) for _, size in sizes[:: max(1, len(sizes) // 20)]]
    found["growth_mb"] = (statistics.median(later[half:]) - statistics.median(later[:half])) / 1e6
    return found | {"seconds": seconds}


async def full_queue(server: Server, texts: list[str], limit: int) -> dict[str, Any]:
    """Send more than fits in the queue, and record its length."""
    most = 0
    done = False

    async def watch() -> None:
        nonlocal most
        async with Client(server.port) as client:
            while not done:
                _, found = await client.ask("/metrics")
                most = max(most, int(float(re.search(rb"\ndenn_waiting_texts (\S+)", found)[1])))
                await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    found = await load(server.port, 64, 10, texts)
    done = True
    await watching
    return found | {"limit": limit, "most_waiting": most}


async def refit(server: Server, clients: int, seconds: float, texts: list[str]) -> dict[str, Any]:
    """Measure responses before a refit, then during it and the switch to its model."""
    idle, over = await load(server.port, clients, seconds, texts), asyncio.Event()

    async def follow() -> dict[str, Any]:
        async with Client(server.port, server.key) as client:
            await client.ask("/v1/refit", {"force": True})
            while (found := json.loads((await client.ask("/v1/refit"))[1]))["state"] == "running":
                await asyncio.sleep(0.5)
        over.set()
        return found

    during, ended = await asyncio.gather(load(server.port, clients, 0, texts, over=over), follow())
    return {"idle": idle, "during": during, "refit": {name: ended[name] for name in ("state", "sentence", "figures")}}


PARTS: dict[str, Callable[[argparse.Namespace, Server, list[str]], Any]] = {
    "throughput": lambda given, server, texts: throughput(given.model, server, texts),
    "latency": lambda given, server, texts: [
        asyncio.run(load(server.port, clients, given.seconds, texts)) for clients in CLIENTS
    ],
    "soak": lambda given, server, texts: asyncio.run(soak(server, given.soak, texts)),
    "refit": lambda given, server, texts: [
        asyncio.run(refit(server, clients, given.seconds, texts)) for clients in REFITTED
    ],
    "full_queue": lambda given, server, texts: asyncio.run(full_queue(server, texts, QUEUE)),
}


def main() -> None:
    """Parse the arguments, measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=[part for part in PARTS if part != "refit"])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--soak", type=float, default=600)
    parser.add_argument("--out", type=Path, help="folder for the result; default: print only")
    arguments = parser.parse_args()
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines][:2000]
    file = arguments.out and arguments.out / "service.json"
    result: dict[str, Any] = json.loads(file.read_text()) if file and file.exists() else {}
    result |= {"model": arguments.model.name, "texts": len(texts)}
    for part in arguments.parts:
        options = ["--queue", str(QUEUE)] if part == "full_queue" else []
        with serving(arguments.model, *options) as server:
            result[part] = PARTS[part](arguments, server, texts)
            print(part, result[part], flush=True)
    report(result, file)


if __name__ == "__main__":
    main()

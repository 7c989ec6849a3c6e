"""Restart two replicas over one PostgreSQL behind the real proxy, again and again, while clients send requests.

python tests/service/rolling.py MODEL [--minutes 5] [--clients 8] [--kill] [--out results/rolling-restart.json]

The proxy is Caddy with deploy/Caddyfile. A request fails if it gets no answer, or a status other than 200 and
201. At the end, every document whose add was acknowledged must be in the datastore, added by exactly one change.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

sys.path.append(str(Path(__file__).parents[1] / "stores"))

CADDYFILE = Path(__file__).parents[2] / "deploy" / "Caddyfile"
KEY = "denn-write-of-the-rolling-restart"
KEYS = f"write sha256:{hashlib.sha256(KEY.encode()).hexdigest()} rolling"
ADDS = 10  # one request in this many is an add
PATIENCE = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Replica:
    """One `denn serve` that can be restarted on its port."""

    def __init__(self, folder: Path, drain: float) -> None:
        self.folder, self.drain, self.port, self.process = folder, drain, free_port(), None

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        options = ["--port", str(self.port), "--drain-seconds", str(self.drain), "--log", "none"]
        command = [sys.executable, "-m", "denn", "serve", str(self.folder), *options]
        self.process = subprocess.Popen(command, env={**os.environ, "DENN_KEYS": KEYS}, stdout=subprocess.DEVNULL)

    def wait_until_ready(self) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                if httpx.get(f"http://{self.name}/ready", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert self.process.poll() is None, "the replica has ended"
            assert time.monotonic() < end, "the replica does not get ready"
            time.sleep(0.05)

    def stop(self, sent: signal.Signals = signal.SIGTERM) -> int:
        """Stop as a supervisor does; return the exit code."""
        self.process.send_signal(sent)
        return self.process.wait(PATIENCE)


@contextmanager
def proxying(replicas: list[Replica], work: Path) -> Iterator[tuple[str, ssl.SSLContext]]:
    """Run Caddy with the project's configuration; yield its address and its own certificate authority."""
    url = f"https://localhost:{free_port()}"
    variables = {
        "DENN_SITE": url,
        "DENN_REPLICAS": " ".join(replica.name for replica in replicas),
        "DENN_HTTP_PORT": str(free_port()),
        "DENN_ADMIN": "off",
        "XDG_DATA_HOME": str(work / "caddy"),
        "XDG_CONFIG_HOME": str(work / "caddy"),
    }
    command = ["caddy", "run", "--config", str(CADDYFILE), "--adapter", "caddyfile"]
    log = (work / "caddy.log").open("w")
    with log, subprocess.Popen(command, env={**os.environ, **variables}, stderr=log) as process:
        try:
            authority = work / "caddy" / "caddy" / "pki" / "authorities" / "local" / "root.crt"
            end = time.monotonic() + PATIENCE
            while not (authority.exists() and _answers(url, authority)):
                assert process.poll() is None and time.monotonic() < end, (work / "caddy.log").read_text()
                time.sleep(0.05)
            yield url, ssl.create_default_context(cafile=str(authority))
        finally:
            process.terminate()


def _answers(url: str, authority: Path) -> bool:
    try:
        context = ssl.create_default_context(cafile=str(authority))
        return httpx.get(f"{url}/ready", verify=context, timeout=PATIENCE).status_code == 200
    except (httpx.TransportError, ssl.SSLError):
        return False


class Load:
    """Clients that send predictions and adds until they are stopped, and record every outcome."""

    def __init__(self, url: str, context: ssl.SSLContext, texts: list[str], label: str, pause: float) -> None:
        self.url, self.context, self.texts, self.label, self.pause = url, context, texts, label, pause
        self.outcomes, self.seconds, self.added = Counter[str](), list[float](), list[str]()
        self.failures: list[str] = []  # the first ones
        self._stop, self._sent = threading.Event(), 0

    @contextmanager
    def running(self, clients: int) -> Iterator[None]:
        thread = threading.Thread(target=lambda: asyncio.run(self._run(clients)))
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    async def _run(self, clients: int) -> None:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(
            base_url=self.url, verify=self.context, timeout=PATIENCE, headers=headers
        ) as client:
            await asyncio.gather(*(self._client(client) for _ in range(clients)))

    async def _client(self, client: httpx.AsyncClient) -> None:
        while not self._stop.is_set():
            number = self._sent
            self._sent += 1
            text, is_add = self.texts[number % len(self.texts)], number % ADDS == 0
            document = {"text": f"{text} {number}", "labels": [self.label], "id": f"rolling-{number}"}
            path, body, expected = (
                ("/v1/documents", {"documents": [document]}, 201) if is_add else ("/v1/predict", {"text": text}, 200)
            )
            begun = time.monotonic()
            try:
                status = str((await client.post(path, json=body)).status_code)
            except httpx.TransportError as error:
                status = type(error).__name__
            self.seconds.append(time.monotonic() - begun)
            self.outcomes[f"{path} {status}"] += 1
            if status == str(expected):
                self.added += [document["id"]] if is_add else []
            else:
                self.failures.append(f"{path} {status}")
            await asyncio.sleep(self.pause)


def roll(
    model: Path,
    *,
    seconds: float,
    clients: int,
    restarts: int = 2,
    drain: float = 5.0,
    pause: float = 0.0,
    kill: bool = False,
) -> dict[str, Any]:
    """Restart replicas in turn for some time, each at least once; return the counts."""
    import postgres_server

    import denn
    from denn.stores.address import create_store, use

    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder, address = shutil.copytree(model, work / "model"), postgres_server.address_of(work / "a", fresh=True)
        with denn.load(folder) as loaded:
            own = loaded.store
            texts = [document.text for document in own.get(own.ids()[:200])]
            store = stack.enter_context(create_store(address, own.dimension, own.labels))
            for documents, vectors in own.export():
                store.add(documents, vectors, source="copy")
        use(folder, address)
        before = {"documents": len(store), "changes": len(store.history())}
        running = [stack.enter_context(_started(folder, drain)) for _ in range(2)]
        for replica in running:
            replica.wait_until_ready()
        load = Load(*stack.enter_context(proxying(running, work)), texts, store.labels[0], pause)
        begun, took, codes = time.monotonic(), list[float](), Counter[int]()
        with load.running(clients):
            while len(took) < restarts or time.monotonic() - begun < seconds:
                replica, since = running[len(took) % 2], time.monotonic()
                codes[replica.stop(signal.SIGKILL if kill else signal.SIGTERM)] += 1
                replica.start()
                replica.wait_until_ready()
                took.append(time.monotonic() - since)
        whole = time.monotonic() - begun
        ids = set(store.ids())
        return {
            "seconds": round(whole, 1),
            "clients": clients,
            "drain_seconds": drain,
            "restarts": len(took),
            "median_restart_seconds": round(statistics.median(took), 1),
            "exit_codes": dict(codes),
            "requests": sum(load.outcomes.values()),
            "failed": len(load.failures),
            "first_failures": load.failures[:5],
            "outcomes": dict(sorted(load.outcomes.items())),
            "milliseconds": _milliseconds(load.seconds),
            "adds_acknowledged": len(load.added),
            "adds_lost": len(set(load.added) - ids),
            "documents_beyond_the_adds": len(ids) - before["documents"] - len(load.added),
            "changes_beyond_the_adds": len(store.history()) - before["changes"] - len(load.added),
        }


@contextmanager
def _started(folder: Path, drain: float) -> Iterator[Replica]:
    replica = Replica(folder, drain)
    replica.start()
    try:
        yield replica
    finally:
        replica.process.kill()
        replica.process.wait()


def _milliseconds(seconds: list[float]) -> dict[str, int]:
    ordered = sorted(seconds)
    shares = {"p50": 0.5, "p99": 0.99, "max": 1}
    return {name: round(1000 * ordered[int(share * (len(ordered) - 1))]) for name, share in shares.items()}


def main() -> None:
    """Run as a command."""
    from denn_bench.machine import machine

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--drain", type=float, default=5)
    parser.add_argument("--kill", action="store_true", help="crash the replicas instead of stopping them")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    os.environ["DENN_CONFIG"] = tempfile.mkdtemp()  # where the address of the database becomes trusted
    facts = roll(given.model, seconds=60 * given.minutes, clients=given.clients, drain=given.drain, kill=given.kill)
    version = subprocess.run(["caddy", "version"], capture_output=True, text=True).stdout.split()[0]
    facts |= {"proxy": f"Caddy {version}", "machine": machine(), "date": datetime.now(UTC).date().isoformat()}
    text = json.dumps(facts, indent=1) + "\n"
    sys.stdout.write(text)
    if given.out:
        given.out.write_text(text)


if __name__ == "__main__":
    main()

"""Try to block a service: how long others wait while clients send the most expensive requests.

python -m denn_bench.studies.blocking FOLDER [--clients 8] [--seconds 20]

FOLDER gets a small model (created once) whose datastore has 20,000 documents with 400 labels added after training.
The service is `denn serve` in a separate process. Attackers constantly request /v1/labels and documents by a part of
their text; one client per measured endpoint sends requests to it. The table goes to standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import torch

import denn

DOCUMENTS, LABELS = 20_000, 400
PATIENCE = 70.0  # request timeout in seconds
WORDS = "editor library game kernel music video network server printer font compiler database".split()
ATTACKS = ("/v1/labels?limit=1000", "/v1/documents?text=x")
MEASURED = (
    ("/ready", None),
    ("/v1/labels?limit=10", None),
    ("/v1/documents/doc-7", None),
    ("/v1/predict", {"text": "an editor for XML files"}),
)


def make(folder: Path) -> None:
    """Train a small model, and fill its datastore with documents around a centre for each label."""
    chance = random.Random(1)
    texts = [" ".join(chance.choices(WORDS, k=8)) for _ in range(64)]
    documents = [denn.Document(text, tuple(sorted(set(text.split()))[:2])) for text in texts]
    corpus = denn.Corpus(documents[:48], documents[48:], name="blocking")
    with denn.train(corpus, out=folder, encoder="minilm", epochs=1, device="cpu", allow_poor=True) as model:
        torch.manual_seed(1)
        width = model.store.dimension
        centres = torch.randn(LABELS, width)
        for begin in range(0, DOCUMENTS, 1000):
            own = torch.arange(begin, begin + 1000) % LABELS
            labels = [(f"later {a}", f"later {chance.randrange(LABELS)}") for a in own.tolist()]
            texts = [" ".join(chance.choices(WORDS, k=100)) for _ in labels]
            added = [denn.Document(text, given) for text, given in zip(texts, labels, strict=True)]
            model.store.add(added, centres[own] + 0.8 * torch.randn(len(own), width))


async def ask(client: httpx.AsyncClient, path: str, body: Any) -> tuple[float, int]:
    """Return the response time and the status, 0 without a response."""
    begun = time.perf_counter()
    try:
        answer = await (client.get(path) if body is None else client.post(path, json=body))
        return time.perf_counter() - begun, answer.status_code
    except httpx.HTTPError:
        return time.perf_counter() - begun, 0


async def measure(url: str, clients: int, seconds: float) -> None:
    """Send requests to every measured endpoint until the time is over, with and without attackers."""
    for attackers in (0, clients):
        found: dict[str, list[tuple[float, int]]] = {path: [] for path, _ in MEASURED}
        attacked: dict[str, list[tuple[float, int]]] = {path: [] for path in ATTACKS}
        end = time.monotonic() + seconds

        async def repeat(path: str, body: Any, times: list[tuple[float, int]], pause: float, end: float = end) -> None:
            async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
                while time.monotonic() < end:
                    times.append(await ask(client, path, body))
                    await asyncio.sleep(pause)

        await asyncio.gather(
            *(repeat(path, body, found[path], 0.05) for path, body in MEASURED),
            *(repeat(path, None, attacked[path], 0) for _ in range(attackers // 2) for path in ATTACKS),
        )
        for path, times in {**found, **(attacked if attackers else {})}.items():
            waits = sorted(1000 * wait for wait, _ in times)
            statuses = ", ".join(
                f"{count} × {status}" for status, count in sorted(Counter(s for _, s in times).items())
            )
            last = waits[min(len(waits) - 1, round(0.99 * len(waits)))]
            print(f"| {attackers} | {path} | {statistics.median(waits):.0f} | {last:.0f} | {statuses} |", flush=True)


def main() -> None:
    """Create the model if it is missing, serve it, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args()
    if not given.folder.exists():
        make(given.folder)
    command = [sys.executable, "-m", "denn", "serve", str(given.folder), "--port", "0", "--log", "none"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = re.search(r"http://[^/]+", process.stdout.readline())[0]
            print("| attackers | request | p50, ms | p99, ms | responses |\n|--:|---|--:|--:|---|")
            asyncio.run(measure(url, given.clients, given.seconds))
        finally:
            process.terminate()


if __name__ == "__main__":
    main()

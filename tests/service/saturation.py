"""A saturated service while other processes add, relabel, remove, forget and vacuum at random; every answer is checked.

python tests/service/saturation.py MODEL [--minutes 10] [--clients 48] [--writers 3] [--out results/saturation.json]

A neighbour in an answer must have the labels that its document had at some moment between request and answer; what the
witness "neighbours" gives a label must be what these neighbours vote for, what the classifier gives it what it gives
the text alone, and the score the combination of the witnesses, where that is their average or by λ.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import torch

import denn
from denn.report.combination import combination_of
from denn_bench.machine import machine

POOL = 200  # texts to predict, which the documents are similar to
READS = ("/v1/labels?limit=50", "/v1/documents?text=live", "/ready", "/v1/history?limit=5", "/metrics")
TOLERANCE = 2e-3  # tolerance of scores: batches of other sizes round differently


class Load:
    """Clients that send requests until a given time, record every response with its times, and count statuses."""

    def __init__(self, url: str, texts: list[str], k: int, end: float, answers: Path) -> None:
        self.url, self.texts, self.k, self.end, self.answers = url, texts, k, end, answers
        self.statuses, self.chance = Counter[str](), random.Random(0)

    async def run(self, clients: int) -> None:
        limits = httpx.Limits(max_connections=None)
        with self.answers.open("w") as out:
            async with httpx.AsyncClient(base_url=self.url, timeout=120, limits=limits) as client:
                tagging = (self.tag(client, out) for _ in range(clients))
                await asyncio.gather(*tagging, *(self.read(client) for _ in range(4)))

    async def tag(self, client: httpx.AsyncClient, out: Any) -> None:
        while time.monotonic() < self.end:
            numbers = [self.chance.randrange(len(self.texts)) for _ in range(self.chance.choice((1, 4, 16)))]
            body = {"texts": [self.texts[n] for n in numbers], "evidence": self.k, "text_characters": 0}
            begun = time.monotonic()
            answer = await client.post("/v1/predict/batch", json=body)
            self.statuses[f"predict {answer.status_code}"] += 1
            if answer.status_code == 200:
                row = [begun, time.monotonic(), numbers, answer.json()["predictions"]]
                out.write(json.dumps(row) + "\n")
            else:
                await asyncio.sleep(0.2)

    async def read(self, client: httpx.AsyncClient) -> None:
        while time.monotonic() < self.end:
            path = self.chance.choice(READS)
            answer = await client.get(path)
            self.statuses[f"{path.partition('?')[0]} {answer.status_code}"] += 1
            await asyncio.sleep(0.05)


class Contents:
    """The contents of the datastore over time, from the logs of the writers."""

    def __init__(self, logs: list[Path], trained: dict[str, list[str]]) -> None:
        self.trained = trained
        rows = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        self.changes = len(rows)
        changes: dict[str, list[tuple[float, float, list[str] | None]]] = defaultdict(list)
        for row in rows:
            for id, labels in row["states"].items():
                changes[id].append((row["begun"], row["done"], labels))
        self.states = {  # id → intervals in which it may have had which labels
            id: [
                (begun, some[place + 1][1] if place + 1 < len(some) else math.inf, labels)
                for place, (begun, _, labels) in enumerate(some)
            ]
            for id, some in changes.items()
        }

    def may_be(self, id: str, labels: list[str], begun: float, done: float) -> bool:
        """Return whether a document may have had these labels at some time during a request."""
        if id in self.trained:
            return labels == self.trained[id]
        moments = self.states.get(id, ())
        return any(state == labels and since <= done and until >= begun for since, until, state in moments)


class Checker:
    """Compares responses with the contents of the store, and scores with the votes of the neighbours."""

    def __init__(self, contents: Contents, bench: Bench) -> None:
        self.contents, self.known, self.parameters = contents, bench.known, bench.parameters
        self.combination = bench.combination
        self.column = {name: place for place, name in enumerate(bench.labels)}
        self.found = Counter[str]()
        self.wrong: list[Any] = []  # the first errors

    def check(self, answers: Path) -> None:
        with answers.open() as lines:
            for line in lines:
                begun, done, numbers, rows = json.loads(line)
                for number, row in zip(numbers, rows, strict=True):
                    self.found["texts"] += 1
                    self.check_neighbours(row["neighbours"], begun, done)
                    if len(row["neighbours"]) == self.parameters["k"]:
                        self.check_scores(row, self.known[number])
                    else:
                        self.found["texts with a neighbour gone before its text was read"] += 1

    def check_neighbours(self, neighbours: list[dict[str, Any]], begun: float, done: float) -> None:
        self.found["neighbours"] += len(neighbours)
        for one in neighbours:
            if not self.contents.may_be(one["id"], one["labels"], begun, done):
                self.note("wrong neighbours", [one, begun, done, self.contents.states.get(one["id"])])

    def check_scores(self, row: dict[str, Any], known: torch.Tensor) -> None:
        near, votes = row["neighbours"], defaultdict[str, float](float)
        nearness = torch.tensor([one["similarity"] for one in near]) / self.parameters["vote_temperature"]
        for one, share in zip(near, nearness.softmax(0).tolist(), strict=True):
            for label in one["labels"]:
                votes[label] += share
        for one in row["scores"]:
            parts, place = one["parts"], self.column.get(one["label"])
            expected = {"neighbours": votes[one["label"]]}
            if place is not None:
                expected["classifier"] = float(known[place])
            pairs = [(parts.get(witness, math.nan), score) for witness, score in expected.items()]
            if self.combination == "average":
                pairs.append((one["score"], sum(parts.values()) / len(parts)))
            elif self.combination == "confidence":
                by_classifier = expected.get("classifier", expected["neighbours"])
                share = row["confidence"]
                pairs.append((one["score"], share * expected["neighbours"] + (1 - share) * by_classifier))
            self.found["scores"] += 1
            if not all(abs(given - right) <= TOLERANCE for given, right in pairs):
                self.note("wrong scores", [one, expected, row["confidence"]])

    def note(self, what: str, facts: Any) -> None:
        self.found[what] += 1
        if len(self.wrong) < 5:
            self.wrong.append(facts)


class Bench:
    """A copy of a model in its own folder, with facts computed in advance."""

    def __init__(self, model: Path, work: Path) -> None:
        self.work = work
        self.folder = shutil.copytree(model, work / "model")
        with denn.load(self.folder) as loaded:
            self.parameters = loaded.card.parameters
            self.combination = combination_of(loaded.card).chosen
            self.labels = list(loaded.labels.names)
            stored = [document for part, _ in loaded.store.export() for document in part]
            self.stored = {str(document.id): list(document.labels) for document in stored}
            self.texts = [document.text for document in stored[:POOL]]
            embedded = loaded.method.embed(self.texts)
            self.known = loaded.method.network.probabilities(embedded)
        torch.save(torch.nn.functional.normalize(embedded, dim=1), work / "pool.pt")

    @contextmanager
    def serving(self, queue: int):
        """Run the service; yield its process and address."""
        options = ("--port", "0", "--queue", str(queue), "--log", "none")
        command = [sys.executable, "-m", "denn", "serve", str(self.folder), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
            try:
                yield service, re.search(r"http://[0-9.:]+", service.stdout.readline())[0]
            finally:
                service.terminate()

    @contextmanager
    def writing(self, writers: int):
        """Run writers in the background; yield their logs."""
        logs = [self.work / f"writer-{number}.jsonl" for number in range(writers)]
        script = Path(__file__).with_name("saturation_writer.py")
        commands = [[sys.executable, script, self.folder, str(number), log] for number, log in enumerate(logs)]
        running = [subprocess.Popen(command) for command in commands]
        try:
            while not all(log.exists() and log.stat().st_size for log in logs):
                assert not any(process.poll() for process in running)
                time.sleep(0.1)
            yield logs
        finally:
            (self.work / "stop").touch()
            codes = [process.wait(120) for process in running]
        assert not any(codes), f"a writer ended with {codes}"


def saturate(model: Path, seconds: float, clients: int, writers: int, queue: int = 256) -> dict[str, Any]:
    """Run everything on a copy of a model and return the counts."""
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(model, Path(scratch))
        answers, memory = bench.work / "answers.jsonl", list[int]()
        with bench.serving(queue) as (service, url), bench.writing(writers) as logs:
            load = Load(url, bench.texts, bench.parameters["k"], time.monotonic() + seconds, answers)

            async def run() -> None:
                watching = asyncio.create_task(_watch(service.pid, memory))
                await load.run(clients)
                watching.cancel()

            asyncio.run(run())
        contents = Contents(logs, bench.stored)
        checker = Checker(contents, bench)
        checker.check(answers)
    third = max(1, len(memory) // 3)
    return {
        "seconds": seconds,
        "clients": clients,
        "writers": writers,
        "changes": contents.changes,
        "statuses": dict(sorted(load.statuses.items())),
        "checked": dict.fromkeys(("wrong neighbours", "wrong scores"), 0) | dict(checker.found),
        "first_wrong": checker.wrong,
        "memory_mb": {
            "second_third": _mean(memory[third : 2 * third]),
            "last_third": _mean(memory[2 * third :]),
            "most": max(memory),
        },
    }


async def _watch(pid: int, memory: list[int]) -> None:
    """Record the resident memory of a process in MB every second."""
    while True:
        status = Path(f"/proc/{pid}/status").read_text()
        memory.append(int(status.split("VmRSS:")[1].split()[0]) // 1000)
        await asyncio.sleep(1)


def _mean(values: list[int]) -> int:
    return round(sum(values) / max(1, len(values)))


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=48)
    parser.add_argument("--writers", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    facts = saturate(given.model, 60 * given.minutes, given.clients, given.writers)
    facts |= {"machine": machine(), "date": datetime.now(UTC).date().isoformat()}
    text = json.dumps(facts, indent=1) + "\n"
    sys.stdout.write(text)
    if given.out:
        given.out.write_text(text)


if __name__ == "__main__":
    main()

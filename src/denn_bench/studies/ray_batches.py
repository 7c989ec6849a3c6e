"""Prediction of many texts on Ray: nothing lost or repeated after a kill, and the speed of plain processes.

python -m denn_bench.studies.ray_batches MODEL TEXTS [--texts 1000000] [--speed-texts 100000] [--rounds 2]
    [--work FOLDER] [--out results/ray-batches.json]

The texts of the file TEXTS are repeated with new ids.

1. `--texts` texts on a local Ray cluster of two workers, one of which is killed when half of the partitions are done.
   Every id must then be in the results once, in order.
2. `--speed-texts` texts, by two plain `denn predict` commands at the same time, each with half of them, and by Ray with
   two workers, alternately. The times are those of whole commands, with the start of Ray. Every process has one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from denn.bundle import read_card
from denn.data.files import iterate_texts
from denn_bench.studies.machine import report

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
ROWS = 10_000
WORKERS = 2


def write_texts(texts: Sequence[str], number: int, folder: Path, files: int) -> list[Path]:
    """Write this many texts with consecutive ids to Parquet files of equal size."""
    folder.mkdir()
    paths = []
    each = -(-number // files)
    for place, start in enumerate(range(0, number, each)):
        ids = range(start, min(start + each, number))
        table = pa.table({"id": [str(id) for id in ids], "text": [texts[id % len(texts)] for id in ids]})
        paths.append(folder / f"part-{place:03d}.parquet")
        pq.write_table(table, paths[-1])
    return paths


def predict(model: Path, inputs: object, output: Path, *options: object) -> subprocess.Popen[str]:
    """Start a command."""
    words = [sys.executable, "-m", "denn", "predict", model, inputs, "--output", output, *options]
    return subprocess.Popen(list(map(str, words)), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def on_ray(model: Path, folder: Path, output: Path, rows: int) -> subprocess.Popen[str]:
    """Start a command on a local cluster of two workers."""
    options = ["--engine", "ray", "--workers", WORKERS, "--partition-rows", rows]
    return predict(model, folder / "*.parquet", output, *options)


def finished(command: subprocess.Popen[str]) -> str:
    """Wait for a command and return its messages."""
    _, messages = command.communicate()
    if command.returncode:
        raise SystemExit(f"The command failed: {messages}")
    return messages


def killed_halfway(command: subprocess.Popen[str], output: Path, partitions: int) -> dict[str, Any]:
    """Kill a worker in the middle of a partition when half of the partitions are done."""
    while command.poll() is None:
        done = len(list(output.glob("*.jsonl")))
        unfinished = list(output.glob("*.jsonl.part-*"))
        if done >= partitions // 2 and unfinished:
            worker = int(re.search(r"-(\d+)-\w+$", unfinished[0].name)[1])
            os.kill(worker, signal.SIGKILL)
            return {"after_partitions": done, "partition": unfinished[0].name.split(".part-")[0]}
        time.sleep(0.05)
    raise SystemExit(f"The command ended before a worker could be killed: {finished(command)}")


def check(output: Path, number: int) -> dict[str, int]:
    """Count missing and repeated ids in the results."""
    seen, repeated, in_order = bytearray(number), 0, True
    for path in sorted(output.glob("*.jsonl")):
        last = -1
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                id = int(json.loads(line)["id"])
                repeated += seen[id]
                seen[id], in_order, last = 1, in_order and id > last, id
    return {"missing": number - sum(seen), "repeated": repeated, "out_of_order": int(not in_order)}


def kill_run(model: Path, texts: Sequence[str], number: int, rows: int, work: Path) -> dict[str, Any]:
    """Predict with a kill halfway, and check the results."""
    files = write_texts(texts, number, work / "kill-in", max(2, number // (5 * rows)))
    partitions = sum(-(-pq.read_metadata(file).num_rows // rows) for file in files)
    begun = time.monotonic()
    command = on_ray(model, work / "kill-in", work / "kill-out", rows)
    kill = killed_halfway(command, work / "kill-out", partitions)
    messages = finished(command)
    seconds = time.monotonic() - begun
    found = check(work / "kill-out", number)
    others = [path.name for path in (work / "kill-out").iterdir() if path.suffix not in (".jsonl", ".json")]
    return {
        "texts": number,
        "partitions": partitions,
        "killed": kill,
        "noticed": "a worker died" in messages,
        **found,
        "half_files": len(others),
        "seconds": round(seconds, 1),
        "texts_per_second": round(number / seconds, 1),
        "load": [round(load, 1) for load in os.getloadavg()],
    }


def speeds(model: Path, texts: Sequence[str], number: int, rows: int, rounds: int, work: Path) -> dict[str, Any]:
    """Time two plain processes and Ray in turns, beginning with the other one each time."""
    halves = write_texts(texts, number, work / "speed-in", 2)
    seconds: dict[str, list[float]] = {"plain": [], "ray": []}
    numbers = count()
    for turn in range(rounds):
        for kind in ("plain", "ray") if turn % 2 == 0 else ("ray", "plain"):
            out, begun = work / f"speed-{next(numbers)}", time.monotonic()
            if kind == "ray":
                commands = [on_ray(model, work / "speed-in", out, rows)]
            else:
                out.mkdir()
                commands = [predict(model, half, out / f"{half.stem}.jsonl") for half in halves]
            for command in commands:
                finished(command)
            seconds[kind].append(round(time.monotonic() - begun, 1))
            if (wrong := check(out, number)) != dict.fromkeys(wrong, 0):
                raise SystemExit(f"The results of {kind} are wrong: {wrong}")
            shutil.rmtree(out)
    rates = {kind: round(number / statistics.median(times), 1) for kind, times in seconds.items()}
    return {
        "texts": number,
        "seconds": seconds,
        "texts_per_second": rates,
        "ray_to_plain": round(rates["ray"] / rates["plain"], 3),
        "load": [round(load, 1) for load in os.getloadavg()],  # about 2 if nothing else ran
    }


def main() -> None:
    """Run both parts and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--speed-texts", type=int, default=100_000)
    parser.add_argument("--partition-rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--work", type=Path, help="folder for texts and results; default: a temporary one")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    texts = [text for text, _ in iterate_texts(a.file)]
    card = read_card(a.model)
    with tempfile.TemporaryDirectory(dir=a.work) as folder:
        work, model = Path(folder), a.model
        given = [Path(word).name if "/" in word else word for word in sys.argv[1:]]  # without paths of this machine
        found: dict[str, Any] = {"command": " ".join(["python -m denn_bench.studies.ray_batches", *given])}
        found["model"] = {
            "method": card.method,
            "encoder": card.parameters.get("encoder"),
            "documents": card.corpus["train"],
            "labels": len(card.corpus["label_counts"]),
        }
        found["mean_characters"] = round(statistics.mean(map(len, texts)), 1)
        if a.texts:
            found["kill"] = kill_run(model, texts, a.texts, a.partition_rows, work)
        if a.speed_texts:
            found["speed"] = speeds(model, texts, a.speed_texts, a.partition_rows, a.rounds, work)
        report({**found, "partition_rows": a.partition_rows, "workers": WORKERS, "cores": os.cpu_count()}, a.out)


if __name__ == "__main__":
    main()

"""Time from the start of a command to its first output, stage by stage, and its memory.

python -m denn_bench.studies.start_up MODEL [--rounds 7] [--out results/start-up.json]

`predict` is `denn predict MODEL` with one line on standard input, until its output is read. `serve` is
`denn serve MODEL` until GET /health returns 200. `stages` are those of a process that loads the model and predicts one
text, in order; the first includes Python's own start. All three alternate, after a warm-up round that fills the page
cache. CPU seconds cover all threads; on a busy machine they are more reliable than wall-clock time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from denn_bench.machine import commit
from denn_bench.studies.machine import report

TEXT = "an editor for XML files that checks them as you type"
STAGES = """
import gc, sys, time
from denn.cli import COLLECT_AFTER
gc.set_threshold(COLLECT_AFTER)  # as the commands do
begun, used, stages = float(sys.argv[2]), 0.0, {}

def stage(name):
    global begun, used
    now, cpu = time.monotonic(), time.process_time()
    stages[name], begun, used = (now - begun, cpu - used), now, cpu

stage("python")
import torch
stage("import torch")
import denn.loading, denn.methods.denn, denn.model
from denn import bundle
from denn.config import make_recipe
from denn.encoders.transformer import TransformerEncoder
from denn.stores import address
stage("import denn")
spent = {}

def timed(name, function):
    def call(*arguments, **options):
        start, cpu = time.monotonic(), time.process_time()
        try:
            return function(*arguments, **options)
        finally:
            spent[name] = time.monotonic() - start, time.process_time() - cpu
    return call

denn.loading.read = timed("check files", denn.loading.read)
TransformerEncoder.load = timed("load encoder", TransformerEncoder.load)
import denn.methods.neighbours
denn.methods.neighbours.open_store = timed("open datastore", denn.methods.neighbours.open_store)
model = denn.load(sys.argv[1])
stage("load")
stages.update(spent)
stages["load the rest"] = [whole - sum(parts) for whole, *parts in zip(stages.pop("load"), *spent.values())]
prediction = model.predict([sys.argv[3]])
stage("first prediction")
import json
named = {f"{name}, {kind}": both[place] for name, both in stages.items() for place, kind in enumerate(("s", "CPU s"))}
print(json.dumps(named))
"""


def used(process: subprocess.Popen[str]) -> dict[str, float]:
    """Return the CPU seconds and the memory of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return {"cpu_seconds": seconds, "resident_bytes": int(fields[21]) * os.sysconf("SC_PAGE_SIZE")}


def started(*arguments: str) -> subprocess.Popen[str]:
    """Start `denn` with these arguments."""
    command = [sys.executable, "-m", "denn", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def predict(model: Path) -> dict[str, float]:
    """Time `denn predict` until its first output."""
    begun = time.monotonic()
    process = started("predict", str(model), "--quiet")
    process.stdin.write(f"{TEXT}\n")
    process.stdin.close()
    answer = json.loads(process.stdout.readline())
    found = {"seconds": time.monotonic() - begun, **used(process)}
    assert answer["labels"], answer
    process.wait()
    return {**found, "seconds_to_exit": time.monotonic() - begun}


def serve(model: Path) -> dict[str, float]:
    """Time `denn serve` until it is healthy, and measure its memory."""
    begun = time.monotonic()
    process = started("serve", str(model), "--port", "0", "--log", "none")
    address = re.search(r"http://\S+?/", process.stdout.readline())[0]
    try:
        while not answers(f"{address}health"):
            time.sleep(0.005)
        return {"seconds": time.monotonic() - begun, **used(process)}
    finally:
        process.terminate()
        process.wait()


def answers(address: str) -> bool:
    """Check whether a service returns 200."""
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return answer.status == 200
    except urllib.error.URLError:
        return False


def stages(model: Path) -> dict[str, float]:
    """Time the stages of a process until its first prediction."""
    command = [sys.executable, "-c", STAGES, str(model), str(time.monotonic()), TEXT]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ran.stdout)


def medians(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return the median of each figure, and the minimum and maximum of the seconds to the output."""
    found = {name: round(statistics.median(one[name] for one in rounds), 3) for name in rounds[0]}
    if "seconds" in found:
        times = [one["seconds"] for one in rounds]
        found |= {"least_seconds": round(min(times), 3), "most_seconds": round(max(times), 3)}
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    kinds: dict[str, Callable[[Path], dict[str, float]]] = {"predict": predict, "serve": serve, "stages": stages}
    load, times = round(os.getloadavg()[0], 2), []
    for _ in range(a.rounds + 1):
        times.append({name: measure(a.model) for name, measure in kinds.items()})
    found = {name: medians([one[name] for one in times[1:]]) for name in kinds}
    command = f"python -m denn_bench.studies.start_up {a.model.name} --rounds {a.rounds}"
    report({"command": command, "rounds": a.rounds, "load_before": load, **found, "commit": commit()}, a.out)


if __name__ == "__main__":
    main()

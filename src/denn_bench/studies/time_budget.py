r"""Whether `denn train --time-budget` is kept: requested and actual time, on an idle and a busy machine.

    python -m denn_bench.studies.time_budget DATA/reuters21578 --out results/time-budget-idle.json
    python -m denn_bench.studies.time_budget DATA/reuters21578 --busy 2 --out results/time-budget-busy.json

Trains on some documents with each budget, alone or with busy background processes. The times are those of the whole
command, including Python's start.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from denn.data import reuters21578
from denn_bench.studies.machine import report

BUDGETS = (30, 60, 300)  # seconds
COUNTING = "n = 0\nwhile True: n += 1"


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep the cores busy within the block."""
    running = [subprocess.Popen([sys.executable, "-c", COUNTING]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def train(corpus: Path, seconds: int, settings: Sequence[str]) -> dict[str, Any]:
    """Run `denn train` once and return its time and outcome."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model"
        command = [sys.executable, "-m", "denn", "train", str(corpus), "--out", str(out)]
        begun = time.monotonic()
        ended = subprocess.run([*command, "--time-budget", f"{seconds}s", *settings], capture_output=True, text=True)
        taken = time.monotonic() - begun
        if ended.returncode:
            return {"asked": seconds, "taken": round(taken, 1), "said": ended.stderr.splitlines()[-1]}
        card = json.loads((out / "bundle.json").read_text())
    said = next(line for line in ended.stderr.splitlines() if line.startswith(("effort ", "the time budget")))
    facts, metrics = card["training"], card["metrics"]
    return {
        "asked": seconds,
        "taken": round(taken, 1),
        "said": said,
        "steps": facts["steps"],
        "frozen": facts["frozen"],
        "documents": facts["documents_used"],
        "micro_f1": round(metrics["micro_f1"], 4),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of Reuters-21578")
    parser.add_argument("--documents", type=int, default=1300)
    parser.add_argument("--busy", type=int, default=0, help="background processes per core")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="parameter of the method")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    settings = [part for setting in a.set for part in ("--set", setting)]
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        documents = reuters21578.load(a.data).train[: a.documents]
        corpus.write_text("".join(json.dumps({"text": d.text, "labels": d.labels}) + "\n" for d in documents))
        for seconds in BUDGETS:
            with busy(a.busy * (os.cpu_count() or 1)):
                found.append(train(corpus, seconds, settings))
            print(json.dumps(found[-1]), flush=True)
    about = {"documents": a.documents, "settings": a.set, "busy_processes_a_core": a.busy, "seed": 0}
    report({**about, "trainings": found}, a.out)


if __name__ == "__main__":
    main()

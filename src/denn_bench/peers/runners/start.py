"""Run one peer on one corpus: `python -P start.py NAME --data DIR --out DIR …`, with the Python of its environment."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
import traceback
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

WARM_UP = 32  # texts scored before timing starts
SAMPLE = 256  # test texts for the speed of `usual_score`


def main() -> None:
    """Train, score and write the results, or the failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--started", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--cores", required=True)
    parser.add_argument("--variant", default="")
    asked = parser.parse_args()
    cores = sorted(map(int, asked.cores.split(",")))
    if sys.platform == "linux":
        os.sched_setaffinity(0, cores)
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    # Last, so that no file here hides a package of the environment.
    sys.path.append(str(Path(__file__).parents[1]))
    try:
        perform(asked, len(cores))
    except Exception as error:  # another package may raise anything; the row of this run names it
        first = (str(error).strip().splitlines() or ["no message"])[0]
        (asked.out / "failure.txt").write_text(f"{type(error).__name__}: {first}", encoding="utf-8")
        traceback.print_exc()
        sys.exit(1)


def perform(asked: argparse.Namespace, cores: int) -> None:
    """Train one peer, then score the validation and test splits."""
    import numpy as np

    folder = asked.out / "model"
    folder.mkdir()
    job = import_module("runners.contract").read_job(
        asked.data, seconds=asked.seconds, started=asked.started, seed=asked.seed, cores=cores, encoder=asked.encoder,
        folder=folder, variant=asked.variant,
    )  # fmt: skip
    trained = import_module(f"runners.{asked.peer}").train(job)
    about: dict[str, Any] = {
        "train_seconds": round(time.time() - asked.started, 2),
        "documents": trained.documents,
        "limit": trained.limit,
        "complete": trained.complete,
        "facts": trained.facts,
        "versions": {name: metadata.version(name) for name in trained.packages},
        "disk_bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
    }
    write(asked.out / "trained.json", about)
    usual = trained.usual_score or trained.score
    timed = job.test[:SAMPLE] if trained.usual_score else job.test
    usual(job.test[:WARM_UP])
    begun = time.time()
    test = usual(timed)
    about["texts_per_second"] = round(len(timed) / (time.time() - begun), 2)
    about["timed_texts"] = len(timed)
    if trained.usual_score:
        test = trained.score(job.test)
    arrays = {"test": test} | ({"own": trained.own(test, job.test)} if trained.own else {})
    arrays["valid"] = trained.score([document.text for document in job.valid])
    np.savez(asked.out / "scores.npz", **arrays)
    write(asked.out / "scored.json", about)


def end_with_parent(parent: int) -> None:
    """Kill this process and its children when its parent exits."""
    while os.getppid() == parent:
        time.sleep(2)
    os.killpg(0, signal.SIGKILL)


def write(path: Path, value: dict[str, Any]) -> None:
    """Write JSON atomically."""
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(value), encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    main()

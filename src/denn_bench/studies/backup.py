"""Backup, check and restore of an embedded datastore while another process adds documents: time and size.

    python -m denn_bench.studies.backup --work FOLDER --out results/backup.json

A store of 100,000 documents of 400 bytes and 384 dimensions, with a history of bulk adds and 1,000 changes. A process
adds documents one by one, first alone, then during the backup. The backup is checked, and restored after that process
has ended.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from denn.backup_checks import check
from denn.backups import back_up, restore
from denn.progress import Silent
from denn.stores.embedded.store import EmbeddedStore
from denn.types import Document
from denn_bench.studies.datastore import seconds
from denn_bench.studies.machine import report

DIMENSION, BULK, CHANGES = 384, 10_000, 1_000
TEXT = "word " * 80
ALONE = 5.0  # seconds that the writer runs without a backup


def fill(path: Path, size: int) -> None:
    """Create the store, with relabelled documents in its history."""
    random = torch.Generator().manual_seed(0)
    with EmbeddedStore.create(path, DIMENSION, index="exact") as store:
        for begin in range(0, size, BULK):
            rows = range(begin, min(size, begin + BULK))
            documents = [Document(f"{row} {TEXT}", (f"label {row % 50}",), f"id {row}") for row in rows]
            store.add(documents, torch.randn(len(rows), DIMENSION, generator=random))
        for row in range(CHANGES):
            store.relabel([f"id {row}"], add=["more"])


def write(path: str, stop: Any, times: Any) -> None:
    """Add documents one by one until told to stop, and report when each one was stored."""
    torch.set_num_threads(1)
    random, done = torch.Generator().manual_seed(1), []
    with EmbeddedStore.open(path, index="exact") as store:
        while not stop.is_set():
            vector = torch.randn(1, DIMENSION, generator=random)
            store.add([Document(TEXT, ("later",))], vector)
            done.append(time.time())
            if len(done) == 1:
                times.put("started")
    times.put(done)


def measure(folder: Path, size: int) -> dict[str, Any]:
    """Back up, check and restore a store while a process adds documents."""
    path, target = folder / "store.sqlite", folder / "backup"
    fill(path, size)
    spawn = multiprocessing.get_context("spawn")
    stop, times = spawn.Event(), spawn.Queue()
    writer = spawn.Process(target=write, args=(str(path), stop, times))
    writer.start()
    times.get()
    first = time.time()
    time.sleep(ALONE)
    begun = time.time()
    made = back_up(str(path), target, Silent())
    ended = time.time()
    stop.set()
    done = times.get()
    writer.join()
    pairs = zip([first, *done], done, strict=False)
    longest = max(after - before for before, after in pairs if begun < after < ended)
    found: dict[str, Any] = {
        "documents": made.documents,
        "added_before": sum(one < begun for one in done),
        "added_meanwhile": sum(begun <= one <= ended for one in done),
        "store_mb": path.stat().st_size / 1e6,
        "backup_mb": sum(file.stat().st_size for file in target.iterdir()) / 1e6,
        "backup_s": ended - begun,
        "adds_per_s_alone": sum(first < one < begun for one in done) / (begun - first),
        "adds_per_s_meanwhile": sum(begun < one < ended for one in done) / (ended - begun),
        "longest_add_meanwhile_s": longest,
    }
    problems: list[str] = []
    found["check_s"] = seconds(lambda: problems.extend(check(str(target), Silent()).problems))
    found["restore_s"] = seconds(lambda: restore(str(path), target, Silent()))
    with EmbeddedStore.open(path, read_only=True, index="exact") as store:
        assert not problems and len(store) == made.documents and store.history(1)[0].number == made.change
    return found


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--work", type=Path, required=True, help="folder for the store and its backup")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    folder = a.work / "backup-study"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found = {name: round(value, 3) for name, value in measure(folder, a.documents).items()}
    shutil.rmtree(folder)
    report({**found, "load_average": os.getloadavg()}, a.out)


if __name__ == "__main__":
    main()

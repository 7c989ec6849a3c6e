"""Runs of peers: plan them, perform them one at a time, write one JSON line each, and resume."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from denn.encoders.weights import locate
from denn.errors import DataError, DennError
from denn.types import Corpus, Document
from denn_bench.machine import commit, machine
from denn_bench.peers.catalogue import PEERS, Peer
from denn_bench.peers.environments import packages_of, python_of
from denn_bench.peers.scoring import measure
from denn_bench.peers.watching import watch

START = Path(__file__).parent / "runners" / "start.py"
ENCODER = "minilm"
CPU = "cpu"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One peer on one corpus, or a variation of it, with one time limit and one seed, on one machine."""

    peer: str
    corpus: str
    minutes: float
    seed: int
    device: str = CPU  # or the name of the GPU
    processor: str = ""  # name of the machine's CPU; times on different CPUs are not comparable
    variation: str = ""  # such as documents=100; empty for the corpus itself

    @property
    def name(self) -> str:
        """Return its name for messages."""
        varied = f" with {self.variation}" if self.variation else ""
        return f"{self.peer} on {self.corpus}{varied}, {self.minutes:g} min, seed {self.seed}"


def plan(
    peers: Iterable[str],
    corpora: Iterable[str],
    minutes: Iterable[float],
    seeds: Sequence[int],
    device: str = CPU,
    variations: Sequence[str] = ("",),
) -> list[Run]:
    """List the runs on this machine: corpus by corpus, short ones first."""
    peers, limits, cpu = list(peers), sorted(minutes), processor(machine())
    return [
        Run(peer, corpus, limit, seed, device, cpu, variation)
        for corpus in corpora
        for variation in variations
        for seed in seeds
        for limit in limits
        for peer in peers
    ]


def read(path: Path) -> list[Row]:
    """Read the rows of finished runs; the last row of a run counts."""
    rows: dict[Run, Row] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else (), 1):
        try:
            row = json.loads(line)
            rows[run_of(row)] = row
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}, line {number}: not a run of a peer ({error!r}). Remove the line.") from error
    return list(rows.values())


def run_of(row: Mapping[str, Any]) -> Run:
    """Return the run that a row is about."""
    device, variation = row.get("device", CPU), row.get("variation", "")  # older rows have none
    of_machine = device, processor(row["machine"])
    return Run(row["peer"], row["corpus"], row["minutes"], row["seed"], *of_machine, variation)


def processor(machine: Mapping[str, Any]) -> str:
    """Return the name of a machine's CPU, with its instruction sets, since several CPUs share a name."""
    instructions = machine.get("instructions", ())  # older rows have none
    return f"{machine['cpu']} ({', '.join(instructions)})" if instructions else str(machine["cpu"])


def settled(run: Run, rows: Iterable[Row], checksum: str, retry: bool = False, busy: float = 1.0) -> Row | None:
    """Return the row that makes a run unnecessary: its own, or one with another time limit that also holds for it.

    With `retry`, failures do not count. Neither do runs during which other processes took more than the share `busy`
    of the cores.
    """
    for row in rows:
        if row.get("others", 0.0) > busy or (retry and row["failure"]):
            continue
        if replace(run_of(row), minutes=run.minutes) != run or row["documents_sha256"] != checksum:
            continue
        if stands_for(row, run.minutes):
            return row
    return None


def stands_for(row: Row, minutes: float) -> bool:
    """Check whether a row holds for a time limit: its own, or one within which its training was complete."""
    ended = bool(row.get("complete")) and not row["failure"] and row["train_seconds"] <= 60 * minutes
    return ended or bool(row["minutes"] == minutes)


def append(path: Path, row: Row) -> None:
    """Append a row to the file, durably."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def write_documents(corpus: Corpus, folder: Path) -> None:
    """Write the documents for the runners; the test split has no labels."""
    folder.mkdir(parents=True)
    (folder / "labels.json").write_text(json.dumps(corpus.labels.names), encoding="utf-8")
    parts: dict[str, Sequence[Document]] = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
    for part, documents in parts.items():
        with (folder / f"{part}.jsonl").open("w", encoding="utf-8") as file:
            for document in documents:
                row: dict[str, Any] = {"text": document.text}
                if part != "test":
                    row["labels"] = document.labels
                file.write(json.dumps(row) + "\n")


def perform(
    run: Run,
    corpus: Corpus,
    data: Path,
    checksum: str,
    cores: Sequence[int],
    work: Path,
    packages: Path | None = None,
) -> Row:
    """Run a peer in its environment and return its row; a failure is a row too.

    With `packages`, it runs with this Python, and additional packages come from its folder there.
    """
    peer = PEERS[run.peer]
    options = ["--device cuda"] * (run.device != CPU) + [f"--packages {packages}"] * (packages is not None)
    options += [f"--vary {run.variation}"] * bool(run.variation)
    row: Row = {
        **asdict(run),
        "title": peer.title,
        "failure": None,
        "documents_sha256": checksum,
        "cores": len(cores),
        "machine": machine(),
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "command": f"denn bench peers run --peers {run.peer} --corpora {run.corpus} --minutes {run.minutes:g} "
        f"--seeds {run.seed} --cores {','.join(map(str, cores))}{''.join(f' {option}' for option in options)}",
    }
    del row["processor"]  # `machine` has it
    work.mkdir(parents=True, exist_ok=True)
    out = Path(tempfile.mkdtemp(dir=work, prefix=f"{run.peer}-{run.corpus}-"))
    try:
        python, path = _python(peer, packages)
        started = time.time()
        command = [
            str(python), "-P", str(START), peer.runner, "--data", str(data), "--out", str(out),
            "--encoder", str(locate(ENCODER)), "--seconds", str(60 * run.minutes), "--started", str(started),
            "--seed", str(run.seed), "--cores", ",".join(map(str, cores)), "--variant", peer.variant,
        ]  # fmt: skip
        outcome = watch(command, _environment(len(cores), run.device, path), out, 60 * run.minutes, cores)
        row |= {"memory_bytes": outcome.peak_bytes, "failure": outcome.failure, "others": outcome.others}
        for name in ("trained.json", "scored.json"):
            row |= json.loads((out / name).read_text(encoding="utf-8")) if (out / name).exists() else {}
        if not outcome.failure:
            row |= measure(out / "scores.npz", corpus)
    except DennError as error:
        row["failure"] = f"{type(error).__name__}: {error}"
    _tidy(out, row["failure"])
    return row


def _tidy(out: Path, failure: str | None) -> None:
    """Remove the files of a run; keep its log after a failure."""
    if not failure:
        shutil.rmtree(out)
        return
    for entry in out.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.suffix != ".txt":
            entry.unlink()


def _python(peer: Peer, packages: Path | None) -> tuple[Path, str]:
    """Return the Python for a peer, and its PYTHONPATH."""
    if not peer.packages or packages is None:
        own = "" if peer.packages else os.environ.get("PYTHONPATH", "")
        return python_of(peer.runner, peer.packages, peer.carriers), own
    return Path(sys.executable), str(packages_of(peer.runner, packages))


def _environment(cores: int, device: str, path: str) -> dict[str, str]:
    """Return the environment variables of a runner: one thread per core, no model hub, no GPU unless requested."""
    return {
        **os.environ,
        **({"CUDA_VISIBLE_DEVICES": ""} if device == CPU else {}),
        "PYTHONPATH": path,  # an empty value means none
        **dict.fromkeys(THREADS, str(cores)),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
    }

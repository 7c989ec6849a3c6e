r"""Training in one process and in two that share each batch: losses, scores and speed.

    python -m denn_bench.studies.processes CORPUS_FOLDER --encoder minilm --out results/processes-h200.json

Runs `denn train` on some documents, alone and under torchrun. Without dropout, in float32, both take the same steps up
to rounding; with dropout, in the usual precision, they draw different masks. Two processes on one GPU exchange
gradients over gloo, because NCCL needs a GPU for each process; a group of one process shows that the calls to NCCL
work.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from denn.data.corpus import read_corpus
from denn.encoders.weights import locate
from denn.training.processes import Team
from denn.training.share import Share, summed
from denn.types import Document
from denn_bench.machine import machine

PROCESSES = 2
LINE = re.compile(r"step (\d+): loss ([\d.]+), micro_f1 ([\d.]+)")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]


def train(files: Path, encoder: str, out: Path, settings: dict[str, object], processes: int) -> dict[str, Any]:
    """Train once and return the curve of (step, loss, micro-F1), the final score and the time."""
    given = {"encoder": encoder, "combination": "average", "witnesses": '["classifier", "neighbours"]', **settings}
    starter = [sys.executable] if processes == 1 else [*TORCHRUN, str(processes)]
    command = [*starter, "-m", "denn", "train", str(files / "train.jsonl"), "--valid", str(files / "valid.jsonl")]
    command += ["--allow-poor", "--out", str(out)]
    begun = time.monotonic()
    ran = subprocess.run(
        [*command, *(part for name, value in given.items() for part in ("--set", f"{name}={value}"))],
        stderr=subprocess.PIPE,
        text=True,
    )
    seconds = time.monotonic() - begun
    if ran.returncode:
        raise SystemExit(ran.stderr)
    card = json.loads((out / "bundle.json").read_text())
    facts = card["training"]
    return {
        "processes": processes,
        "command_seconds": round(seconds, 1),
        "steps": facts["steps"],
        "milliseconds_a_step": round(1000 * facts["training_seconds"] / facts["steps"], 1),
        "micro_f1": round(card["metrics"]["micro_f1"], 4),
        "curve": [[int(step), float(loss), float(score)] for step, loss, score in LINE.findall(ran.stderr)],
    }


def compare(files: Path, encoder: str, settings: dict[str, object]) -> dict[str, Any]:
    """Train in one process and in two, and return both with the largest relative difference of their losses."""
    with tempfile.TemporaryDirectory() as folder:
        one, two = (train(files, encoder, Path(folder) / f"{n}", settings, n) for n in (1, PROCESSES))
    if [entry[0] for entry in one["curve"]] != [entry[0] for entry in two["curve"]]:
        raise SystemExit(f"The runs validated at different steps: {one['curve']}, {two['curve']}.")
    difference = max(abs(b[1] - a[1]) / a[1] for a, b in zip(one["curve"], two["curve"], strict=True))
    return {"settings": settings, "largest_relative_difference": round(difference, 5), "runs": [one, two]}


def without_dropout(encoder: str, folder: Path) -> str:
    """Copy an encoder and turn its dropout off."""
    shutil.copytree(locate(encoder), folder)
    for file in folder.rglob("config.json"):
        content = json.loads(file.read_text())
        off = {name: 0.0 for name in content if name.endswith("dropout_prob")} if isinstance(content, dict) else {}
        if off:
            file.write_text(json.dumps(content | off))
    return str(folder)


def write(path: Path, documents: list[Document]) -> None:
    """Write documents as JSON lines."""
    rows = ({"id": document.id, "text": document.text, "labels": document.labels} for document in documents)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def check_nccl() -> None:
    """Exchange tensors over NCCL in a group of one process, started by torchrun, and print what came back."""
    team, device = Team(), torch.device("cuda", 0)
    torch.cuda.set_device(device)
    group = team.channel(device)
    values = torch.arange(4.0, device=device, requires_grad=True)
    dist.broadcast(values.detach(), src=0, group=group)
    gathered = Share(0, 4, 8, group).gather(values)  # as if another process had the other half
    (gathered * torch.arange(8.0, device=device)).sum().backward()
    assert values.grad is not None
    found = {"backend": dist.get_backend(group), "sum": float(summed(values.detach().sum(), group))}
    print(json.dumps(found | {"gathered": gathered.tolist(), "gradient": values.grad.tolist()}))
    dist.destroy_process_group()


def main() -> None:
    """Run both comparisons, print them and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, nargs="?", help="folder with train.jsonl and valid.jsonl, also compressed")
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--documents", type=int, default=4000)
    parser.add_argument("--valid", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--every", type=int, default=20, help="steps between validations")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check-nccl", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.check_nccl:
        return check_nccl()
    given = {part: next(iter(args.corpus.glob(f"{part}.jsonl*"))) for part in ("train", "valid")}
    corpus = read_corpus(given["train"], given["valid"])
    common: dict[str, object] = {"epochs": args.epochs, "batch_size": args.batch, "evaluate_every": args.every}
    common |= {"patience": 0, "device": args.device}
    found: dict[str, Any] = {"corpus": args.corpus.name, "documents": args.documents, "encoder": args.encoder}
    with tempfile.TemporaryDirectory() as name:
        files = Path(name)
        write(files / "train.jsonl", corpus.train[: args.documents])
        write(files / "valid.jsonl", corpus.valid[: args.valid])
        bare = without_dropout(args.encoder, files / "encoder")
        found["same_steps"] = compare(files, bare, {**common, "dropout": 0.0, "precision": "float32"})
        found["as_usual"] = compare(files, args.encoder, common)
    if torch.cuda.is_available():
        command = [*TORCHRUN, "1", "-m", "denn_bench.studies.processes", "--check-nccl"]
        ran = subprocess.run(command, capture_output=True, text=True)
        found["nccl"] = json.loads(ran.stdout.splitlines()[-1]) if ran.returncode == 0 else ran.stderr[-2000:]
    found["machine"] = {**machine(), "torch": torch.__version__, "date": datetime.now(UTC).date().isoformat()}
    text = json.dumps(found)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()

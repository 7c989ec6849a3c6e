"""Kill -9 at random moments of training: the result is that of an undisturbed run, and no model is ever damaged."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import denn

KILLS = int(os.environ.get("DENN_KILLS", "12"))


def run(worker: subprocess.Popen[str], folder: Path, delay: float | None = None) -> bool:
    """Let a child train a model, kill it `delay` seconds after its start, and return whether it finished."""
    print(folder, file=worker.stdin, flush=True)
    pid = int(worker.stdout.readline().removeprefix("started "))
    killer = None if delay is None else threading.Timer(delay, kill, (pid,))
    if killer:
        killer.start()
    code = int(worker.stdout.readline().removeprefix("ended "))
    if killer:
        killer.cancel()
    assert code in (0, -signal.SIGKILL), f"the child ended with {code}"
    return code == 0


def kill(pid: int) -> None:
    """Kill a child, which may have just ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def bits(folder: Path) -> tuple[object, ...]:
    """Load a model, which checks every digest, and return what must be equal in every run."""
    with denn.load(folder) as model:
        assert len(model.method.store) == 30
        return model.card.digests, model.card.thresholds, model.predict(["goal match", "violin chord"])


def write(path: Path, documents: list[denn.Document]) -> Path:
    rows = ({"id": document.id, "text": document.text, "labels": document.labels} for document in documents)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.slow
def test_killed_many_times_while_training(tiny_corpus, tiny_settings, tiny_model, tmp_path):
    train, valid = (
        write(tmp_path / f"{name}.jsonl", documents)
        for name, documents in (("train", tiny_corpus.train[:30]), ("valid", tiny_corpus.valid[:8]))
    )
    settings = {**tiny_settings, "epochs": 4, "batch_size": 10, "checkpoint_seconds": 0}
    command = [
        sys.executable,
        Path(__file__).with_name("train_worker.py"),
        train,
        valid,
        tiny_model,
        json.dumps(settings),
    ]
    whole, model, chance = tmp_path / "whole", tmp_path / "model", random.Random(0)
    kills = finished = resumable = writing = 0
    older = False  # whether a model is there to be replaced
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert run(worker, whole)
        begun = time.monotonic()
        assert run(worker, whole)
        duration = time.monotonic() - begun
        expected = bits(whole)
        while (more := kills < KILLS or resumable < KILLS / 5 or not writing) or not finished:
            assert kills < 4 * KILLS, f"kills reach the loop {resumable} times, the writing of the bundle {writing}"
            latest = (0.9 + kills / KILLS) * duration  # the machine may be busier by now
            if run(worker, model, chance.uniform(0, latest) if more else None):
                assert {path.name for path in tmp_path.iterdir() if "model" in path.name} == {"model"}
                assert bits(model) == expected
                finished += 1
                older = finished % 2 == 1
                if not older:
                    shutil.rmtree(model)
            else:
                kills += 1
                resumable += (tmp_path / "model.training" / "last.safetensors").exists()
                writing += (tmp_path / "model.training" / "bundle").exists()
                if older or model.exists():
                    assert bits(model) == expected
        worker.stdin.close()

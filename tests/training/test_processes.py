"""Training in several processes: the steps of one process, one writer, and resuming after either one is killed."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

import denn
from denn.training.processes import _same_kind
from denn.training.share import Share

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("DENN_KILLS", "2"))
LOST = "Another process of this training run has ended"
# Threads of a process group that are left when Python exits may abort the process.
WRITES_THREADS_AT_EXIT = """
import atexit, os
from pathlib import Path

@atexit.register
def write():
    if "RANK" in os.environ:
        names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        Path(f"{os.environ['DENN_THREADS']}-{os.environ['RANK']}").write_text("".join(names))
"""


class Processes:
    """Starts commands that train together, each in a fork of one process that has imported torch."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.logs, self.model = folder / "logs", model
        self.logs.mkdir()
        self._begin()

    def _begin(self) -> None:
        command = [sys.executable, Path(__file__).with_name("processes_worker.py"), self.model]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.worker = subprocess.Popen(command, **pipes, text=True, start_new_session=True)
        self.are_running = False

    def close(self) -> None:
        """End the process that starts others."""
        with self.worker:
            self.worker.stdin.close()
        assert self.worker.returncode == 0

    def end_what_a_failed_test_left(self) -> None:
        """Kill processes that still run, with the one that started them, and start that one again."""
        if self.are_running:
            os.killpg(self.worker.pid, signal.SIGKILL)
            with self.worker:
                self._begin()

    def start(self, *each: list[object]) -> list[int]:
        """Start one process for each list of arguments; return their ids."""
        for rank in range(len(each)):
            for name in ("out", "err"):
                (self.logs / f"{rank}.{name}").write_text("")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        print(json.dumps([port, self.logs, each], default=str), file=self.worker.stdin, flush=True)
        self.are_running = True
        return json.loads(self.worker.stdout.readline())

    def wait(self) -> list[int]:
        """Return the exit codes of the processes."""
        codes = json.loads(self.worker.stdout.readline())
        self.are_running = False
        return codes

    def run(self, *each: list[object]) -> list[int]:
        """Start processes, wait for them, and return their exit codes."""
        self.start(*each)
        return self.wait()

    def wait_for(self, *sentences: str) -> None:
        """Wait until the first process has written one of these."""
        end = time.monotonic() + 60
        while not any(sentence in self.said(0) for sentence in sentences):
            assert time.monotonic() < end, f"not one of {sentences} in: {self.said(0)}"
            time.sleep(0.01)

    def said(self, rank: int) -> str:
        """Return what a process wrote."""
        return "".join((self.logs / f"{rank}.{name}").read_text() for name in ("out", "err"))


@pytest.fixture(scope="module")
def files(tmp_path_factory, tiny_corpus):
    folder = tmp_path_factory.mktemp("processes")
    for name, documents in (("train", tiny_corpus.train), ("valid", tiny_corpus.valid[:10])):
        rows = ({"id": document.id, "text": document.text, "labels": document.labels} for document in documents)
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def all_processes(files, tiny_model):
    made = Processes(files, tiny_model)
    yield made
    made.close()


@pytest.fixture
def processes(all_processes):
    yield all_processes
    all_processes.end_what_a_failed_test_left()


@pytest.fixture
def arguments(files, tiny_settings):
    """Arguments of a training run of many short steps."""
    settings = {**tiny_settings, "epochs": 12, "patience": 0, "evaluate_every": 10}
    settings |= {"witnesses": '["classifier", "neighbours"]', "combination": "average"}
    given = (part for name, value in settings.items() for part in ("--set", f"{name}={value}"))
    return ["train", files / "train.jsonl", "--valid", files / "valid.jsonl", "--allow-poor", *given]


def test_shares_cover_a_batch():
    for total in (1, 2, 3, 7, 32):
        for size in (1, 2, 3, 5):
            shares = [Share.of(total, rank, size) for rank in range(size)]
            rows = [row for share in shares for row in range(share.start, share.start + share.count)]
            assert rows == list(range(total))
            assert sum(share.weight for share in shares) == pytest.approx(1)
            assert total < size or max(s.count for s in shares) - min(s.count for s in shares) <= 1


def test_two_processes_compute_the_loss_and_gradients_of_one(processes, files, tiny_encoder):
    out = files / "compared.json"
    assert processes.run(*2 * [["compare", files / "train.jsonl", tiny_encoder, out]]) == [0, 0], processes.said(0)
    found = json.loads(out.read_text())
    assert found["threads_left"] == []
    compared = found["compared"]
    assert len(compared) == 9
    for name, (alone, together) in compared.items():
        for one, both in zip(alone, together, strict=True):
            scale = max(np.abs(one).max(), 1e-3)
            np.testing.assert_allclose(both, one, rtol=0, atol=1e-5 * scale, err_msg=name)


def bits(folder: Path) -> tuple[object, ...]:
    """Load a model, which checks every digest, and return what must be equal in every run."""
    with denn.load(folder) as model:
        return model.card.digests, model.card.thresholds, model.card.training["history"][-1]["micro_f1"]


def test_a_run_resumes_after_a_kill_of_either_process(processes, arguments, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "model"
    training, chance = tmp_path / "model.training", random.Random(0)
    elsewhere = ["train", "missing.jsonl", "--out", tmp_path / "nowhere"]  # the others read and write no files
    assert processes.run([*arguments, "--out", whole], elsewhere) == [0, 0], processes.said(0)
    assert "2 processes share each batch of 16 documents" in processes.said(0)
    assert processes.said(1) == ""
    expected, kills = bits(whole), 0
    arguments += ["--out", out, "--set"]
    while kills < KILLS:
        killed = (kills + 1) % 2
        often = f"checkpoint_seconds={1000 * killed}"  # if another process is lost, the first one writes a checkpoint
        pids = processes.start([*arguments, often], elsewhere)
        processes.wait_for("step 10:", "resuming")
        time.sleep(chance.uniform(0, 0.05))
        with suppress(ProcessLookupError):
            os.kill(pids[killed], signal.SIGKILL)
        codes = processes.wait()
        if out.exists():  # it ended before the kill
            assert bits(out) == expected
            shutil.rmtree(out)
            continue
        kills += 1
        assert codes[killed] == -signal.SIGKILL and codes[1 - killed] == 2, processes.said(1 - killed)
        assert LOST in processes.said(1 - killed)
        assert (training / "last.safetensors").exists()
    assert processes.run([*arguments, "checkpoint_seconds=0"]) == [2]
    assert f"{training} contains an unfinished training run with a process count of 2, got 1." in processes.said(0)
    assert processes.run([*arguments, "checkpoint_seconds=0"], elsewhere) == [0, 0], processes.said(0)
    assert "resuming at step" in processes.said(0)
    assert bits(out) == expected
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "model"}


def test_a_run_whose_other_process_is_stopped_can_be_interrupted(processes, arguments, tmp_path):
    """As if another host had lost its network: nothing tells the first process."""
    given = [*arguments, "--set", "epochs=1000000", "--set", "checkpoint_seconds=1000", "--out", tmp_path / "model"]
    pids = processes.start(given, given)
    processes.wait_for("step 10:")
    os.kill(pids[1], signal.SIGSTOP)
    time.sleep(0.5)
    os.kill(pids[0], signal.SIGINT)
    processes.wait_for("interrupted; run the same command again to resume")
    assert (tmp_path / "model.training" / "last.safetensors").exists()
    os.kill(pids[1], signal.SIGKILL)
    assert processes.wait() == [130, -signal.SIGKILL]


def test_the_time_budget_holds(processes, arguments, tmp_path):
    given = [*arguments, "--time-budget", "2s", "--set", "epochs=1000000", "--out", tmp_path / "model"]  # else hours
    codes = processes.run(given, given)
    if "is too short" in processes.said(0):
        pytest.skip("the machine is too busy to train within two seconds")
    assert codes == [0, 0], processes.said(0)
    with denn.load(tmp_path / "model") as model:
        assert model.card.training["steps"] < 1_000_000  # none if the machine was busy before the first one


@pytest.mark.parametrize(
    ("size", "setting", "sentence"),
    [
        (3, "batch_size=16", "Got 3 processes and batch_size = 16, which is the size of the whole batch and must be"),
        (2, "device=cuda:0", "Got 2 processes and device = 'cuda:0', but each process chooses its own GPU."),
    ],
)
def test_unsuitable_processes_are_refused_in_one_sentence(processes, arguments, tmp_path, size, setting, sentence):
    given = [*arguments, "--set", setting, "--out", tmp_path / "model"]
    assert processes.run(*size * [given]) == [2, *(size - 1) * [0]]
    assert f"denn: {sentence}" in processes.said(0)
    assert all(processes.said(rank) == "" for rank in range(1, size))
    assert list(tmp_path.iterdir()) == []


def test_a_method_that_cannot_share_is_refused(processes, arguments, tmp_path):
    given = ["train", *arguments[1:5], "--method", "scl", "--set", "device=cpu", "--set", "batch_size=16"]
    encoder = next(part for part in arguments if str(part).startswith("encoder="))
    given += ["--set", encoder, "--out", tmp_path / "model"]
    assert processes.run(given, given) == [2, 0]
    assert "Got 2 processes, but this method trains in one." in processes.said(0)


def test_torchrun_starts_the_processes_and_restarts_them(arguments, tmp_path):
    """In `make test` only the start; `make soak` also kills processes, which torchrun starts again."""
    kills, chance, out = KILLS // 10, random.Random(0), tmp_path / "model"
    checkpoint = tmp_path / "model.training" / "last.safetensors"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", str(kills)]
    command += ["-m", "denn", *map(str, arguments), "--set", f"epochs={1 + 100 * kills}", "--out", str(out)]
    log = tmp_path / "log"
    (tmp_path / "sitecustomize.py").write_text(WRITES_THREADS_AT_EXIT)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "DENN_THREADS": str(tmp_path / "threads")}
    command += ["--set", "checkpoint_seconds=0"]
    with log.open("w") as said, subprocess.Popen(command, stderr=said, env=environment) as agent:
        for _ in range(kills):
            before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
            while not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.5))
            children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
            os.kill(int(chance.choice(children)), signal.SIGKILL)
            time.sleep(2)  # torchrun needs a moment to notice
        assert agent.wait() == 0, log.read_text()
    assert log.read_text().count("The model is in") == 1
    assert log.read_text().count("resuming at step") == kills
    threads = {name for rank in "01" for name in (tmp_path / f"threads-{rank}").read_text().split()}
    assert "python" in threads and not {name for name in threads if "gloo" in name}, threads
    denn.load(out).close()


def test_other_processes_leave_what_was_not_on_a_gpu_in_the_cpus_memory():
    kept = torch.arange(3).untyped_storage()
    assert _same_kind(torch.device("cuda", 1))(kept, "cpu") is kept
    assert _same_kind(torch.device("cpu"))(kept, "cpu").device.type == "cpu"

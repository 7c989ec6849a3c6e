"""Systems without POSIX: what only POSIX has is hidden from every process, and denn works.

This stands in for Windows, where nothing was tried; on macOS most of the hidden names exist.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.slow

# Python imports a module of this name when it starts, in child processes too.
HIDE = """
import os, signal, subprocess, sys, types, warnings
from importlib.abc import MetaPathFinder

subprocess.signal = types.SimpleNamespace(**vars(signal))  # Python's own way to end a process on this system

MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "uvloop"}
NAMES = "fork forkpty sched_getaffinity sched_setaffinity nice sysconf posix_fallocate killpg getpgid setsid getuid"
SIGNALS = "SIGKILL SIGHUP SIGALRM SIGXCPU SIGUSR1 SIGUSR2 SIGCHLD SIGQUIT SIGPIPE"

class Hide(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
for name in MODULES:
    sys.modules.pop(name, None)
for name in NAMES.split():
    vars(os).pop(name, None)
for name in SIGNALS.split():
    vars(signal).pop(name, None)
warnings.filterwarnings("ignore", message="only soft file lock")  # on Windows there is a real one
"""

WORK = """
import json, os, sys
from pathlib import Path
import denn

assert not hasattr(os, "sysconf")
encoder, train, out = sys.argv[1:]
settings = {"epochs": 2, "trained_layers": 1, "device": "cpu", "precision": "float32", "head_learning_rate": 0.05}
denn.train(denn.read_corpus(train), out=out, encoder=encoder, allow_poor=True, **settings).close()
with denn.load(out) as model:
    model.add([denn.Document("goal match referee", ("brand new",), "late")], source="me")
    print(json.dumps(model.predict(["goal match referee"])[0].labels))
    model.remove(["late"])
    assert len(model.store.history()) == 3
denn.refit(out, force=True)
"""


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(HIDE)
    paths = [str(tmp_path / "hide"), str(Path(__file__).parents[1] / "src")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def test_a_model_is_trained_used_taught_and_refitted(environment, tiny_encoder, tiny_corpus, tmp_path):
    pandas = pytest.importorskip("pandas")
    rows = [{"text": document.text, "labels": list(document.labels)} for document in tiny_corpus.train]
    pandas.DataFrame(rows).to_parquet(tmp_path / "train.parquet")
    command = [sys.executable, "-c", WORK, tiny_encoder, tmp_path / "train.parquet", tmp_path / "model"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "brand new" in json.loads(done.stdout)
    assert "this system cannot limit memory for reading Parquet" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"hide", "train.parquet", "model"}, "a lock was left"


def test_the_service_starts_learns_and_refits(environment, tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    command = [sys.executable, "-m", "denn", "serve", str(folder), "--port", "0", "--teach"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            greeting = process.stdout.readline()
            found = re.search(r"at (http://\S+?)/(?:#key=(\S+))?(?:,|$)", greeting.strip())
            assert found, greeting + (tmp_path / "log").read_text()
            headers = {"Authorization": f"Bearer {found[2]}"} if found[2] else {}
            with httpx.Client(base_url=found[1], headers=headers, timeout=60) as client:
                assert client.get("/health").status_code == 200
                answer = client.post("/v1/predict", json={"text": "goal match referee"})
                assert answer.json()["labels"] == ["sport"], answer.text
                assert client.post("/v1/refit", json={"force": True}).status_code == 202
                while (state := client.get("/v1/refit").json()["state"]) == "running":
                    time.sleep(0.1)
                assert state == "done", (tmp_path / "log").read_text()
        finally:
            process.kill()

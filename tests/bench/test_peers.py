"""Peers: a runner from documents to a row, resuming, failures, and the table."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from denn.errors import ConfigError, DataError
from denn_bench.peers import environments, runs, watching
from denn_bench.peers.catalogue import PEERS, Peer
from denn_bench.peers.command import _chosen, _numbers
from denn_bench.peers.runners import contract, svm
from denn_bench.peers.runs import Run, append, perform, plan, read, settled, write_documents
from denn_bench.peers.scoring import candidates, measure
from denn_bench.peers.table import fill, machines, overview, render
from denn_bench.run import digest

CORES = sorted(os.sched_getaffinity(0))[:1]


@pytest.fixture
def data(tmp_path, tiny_corpus):
    write_documents(tiny_corpus, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def own_runner(tmp_path, monkeypatch):
    """Write runners that are peers only in this test."""
    folder = tmp_path / "runners"
    folder.mkdir()
    for name in ("__init__.py", "contract.py", "start.py"):
        (folder / name).write_text((Path(runs.START).parent / name).read_text())
    monkeypatch.setattr(runs, "START", folder / "start.py")
    monkeypatch.setattr(Peer, "_constant", lambda self, name: ())
    monkeypatch.setattr(runs, "locate", lambda name: tmp_path)
    monkeypatch.setattr(watching, "INTERVAL", 0.05)

    def write(body):
        (folder / "mine.py").write_text(f"from .contract import *\ndef train(job):\n    {body}\n")
        monkeypatch.setitem(PEERS, "mine", Peer("Mine", "mine"))
        return Run("mine", "tiny", 1, 0)

    return write


def row_of(run, **values):
    made = {
        "failure": None, "complete": False, "documents_sha256": "x", "train_seconds": 5.0, "texts_per_second": 100.0,
        "memory_bytes": 3 << 20, "disk_bytes": 2 << 20, "micro_f1": 0.5, "macro_f1": 0.25, "cores": 2,
        "others": 0.125, "machine": {"cpu": run.processor}, "date": "2026-11-17", "title": "t",
    }  # fmt: skip
    key = {"peer": run.peer, "corpus": run.corpus, "minutes": run.minutes, "seed": run.seed, "device": run.device}
    return {**key, **made, **values}


@pytest.mark.slow
def test_the_svm_from_documents_to_a_row(tmp_path, data, tiny_corpus, monkeypatch):
    monkeypatch.setattr(runs, "locate", lambda name: tmp_path)
    row = perform(Run("svm", "tiny", 1, 0), tiny_corpus, data, digest(tiny_corpus), CORES, tmp_path / "work")
    assert row["failure"] is None
    assert row["micro_f1"] > 0.8 and row["own"]["micro_f1"] > 0.5  # words decide this corpus
    assert (row["documents"], row["complete"], row["cores"], row["device"]) == (60, True, 1, "cpu")
    assert 0 < row["train_seconds"] < 70 and row["texts_per_second"] > 0
    assert 0 <= row["others"] <= 1
    assert row["memory_bytes"] > 30 << 20 and row["disk_bytes"] > 1000
    assert row["versions"].keys() == {"scikit-learn"}
    assert not any((tmp_path / "work").iterdir())  # nothing is left of the successful run
    assert json.loads(json.dumps(row)) == row


@pytest.mark.slow
def test_the_svm_keeps_many_labels_apart(tmp_path):
    names = tuple(f"word{number}" for number in range(300))
    documents = [contract.Document(f"{name} {name}", (column,)) for column, name in enumerate(names)]
    job = contract.Job(names, documents, [], [], 60, time.time(), 0, 1, tmp_path, tmp_path)
    scores = svm.train(job).score([document.text for document in documents])
    assert scores.argmax(1).tolist() == list(range(300))


@pytest.mark.parametrize(
    ("seconds", "each", "overhead", "portions"),
    [
        (1000, 0.001, 1.0, [64, 256, 680]),  # time for all
        (100, 0.1, 0.0, [64, 256, 544]),  # 68 s are left after 320; 80 % of them for the last portion
        (10, 0.1, 2.0, [64, 9]),  # the first portion took 8.4 of 10 s
        (5, 0.1, 0.0, [64]),  # even the first took too long
    ],
)
def test_documents_are_added_in_growing_portions_while_time_lasts(
    monkeypatch, tmp_path, seconds, each, overhead, portions
):
    now, sizes = [0.0], []
    monkeypatch.setattr(contract.time, "time", lambda: now[0])
    documents = [contract.Document(str(number), ()) for number in range(1000)]
    job = contract.Job((), documents, [], [], seconds, 0.0, 0, 1, tmp_path, tmp_path)
    added = []

    def add(some):
        now[0] += overhead + each * len(some)
        sizes.append(len(some))
        added.extend(some)

    assert contract.add_in_portions(job, add) == sum(portions) == len(set(added))
    assert sizes == portions


def test_runners_see_no_test_labels(data, tiny_corpus):
    rows = [json.loads(line) for line in (data / "test.jsonl").read_text().splitlines()]
    assert [row for row in rows if "labels" in row] == [] and len(rows) == len(tiny_corpus.test)
    assert "labels" in json.loads((data / "valid.jsonl").read_text().splitlines()[0])


def test_runners_do_not_import_denn():
    for file in Path(runs.START).parent.glob("*.py"):
        lines = [line.split() for line in file.read_text().splitlines() if line.lstrip().startswith(("import", "from"))]
        imported = {words[1].split(".")[0] for words in lines}
        assert not imported & {"denn", "denn_bench"} or file.name == "denn_train.py", file


def test_the_speed_is_that_of_the_usual_way_to_score_a_sample(own_runner, tmp_path, data, tiny_corpus):
    start = tmp_path / "runners" / "start.py"
    run = own_runner(
        "def fill(value): return lambda texts: np.full((len(texts), len(job.labels)), value, dtype=np.float32)\n"
        "    usual = lambda texts: time.sleep(0.5) or fill(0.0)(texts)\n"
        "    return Trained(fill(1.0), 1, '', True, usual_score=usual)"
    )
    start.write_text(start.read_text().replace("SAMPLE = 256", "SAMPLE = 5"))
    row = perform(run, tiny_corpus, data, "x", CORES, tmp_path / "work")
    assert row["failure"] is None and row["timed_texts"] == 5
    assert 0 < row["texts_per_second"] <= 5 / 0.5
    assert row["threshold"] == 1.0  # F1 is that of the other scores


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('no such thing\\nmore')", "ValueError: no such thing"),
        ("import os, sys; print('last words', flush=True); os._exit(3)", "exit code 3: last words"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed, probably because memory ran out"),
        (
            "return Trained(lambda texts: np.full((len(texts), len(job.labels)), np.nan), 1, '', True)",
            "DataError: Some validation scores are not finite.",
        ),
    ],
)
def test_a_failing_peer_gets_a_row_that_says_so(own_runner, tmp_path, data, tiny_corpus, body, said):
    row = perform(own_runner(body), tiny_corpus, data, "x", CORES, tmp_path / "work")
    assert row["failure"] == said
    kept = [path.name for path in next((tmp_path / "work").iterdir()).iterdir()]
    assert "log.txt" in kept and all(name.endswith(".txt") for name in kept)


@pytest.mark.slow
def test_a_peer_that_does_not_stop_is_ended_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "GRACE", (0.0, 0.0))
    body = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "open('pid', 'w').write(str(child.pid))\n"
        "time.sleep(60)"
    )
    outcome = watching.watch([sys.executable, "-S", "-c", body], os.environ, tmp_path, 3, CORES)
    assert outcome.failure == "not trained after 3 seconds"
    status, end = Path(f"/proc/{(tmp_path / 'pid').read_text()}/status"), time.monotonic() + 10
    while status.exists() and "zombie" not in status.read_text():  # it was asked to end, which takes a moment
        assert time.monotonic() < end
        time.sleep(0.01)


def test_missing_packages_are_a_row(own_runner, tmp_path, data, tiny_corpus, monkeypatch):
    def fail(*_):
        raise environments.EnvironmentFailed("ERROR: no such package")

    monkeypatch.setattr(runs, "python_of", fail)
    row = perform(own_runner("pass"), tiny_corpus, data, "x", CORES, tmp_path / "work")
    assert row["failure"] == "EnvironmentFailed: ERROR: no such package"


def test_packages_from_a_folder(own_runner, tmp_path, data, tiny_corpus, monkeypatch):
    """A peer with its own packages sees those in its folder, but neither denn's PYTHONPATH nor a GPU."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "ours"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    run = own_runner("import os, extra; raise ValueError(extra.__file__ + os.environ['CUDA_VISIBLE_DEVICES'])")
    monkeypatch.setattr(Peer, "_constant", lambda self, name: ("extra==1",) if name == "PACKAGES" else ())
    folder = tmp_path / "packages"
    row = perform(run, tiny_corpus, data, "x", CORES, tmp_path / "work", folder)
    said = "is missing. Expected a folder with the unpacked packages of this runner."
    assert row["failure"] == f"EnvironmentFailed: {folder / 'mine'} {said}"
    for place in (folder / "mine", tmp_path / "ours"):
        place.mkdir(parents=True)
        (place / "extra.py").touch()
    row = perform(run, tiny_corpus, data, "x", CORES, tmp_path / "work", folder)
    assert row["failure"] == f"ValueError: {folder / 'mine' / 'extra.py'}"
    assert row["command"].endswith(f"--cores {CORES[0]} --packages {folder}")


def test_a_gpu_is_hidden_unless_asked_for(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert runs._environment(2, "cpu", "")["CUDA_VISIBLE_DEVICES"] == ""
    assert runs._environment(2, "a GPU", "")["CUDA_VISIBLE_DEVICES"] == "0"


def test_others_count_on_the_cores_of_the_run_only(tmp_path, monkeypatch):
    lines = [
        "cpu  9 9 9 9 9 9 9 9 0 0",
        "cpu0 1 2 4 90 90 8 16 32 0 0",
        "cpu1 100 0 0 5 5 0 0 0 0 0",
        "cpu10 7 0 0 0 0 0 0 0",
    ]
    (tmp_path / "stat").write_text("\n".join([*lines, "intr 1 2 3", "", "ctxt 5"]))
    monkeypatch.setattr(watching, "STAT", tmp_path / "stat")
    ticks = os.sysconf("SC_CLK_TCK")  # per second
    assert watching.core_seconds([0]) == 63 / ticks and watching.core_seconds([0, 1]) == 163 / ticks
    monkeypatch.setattr(watching, "STAT", tmp_path / "none")
    assert watching.core_seconds([0]) == 0


def test_an_environment_is_made_once(tmp_path, monkeypatch):
    calls = []

    def call(*command):
        calls.append(command)
        if command[2] == "venv":
            Path(command[-1]).mkdir(parents=True)

    monkeypatch.setenv("DENN_CACHE", str(tmp_path))
    monkeypatch.setattr(environments, "_call", call)
    packages = ["b==1", "torch==2"]
    python = environments.python_of("mine", packages, ["c==3"])
    assert [call[-1] for call in calls] == [str(python.parents[1]), "torch==2", "torch==2", "c==3"]
    assert "b==1" not in calls[1] and "b==1" in calls[2] and "--no-deps" in calls[3]
    assert environments.python_of("mine", packages, ["c==3"]) == python and len(calls) == 4
    (python.parents[1] / "complete").unlink()  # simulates an interruption
    assert environments.python_of("mine", packages, ["c==3"]) == python and len(calls) == 8
    assert environments.python_of("mine", ["b==2"]) != python  # other packages, another environment
    assert environments.python_of("mine", []) == Path(sys.executable)


def test_an_environment_that_cannot_be_made_says_why():
    with pytest.raises(environments.EnvironmentFailed, match=r"^ERROR: one$"):
        environments._call(sys.executable, "-c", "import sys; sys.exit('note\\nERROR: one\\nERROR: two')")


def test_memory_counts_children():
    inner = "x = bytearray(90 << 20); import time; time.sleep(60)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", outer]) as child:
        for _ in range(100):
            if (found := watching.memory(child.pid)) > 90 << 20:
                break
            time.sleep(0.1)
        for pid in list(watching.descendants(child.pid))[::-1]:
            os.kill(pid, signal.SIGKILL)
    assert found > 90 << 20


def test_finished_runs_are_settled(tmp_path):
    results = tmp_path / "peers.jsonl"
    first, failed, short = Run("svm", "tiny", 1, 0), Run("setfit", "tiny", 1, 0), Run("trainer", "tiny", 1, 0)
    append(results, row_of(first, complete=True))
    append(results, row_of(failed, failure="no"))
    append(results, row_of(short))
    rows = read(results)
    assert settled(first, rows, "x") and settled(replace(first, minutes=5), rows, "x")  # it ended after 5 s
    assert settled(replace(first, minutes=0.1), rows, "x") and not settled(replace(first, minutes=0.05), rows, "x")
    assert not settled(replace(first, seed=1), rows, "x") and not settled(first, rows, "other documents")
    assert settled(failed, rows, "x") and not settled(failed, rows, "x", retry=True)
    assert settled(short, rows, "x", retry=True) and not settled(replace(short, minutes=5), rows, "x")
    assert settled(short, rows, "x", busy=0.2) and not settled(short, rows, "x", busy=0.1)  # others took 12.5 %
    for elsewhere in (replace(short, device="a GPU"), replace(short, processor="another chip")):
        assert not settled(elsewhere, rows, "x")
        append(results, row_of(elsewhere))
        assert settled(elsewhere, read(results), "x") and settled(short, read(results), "x")
    append(results, row_of(failed, micro_f1=0.7))
    assert [row["failure"] for row in read(results)] == [None] * 5  # the last line counts


def test_a_row_without_a_device_is_of_the_cpu():
    run = Run("svm", "tiny", 1, 0, processor="a chip")
    row = row_of(run)
    del row["device"]
    assert runs.run_of(row) == run


def test_a_broken_line_is_named(tmp_path):
    (tmp_path / "peers.jsonl").write_text('{"peer": "svm"}\n')
    with pytest.raises(DataError, match="line 1: not a run of a peer"):
        read(tmp_path / "peers.jsonl")
    assert read(tmp_path / "none.jsonl") == []


def test_short_runs_come_first():
    runs = plan(["svm", "denn"], ["a", "b"], [5, 1], [0])
    assert [(run.corpus, run.minutes, run.peer) for run in runs][:3] == [
        ("a", 1, "svm"),
        ("a", 1, "denn"),
        ("a", 5, "svm"),
    ]
    assert len(runs) == 8


def test_the_threshold_does_not_depend_on_the_scale_of_scores(tmp_path, tiny_corpus):
    generator = torch.Generator().manual_seed(0)
    golds = [tiny_corpus.labels.matrix(part) for part in (tiny_corpus.valid, tiny_corpus.test)]
    valid, test = (gold + 0.7 * torch.randn(gold.shape, generator=generator) for gold in golds)
    found = []
    for scale in (1.0, 1e-4, 50.0):
        np.savez(
            tmp_path / "scores.npz", valid=(scale * valid).numpy(), test=(scale * test).numpy(), own=(test > 0).numpy()
        )
        found.append(measure(tmp_path / "scores.npz", tiny_corpus))
    assert len({row["micro_f1"] for row in found}) == 1 and found[0]["micro_f1"] > found[0]["own"]["micro_f1"]
    assert min(candidates(valid, golds[0])) < found[0]["threshold"] < max(candidates(valid, golds[0]))


def test_the_table_shows_the_best_and_what_failed():
    run = Run("trainer", "reuters21578", 1, 0, processor="a chip")
    rows = [
        row_of(replace(run, peer="svm"), complete=True, micro_f1=0.8),
        row_of(run, failure="not trained after 60 seconds"),
        row_of(replace(run, minutes=5), micro_f1=0.9, train_seconds=290.0),
        row_of(replace(run, minutes=5, seed=1), micro_f1=0.7, train_seconds=270.0),
    ]
    text = render(rows)
    svm = PEERS["svm"].title
    assert f"| Reuters-21578 | {svm} | 80.0 / 25.0 | 80.0 / 25.0 | 5 / 5 | 100 | 3 | 2 |" in text
    assert "| Reuters-21578 | Hugging Face Trainer | failed | 80.0 ± 14.1 / 25.0 ± 0.0 | - / 280 |" in text
    assert "| 1 min | Hugging Face Trainer | failed |" in text
    assert "- Hugging Face Trainer on Reuters-21578, 1 min: not trained after 60 seconds" in text
    assert "4 runs with seeds 0, 1 on 2 cores of a chip; 2026-11-17; other processes took 12 % of" in text


def test_nothing_is_bold_at_a_limit_that_denn_lacks():
    run = Run("svm", "reuters21578", 5, 0, processor="a chip")
    rows = [row_of(run, micro_f1=0.8), row_of(replace(run, peer="denn", minutes=1), micro_f1=0.7)]
    svm = PEERS["svm"].title
    assert f"| 5 min | {svm} | 80.0 / 25.0 |" in render(rows)
    failed = row_of(replace(run, peer="denn"), failure="out of memory")
    assert f"| 5 min | {svm} | **80.0** / 25.0 |" in render([*rows, failed])


def test_the_overview_compares_systems_by_time_and_device():
    run = Run("denn", "reuters21578", 1, 0, processor="a chip")
    elsewhere = replace(run, processor="another chip")
    rows = [
        row_of(run, micro_f1=0.7),
        row_of(replace(run, peer="svm"), micro_f1=0.6),
        row_of(elsewhere, micro_f1=0.5),  # the first chip has more runs of this corpus
        row_of(replace(elsewhere, peer="setfit"), micro_f1=0.65),
        row_of(replace(run, corpus="aapd", device="a GPU"), micro_f1=0.9),
    ]
    lines = overview(rows).splitlines()
    assert lines[2:] == [
        "| 1 min | denn | **70.0** / 25.0 | - |",
        f"| 1 min | {PEERS['svm'].title} | 60.0 / 25.0 | - |",
        f"| 1 min | {PEERS['setfit'].title} | 65.0 / 25.0† | - |",
        "| 1 min, a GPU | denn | - | **90.0** / 25.0 |",
        "",
        "*Micro-F1 / macro-F1. †: measured on another machine than the rest of the column.*",
    ]


def test_every_machine_has_a_table_and_gpus_come_last():
    run = Run("denn", "reuters21578", 1, 0, processor="a chip")
    rows = [
        row_of(replace(run, device="a GPU"), micro_f1=0.9),
        row_of(run, micro_f1=0.7),
        row_of(replace(run, processor="another chip"), micro_f1=0.8),
    ]
    tables = machines(rows).split("| Corpus ")[1:]
    for table, said in zip(
        tables,
        (
            "70.0 / 25.0 | 1 run with seed 0 on 2 cores of a chip;",
            "80.0 / 25.0 | 1 run with seed 0 on 2 cores of another chip;",
            "90.0 / 25.0 | 1 run with seed 0 on a GPU and 2 cores of a chip;",
        ),
        strict=True,
    ):
        assert all(part in table for part in said.split(" | "))


def test_a_page_is_filled_between_its_marks():
    rows = [row_of(Run("svm", "reuters21578", 1, 0))]
    parts = (
        "above",
        "<!-- peers: overview -->",
        "old",
        "<!-- end -->",
        "text",
        "<!-- peers: machines -->",
        "<!-- end -->",
    )
    page = fill("\n".join(parts), rows)
    assert page.startswith("above\n<!-- peers: overview -->\n| Time | System |") and page.endswith("<!-- end -->")
    assert "<!-- end -->\ntext\n<!-- peers: machines -->\n| Corpus | System |" in page and "old" not in page
    assert fill(page, rows) == page
    with pytest.raises(DataError, match="no place for the tables"):
        fill(page.replace("peers: machines", "nothing"), rows)
    with pytest.raises(DataError, match="no runs of peers"):
        render([])


def test_the_page_shows_the_results():
    root = Path(__file__).parents[2]
    page = (root / "docs" / "peers.md").read_text(encoding="utf-8")
    remedy = "Run: denn bench peers table --page docs/peers.md"
    assert fill(page, read(root / "results" / "peers.jsonl")) == page, remedy


def test_wrong_options_are_explained():
    with pytest.raises(ConfigError, match=r"There is no peer 'smv'\. Did you mean 'svm'"):
        _chosen("smv")
    assert _chosen("") == list(PEERS)
    assert _chosen("", gpu=True) == ["denn", "setfit", "trainer", "libmultilabel-bert", "adaptive-classifier"]
    with pytest.raises(ConfigError, match=r"The peer 'svm' does not support a GPU\. Run it with --device cpu\."):
        _chosen("svm", gpu=True)
    for wrong in ("one", "-1", "nan"):
        with pytest.raises(ConfigError, match="--minutes"):
            _numbers(wrong, "--minutes")


def test_every_peer_has_pinned_packages():
    for name, peer in PEERS.items():
        assert all("==" in package for package in peer.packages), name

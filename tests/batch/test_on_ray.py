"""Jobs on real Ray clusters: workers are killed, and no text is lost or done twice."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from batch_inputs import write_lines

import denn
from denn.batch.on_ray import _check, _share, connected
from denn.errors import ConfigError

SOAK = pytest.mark.skipif("DENN_SOAK" not in os.environ, reason="starts more clusters; run `make soak`")
pytest.importorskip("ray", reason="Ray is not installed: pip install 'denn[ray]'")


def command(*arguments):
    return [sys.executable, "-m", "denn", *map(str, arguments)]


def kill_a_worker(folder, running):
    """Kill a worker in the middle of its first partition."""
    while running.poll() is None:
        for path in folder.glob("*.part-*") if folder.exists() else ():
            if found := re.search(r"^(?!job).*\.part-.*-(\d+)-\w+$", path.name):
                os.kill(int(found[1]), signal.SIGKILL)
                return
        time.sleep(0.005)
    raise AssertionError(f"the command ended before a worker could be killed: {running.communicate()}")


@pytest.mark.slow
def test_a_killed_worker_costs_no_text_and_repeats_none(tiny_model, tiny_corpus, tmp_path):
    texts = [document.text for document in tiny_corpus.test]
    numbers = {name: range(start, start + 400) for name, start in zip("abcd", range(0, 1600, 400), strict=True)}
    write_lines(tmp_path / "in", lambda n: texts[n % 20], **numbers)
    out = tmp_path / "out"
    job = command("predict", tiny_model, tmp_path / "in" / "*", "--output", out, "--engine", "ray", "--workers", 2)
    with subprocess.Popen(job, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        kill_a_worker(out, running)
        stdout, stderr = running.communicate(timeout=300)
    assert (running.returncode, stdout) == (0, ""), stderr
    assert re.search(r"warning: a worker died; [abcd]\.jsonl was computed again by another one", stderr)
    assert "4 partitions; 1,600 texts in " in stderr
    names = sorted(path.name for path in out.iterdir())
    assert names == [*(f"{name}.jsonl.jsonl" for name in "abcd"), "job.json"]
    rows = [json.loads(line) for name in names[:-1] for line in (out / name).read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"t{n}" for n in range(1600)]
    with denn.load(tiny_model) as model:
        expected = [prediction.labels for prediction in model.predict(texts, evidence=0)]
    assert [tuple(row["labels"]) for row in rows] == expected * 80


def test_workers_share_the_cluster():
    assert _share({"CPU": 2.0}, 2) == {"workers": 2, "num_cpus": 1, "num_gpus": 0.0}
    assert _share({"CPU": 2.0}, 4) == {"workers": 4, "num_cpus": 0.5, "num_gpus": 0.0}
    assert _share({"CPU": 64.0}, None) == {"workers": 16, "num_cpus": 4, "num_gpus": 0.0}
    assert _share({"CPU": 64.0, "GPU": 8.0}, None) == {"workers": 8, "num_cpus": 8, "num_gpus": 1.0}
    assert _share({"CPU": 8.0, "GPU": 1.0}, 2) == {"workers": 2, "num_cpus": 4, "num_gpus": 0.5}
    with pytest.raises(ConfigError, match="has no CPUs for workers"):
        _share({}, None)


@SOAK
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_partition_that_kills_every_worker_fails_alone(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # so that workers find the task
    from deadly import Deadly

    with connected(workers=2) as engine:
        done = sorted(engine(Deadly(), range(6)), key=lambda one: one.number)
        assert [one.result for one in done] == [0, 2, 4, None, None, 10]
        assert done[3].error == "its worker died 3 times, for example because it ran out of memory"
        assert done[4].error == "four is bad."
        first = next(iter(engine(Deadly(broken=True), range(3))))
        assert (first.error, first.is_fatal) == ("this model is broken.", True)
        first = next(iter(engine(Deadly(dead=True), range(3))))
        assert (first.error.split(",")[0], first.is_fatal) == (
            "every worker died 3 times while loading the model",
            True,
        )


@pytest.fixture(scope="module")
def cluster():
    """The address of a Ray cluster with two CPUs."""
    ray = str(Path(sys.executable).with_name("ray"))
    # A folder of its own, with a short name: other Ray programs take the cluster in Ray's default folder for theirs.
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        yield from _cluster(ray, folder)


def _cluster(ray, folder):
    head = [ray, "start", "--head", "--port=0", "--num-cpus=2", f"--temp-dir={folder}"]
    head += ["--include-dashboard=false", "--disable-usage-stats", "--block"]
    with subprocess.Popen(head, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout:
            if found := re.search(r"--address='([\d.:]+)'", line):
                break
        yield found[1]
        running.terminate()


@SOAK
def test_a_cluster_is_used_by_its_address(cluster, tiny_model, tiny_corpus, tmp_path):
    def run(*arguments):
        return subprocess.run(command(*arguments), capture_output=True, text=True, check=True, timeout=300)

    rows = (json.dumps({"text": one.text, "labels": one.labels, "id": one.id}) + "\n" for one in tiny_corpus.test)
    (tmp_path / "test.jsonl").write_text("".join(rows))
    on_ray = ["--engine", "ray", "--ray-address", cluster]
    alone = run("evaluate", tiny_model, tmp_path / "test.jsonl", "--json")
    shared = run("evaluate", tiny_model, tmp_path / "test.jsonl", "--json", *on_ray, "--partition-rows", 7)
    assert json.loads(shared.stdout) == json.loads(alone.stdout)
    run("embed", tiny_model, tmp_path / "test.jsonl", "--output", tmp_path / "alone")
    run("embed", tiny_model, tmp_path / "test.jsonl", "--output", tmp_path / "shared", *on_ray)
    name = "test.jsonl.parquet"
    assert pq.read_table(tmp_path / "shared" / name) == pq.read_table(tmp_path / "alone" / name)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:1", r"Cannot connect to Ray at 127\.0\.0\.1:1 \(.*refused\)\. Check the address"),
        (
            "ray://127.0.0.1:10001",
            r"Got ray://127\.0\.0\.1:10001, expected an address such as 10\.0\.0\.5:6379\. Run the",
        ),
    ],
)
def test_an_address_that_cannot_be_used_is_reported_at_once(address, sentence):
    with pytest.raises(ConfigError, match=sentence):
        _check(address)


def test_addresses_that_ray_resolves_itself_are_left_to_it():
    _check(None)
    _check("auto")


def test_a_worker_fits_on_a_node():
    nodes = [{"CPU": 1.0}, {"CPU": 2.0, "GPU": 1.0}]
    assert _share({"CPU": 3.0}, None, nodes)["num_cpus"] == 2  # three CPUs are on no node
    assert _share({"CPU": 3.0}, 1, nodes)["num_cpus"] == 2
    assert _share({"CPU": 3.0}, 3, nodes)["num_cpus"] == 1

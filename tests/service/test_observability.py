"""What an operator sees: log lines of start, stop and reload, metrics that move, and drift of the labels."""

import json
import math
import shutil
import signal
import threading
from collections import Counter

import numpy as np
import pytest
from inside import PATIENCE, Inside, eventually, inside

import denn
from denn import __version__
from denn.service.drift import LabelCounts, RecentLabels, _by_chance
from denn.stopwatch import lap, measured

TEXT = {"text": "goal match team"}


def metrics(running: Inside) -> dict[str, float]:
    with running.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


@pytest.fixture
def running(tiny_model, tmp_path):
    with inside(shutil.copytree(tiny_model, tmp_path / "tiny"), name="tiny") as running:
        yield running


@pytest.mark.slow
def test_times_of_a_batch(running):
    before = metrics(running)
    with running.client() as client:
        client.post("/v1/predict/batch", json={"texts": ["goal", "violin", "oven"]})
        client.post("/v1/neighbours", json=TEXT)
    after = metrics(running)
    grown = {name: after[name] - before[name] for name in before if not math.isnan(before[name])}
    assert grown["denn_queue_seconds_count"] == 2 and 0 < grown["denn_queue_seconds_sum"] < PATIENCE
    assert grown["denn_embedding_seconds_count"] == 2 and grown["denn_search_seconds_count"] == 1
    parts = grown["denn_embedding_seconds_sum"] + grown["denn_search_seconds_sum"]
    assert 0 < parts < grown["denn_computing_seconds_total"]
    assert grown["denn_batch_texts_count"] == 2 and grown["denn_batch_texts_sum"] == 4


@pytest.mark.slow
def test_the_queue_time_is_the_time_before_the_batch(running):
    running.gate.hold()
    first = running.later("/v1/predict", TEXT)
    eventually(lambda: running.gate.batches)
    second = running.later("/v1/predict", TEXT)
    eventually(lambda: running.engine.waiting == 2)
    waited = threading.Event()
    waited.wait(0.3)  # longer than anything else takes here
    running.gate.release()
    assert first().status_code == second().status_code == 200
    found = metrics(running)
    assert found["denn_queue_seconds_count"] == 2 and found["denn_queue_seconds_sum"] >= 0.3
    assert found["denn_embedding_seconds_sum"] < 0.3  # waiting is not computing


@pytest.mark.slow
def test_familiarity_of_texts(running, tiny_corpus):
    texts = [document.text for document in tiny_corpus.train[:20]]
    with running.client() as client:
        found = client.post("/v1/predict/batch", json={"texts": texts}).json()["predictions"]
    known = [one["familiarity"] for one in found]
    seen = metrics(running)
    assert seen["denn_familiarity_count"] == 20 and seen["denn_familiarity_sum"] == pytest.approx(sum(known))
    for limit in ("0.02", "0.5", "0.9"):
        assert seen[f'denn_familiarity_bucket{{le="{limit}"}}'] == sum(one <= float(limit) for one in known)


@pytest.mark.slow
def test_drift_rises_when_the_texts_change_and_falls_when_they_change_back(running, tiny_corpus):
    def drift() -> dict:
        with running.client() as client:
            return client.get("/v1/drift", params={"limit": 3}).json()

    def send(texts: list[str]) -> None:
        with running.client() as client:
            for begin in range(0, len(texts), 200):
                client.post("/v1/predict/batch", json={"texts": texts[begin : begin + 200], "evidence": 0})

    assert drift() == {"texts": 0, "labels": 0, "drift": None, "by_chance": None, "movers": []}
    assert math.isnan(metrics(running)["denn_label_drift"])
    usual = [document.text for document in tiny_corpus.train]
    send(usual)
    same = drift()
    assert same["texts"] == 60 and 0 < same["by_chance"] < 1 and same["drift"] < same["by_chance"] + 0.1
    send(["violin chord melody concert drum tempo"] * 400)
    other = drift()
    assert other["drift"] > 0.5 > 5 * other["by_chance"]
    assert other["movers"][0]["label"] == "music" and other["movers"][0]["predicted"] > 0.7
    assert other["movers"][0]["trained"] == pytest.approx(_share(tiny_corpus, "music"))
    shown = metrics(running)
    assert shown["denn_label_drift"] == pytest.approx(other["drift"]) and shown["denn_label_drift_texts"] == 460
    assert shown["denn_label_drift_by_chance"] == pytest.approx(other["by_chance"])
    with running.client() as client:
        for options in ({"threshold": 0}, {"min_labels": 5}, {"thresholds": {"sport": 0.01}}):  # not the model's labels
            assert client.post("/v1/predict", json={"text": usual[0], **options}).status_code == 200
    assert drift() == other
    send(usual * 35)  # more than the window holds
    again = drift()
    assert again["texts"] == 2000 and again["drift"] < same["drift"] + 0.05


def _share(corpus: denn.Corpus, label: str) -> float:
    counts = Counter(label for document in corpus.train for label in document.labels)
    return counts[label] / sum(counts.values())


def test_drift_is_half_the_sum_of_the_differences():
    trained = {"a": 30, "b": 50, "c": 20}
    recent = RecentLabels(window=4)
    for labels in (("c", "b"), ("a",), ("a", "new"), (), ("a", "b")):  # the first is forgotten
        recent.add(labels)
    found = recent.counts()
    assert found == LabelCounts(4, {"a": 3, "b": 1, "new": 1}) and found.labels == 5
    shares = {"a": (0.3, 0.6), "b": (0.5, 0.2), "c": (0.2, 0), "new": (0, 0.2)}
    assert found.drifted(trained).drift == pytest.approx(sum(abs(p - q) for p, q in shares.values()) / 2)
    moved = {one.label: (one.trained, one.predicted) for one in found.movers(trained, 4)}
    assert moved.keys() == shares.keys() and all(moved[label] == pytest.approx(shares[label]) for label in shares)
    assert [one.label for one in found.movers(trained, 2)] == ["a", "b"]
    assert LabelCounts(3, {}).drifted(trained).drift is None and found.drifted({}).drift is None
    assert LabelCounts(2, {"a": 1, "b": 1}).drifted({"a": 5, "b": 5}).drift == 0
    assert LabelCounts(1, {"x": 1}).drifted({"a": 5}).drift == 1


def test_what_chance_does_to_drift():
    generator, shares, labels = np.random.default_rng(0), np.array([0.5, 0.3, 0.15, 0.04, 0.01, 0.0]), 40
    drawn = generator.multinomial(labels, shares, size=20_000) / labels
    assert _by_chance(shares, labels) == pytest.approx(float(abs(drawn - shares).sum(1).mean() / 2), rel=0.01)
    assert _by_chance(np.array([1.0]), 10) == 0
    assert _by_chance(shares, 1) == pytest.approx(float((shares * (1 - shares)).sum()))


def test_only_what_is_measured_takes_time():
    with lap("nobody asks"):
        pass
    with measured() as laps:
        for _ in range(2):
            with lap("inner"):
                pass
        with pytest.raises(ValueError), lap("failed"):
            raise ValueError
    assert set(laps) == {"inner", "failed"} and all(seconds >= 0 for seconds in laps.values())


@pytest.mark.slow
def test_files_of_the_page_have_a_route(running):
    with running.client() as client:
        assert client.get("/page/app.js").status_code == client.get("/openapi.json").status_code == 200
        assert client.get("/page/nothing.js").status_code == client.get("/nothing").status_code == 404
    found = {name: value for name, value in metrics(running).items() if name.startswith("denn_requests_total")}
    assert found['denn_requests_total{method="GET",route="page",status="200"}'] == 1
    assert found['denn_requests_total{method="GET",route="/openapi.json",status="200"}'] == 1
    assert found['denn_requests_total{method="GET",route="page",status="404"}'] == 1
    assert found['denn_requests_total{method="GET",route="none",status="404"}'] == 1


@pytest.mark.slow
def test_start_and_stop_are_logged(serving, tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "tiny")
    with serving(folder) as running:
        with running.client() as client:
            assert client.post("/v1/predict", json=TEXT).status_code == 200
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(PATIENCE)
    lines = [json.loads(line) for line in running.log]
    told = [line for line in lines if line["message"] != "request"]
    assert [line["message"] for line in told] == ["started", "stopping", "stopped"]
    assert told[0] | {"time": 0, "created": 0} == {
        "time": 0, "level": "info", "message": "started", "version": __version__, "model": "tiny", "method": "denn",
        "created": 0, "refitted": None, "labels": 6, "keys": 1,
    }  # fmt: skip
    assert told[-1]["model"] == "tiny" and told[-1]["seconds"] >= 0


@pytest.mark.slow
def test_the_documentation_of_the_api_comes_from_the_service_alone(running):
    with running.client() as client:
        page = client.get("/docs")
        script = client.get("/page/docs.js")
    assert page.status_code == script.status_code == 200 and page.headers["Content-Type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["Content-Security-Policy"] and "://" not in page.text

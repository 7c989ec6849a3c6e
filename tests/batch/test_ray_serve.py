"""The example of Ray Serve runs: two replicas answer, wrong requests are refused, and a killed replica is replaced."""

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import denn

pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install 'ray[serve]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("DENN_SOAK" not in os.environ, reason="starts a Ray cluster; run `make soak`"),
]


@pytest.fixture
def served(tiny_model):
    """A client of the example with the tiny model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    session = [sys.executable, str(Path(__file__).with_name("serve_session.py")), str(tiny_model), str(port)]
    with subprocess.Popen(session, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert any(line == "ready\n" for line in running.stdout), "it did not start"
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
        running.stdin.close()


def test_two_replicas_answer_and_a_killed_one_is_replaced(served, tiny_model, tiny_corpus):
    texts = [document.text for document in tiny_corpus.test]

    def ask(some):
        return served.post("/predict", json={"texts": some, "neighbours": 2}).raise_for_status().json()

    def replicas():
        with ThreadPoolExecutor(20) as pool:
            return {answer["replica"] for answer in pool.map(lambda _: ask(texts[:1]), range(40))}

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda text: ask([text]), texts))
    with denn.load(tiny_model) as model:
        expected = model.predict(texts, evidence=2)
    together = ask(texts)["predictions"]
    for one, other, prediction in zip(answers, together, expected, strict=True):
        assert [answer["labels"] for answer in one["predictions"]] == [other["labels"]] == [list(prediction.labels)]
        assert [near["id"] for near in other["neighbours"]] == [near.id for near in prediction.neighbours]
    before = replicas()
    assert len(before) == 2
    assert served.post("/predict", json={"texts": []}).status_code == 422
    assert served.post("/predict", json={"texts": ["x"], "neighbors": 2}).status_code == 422

    os.kill(min(before), signal.SIGKILL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            after = replicas()
        except httpx.HTTPStatusError:  # while Ray has not noticed yet
            continue
        if len(after) == 2 and min(before) not in after:
            break
    assert len(after) == 2 and min(before) not in after

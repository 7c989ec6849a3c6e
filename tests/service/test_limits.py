"""Limits on sizes, times and the queue; slow, stuck or disconnected clients delay nobody."""

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPResponse

import pytest
from inside import Inside, eventually, inside, request

from denn.service.keys import Keys, new_key
from denn.service.wire import Wire

pytestmark = pytest.mark.slow  # each starts its own service

TEXT = {"text": "goal match team"}
KEY, LINE = new_key("write")


class Quick(Wire):
    """A protocol with short timeouts."""

    HEAD_SECONDS = STUCK_SECONDS = 1.0


@pytest.fixture(scope="module")
def folder(tiny_model, tmp_path_factory):
    """A model whose datastore the tests may change."""
    return shutil.copytree(tiny_model, tmp_path_factory.mktemp("limits") / "tiny")


@pytest.fixture(scope="module")
def small(folder) -> Iterator[Inside]:
    """A service with small limits."""
    limits = {"body_bytes": 2000, "stream_bytes": 4000, "texts": 5, "characters": 100, "queue": 4, "batch_tokens": 8}
    with inside(folder, keys=Keys.parse([LINE]), **limits) as running:
        yield running


@pytest.fixture
def gate(small) -> Iterator:
    small.gate.batches.clear()
    yield small.gate
    small.gate.release()
    eventually(lambda: small.engine.waiting == 0)


def answer_of(connection: socket.socket) -> tuple[HTTPResponse, dict]:
    """Parse a raw response."""
    answer = HTTPResponse(connection)
    answer.begin()
    return answer, json.loads(answer.read())


def test_a_body_is_refused_by_what_it_says_of_its_length(small):
    with small.connect() as connection:
        connection.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 2001\r\n\r\n")  # and nothing more
        answer, problem = answer_of(connection)
    assert answer.status == 413 and answer.headers["Connection"] == "close"
    assert problem["detail"] == "The body is larger than 2,000 bytes. Split the request."
    assert problem["title"] == "Content Too Large"


def test_a_body_of_unknown_length_is_refused_when_it_is_too_long(small):
    with small.connect() as connection:
        connection.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(21):
            connection.sendall(b"64\r\n" + b" " * 100 + b"\r\n")
        answer, _ = answer_of(connection)
    assert answer.status == 413
    with small.client(**{"Content-Type": "application/json"}) as client:
        assert client.post("/v1/predict", content=iter([b'{"text": ', b'"goal"}'])).status_code == 200


def test_a_stream_may_be_longer(small):
    body = b'{"text": "goal"}\n' * 150  # more than other bodies may have
    with small.client() as client:
        lines = client.post("/v1/predict/stream", content=body).text
        assert len(lines.splitlines()) == 150 and "error" not in lines
        assert client.post("/v1/predict/stream", content=body * 2).status_code == 413
        long_line = client.post("/v1/predict/stream", content=b'{"text": "' + b"x" * 2000 + b'"}\n' + body[:17])
    first, second = map(json.loads, long_line.text.splitlines())
    assert "longer than 2,000 bytes" in first["error"] and "labels" in second


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/predict", {"text": "x" * 101}),
        ("POST", "/v1/predict/batch", {"texts": ["x", "x" * 101]}),
        ("POST", "/v1/predict/batch", {"texts": ["x"] * 6}),
        ("POST", "/v1/neighbours", {"text": "x" * 101}),
        ("POST", "/v1/map/place", {"text": "x" * 101}),
        ("POST", "/v1/documents", {"documents": [{"text": "x" * 101, "labels": []}]}),
        ("POST", "/v1/documents", {"documents": [{"text": "x", "labels": []}] * 6}),
        ("PUT", "/v1/documents/new", {"text": "x" * 101, "labels": []}),
    ],
)
def test_texts_that_are_too_long_or_too_many(small, gate, method, path, body):
    before = len(small.model.store)
    with small.client(KEY) as client:
        answer = client.request(method, path, json=body)
    assert answer.status_code == 413
    assert "at most" in answer.json()["detail"]
    assert gate.batches == [] and len(small.model.store) == before


def test_the_longest_of_everything_is_taken(small):
    assert small.post("/v1/predict/batch", {"texts": ["x" * 100] * 5}).status_code == 200
    with small.client() as client:
        lines = client.post("/v1/predict/stream", content=json.dumps({"id": 7, "text": "x" * 101})).text
    assert "Shorten it to at most 100" in json.loads(lines)["error"] and json.loads(lines)["id"] == 7


def test_a_body_that_does_not_come_in_time(folder):
    with inside(folder, body_seconds=0.3) as running, running.connect() as connection:
        connection.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer, problem = answer_of(connection)
        assert answer.status == 408 and answer.headers["Connection"] == "close"
        assert problem["status"] == 408 and "did not arrive in time" in problem["detail"]
        assert connection.recv(1) == b""


def test_large_bodies_have_a_limit_together(small):
    head = b"POST /v1/predict/stream HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n"
    with ExitStack() as opened:
        for count in range(1, 11):
            opened.enter_context(small.connect()).sendall(head + b"\n" * 3000)
            eventually(lambda count=count: small.guard._held == 3000 * count)
        last = opened.enter_context(small.connect())
        last.sendall(head + b"\n" * 3000)
        answer, problem = answer_of(last)
        assert answer.status == 503 and answer.headers["Retry-After"] and answer.headers["Connection"] == "close"
        assert "large requests" in problem["detail"]
        assert small.post("/v1/predict", TEXT).status_code == 200  # a small one is accepted
    eventually(lambda: small.guard._held == 0)


def test_an_answer_that_takes_too_long(folder):
    with inside(folder, seconds=2) as running:
        running.gate.hold()
        answer = running.post("/v1/predict", {"text": "late"})
        assert answer.status_code == 504 and "Retry-After" not in answer.headers  # again, it would take as long
        assert "longer than 2 s" in answer.json()["detail"]
        assert running.engine.waiting == 0  # its place in the queue is free
        running.gate.release()
        assert running.post("/v1/predict", TEXT).status_code == 200


def test_a_full_queue_refuses_and_recovers(small, gate):
    gate.hold()
    waiting = [small.later("/v1/predict/batch", {"texts": [name] * 2}) for name in ("one", "two")]
    eventually(lambda: small.engine.waiting == 4)
    refused = small.counted("denn_refused_total")
    answer = small.post("/v1/predict", TEXT)
    assert answer.status_code == 503 and int(answer.headers["Retry-After"]) >= 1
    assert answer.json()["detail"] == "The queue is full: 4 of 4 texts. Try again later."
    with small.client() as client:
        ready = client.get("/ready")
        assert ready.status_code == 503 and "Retry-After" in ready.headers
        assert client.get("/health").status_code == client.get("/v1/labels").status_code == 200
    assert small.counted("denn_refused_total") == refused + 1 and small.counted("denn_waiting_texts") == 4
    gate.release()
    assert [answer().status_code for answer in waiting] == [200, 200]
    assert small.post("/v1/predict", TEXT).status_code == 200
    assert small.counted("denn_waiting_texts") == 0


def test_a_stream_waits_where_the_queue_is_full(small, gate):
    gate.hold()
    first = small.later("/v1/predict", TEXT)
    eventually(lambda: gate.batches)
    streams, refused = [], small.counted("denn_refused_total")

    def stream() -> None:
        with small.client() as client:
            streams.append(client.post("/v1/predict/stream", content=b'{"text": "x"}\n' * 40).text)

    thread = threading.Thread(target=stream)
    thread.start()
    eventually(lambda: small.counted("denn_refused_total") > refused and not streams)
    gate.release()
    thread.join()
    assert first().status_code == 200
    assert [json.loads(line)["line"] for line in streams[0].splitlines()] == list(range(1, 41))
    assert "error" not in streams[0]


def test_who_goes_away_frees_the_place(small, gate, caplog):
    caplog.set_level("INFO", "denn.service")
    gate.hold()
    first = small.later("/v1/predict", {"text": "first"})
    eventually(lambda: gate.batches)
    with small.connect() as connection:
        body = json.dumps({"texts": ["gone", "gone too"]}).encode()
        connection.sendall(request("/v1/predict/batch", body))
        eventually(lambda: small.engine.waiting == 3)
    eventually(lambda: small.engine.waiting == 1)
    gate.release()
    assert first().status_code == 200
    assert gate.batches == [["first"]]
    eventually(lambda: 499 in [r.facts["status"] for r in caplog.records if "facts" in r.__dict__])
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_who_goes_away_in_the_middle_of_a_body(small):
    for _ in range(3):
        with small.connect() as connection:
            connection.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert small.post("/v1/predict", TEXT).status_code == 200


def test_who_does_not_read_holds_nobody_up(folder, caplog):
    with inside(folder, wire=Quick) as running, running.connect() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line = json.dumps({"text": "goal match team", "id": "x" * 50_000}).encode() + b"\n"
        stuck.sendall(request("/v1/predict/stream", line * 300))  # more than all buffers on the way can hold
        for _ in range(5):
            assert running.post("/v1/predict", TEXT).status_code == 200
        with running.client() as client:  # and it is finally cut off
            eventually(lambda: not running.engine.waiting and client.get("/health").status_code == 200)
        eventually(lambda: len(running.server.server_state.connections) == 0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_heads_of_requests_have_an_end(folder):
    with inside(folder, wire=Quick) as running:
        with running.connect() as slow, running.connect() as long:
            slow.sendall(b"GET /health HTTP/1.1\r\nHost:")
            assert slow.recv(100) == b""
            long.sendall(b"GET /health HTTP/1.1\r\nX: " + b"x" * 70_000)  # and never ends
            assert long.recv(12) == b"HTTP/1.1 400"
        with running.client() as client:
            assert client.get("/health", headers={"X": "x" * 60_000}).status_code == 200
            assert client.get("/health", headers={"X": "x" * 66_000}).status_code == 400


def test_a_prediction_during_a_large_add_and_an_add_during_a_large_prediction(small, gate):
    headers = {"Authorization": f"Bearer {KEY}"}
    texts = [f"{number} " + "x" * 28 for number in range(3)]
    documents = [{"text": text, "labels": ["sport"], "id": text[0]} for text in texts]
    for large, path, body in (
        (("/v1/documents", {"documents": documents}), "/v1/predict", TEXT),
        (("/v1/predict/batch", {"texts": texts}), "/v1/documents", {"documents": documents[:1]}),
    ):
        gate.hold()
        gate.batches.clear()
        first = small.later(*large, headers=headers)
        eventually(lambda: len(gate.batches) == 1)
        second = small.later(path, body, headers=headers)
        eventually(lambda: small.engine.waiting == 4)
        gate.let(2)  # a part of the large one, and the small one
        assert second().is_success
        assert small.engine.waiting == 3  # the large one is not done
        gate.release()
        assert first().is_success
    small.model.store.remove([document["id"] for document in documents])


def test_a_write_that_takes_long_holds_up_no_reading(small, gate, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    add = small.model.store.add

    def slow(*given, **named):
        begun.set()
        go_on.wait()
        return add(*given, **named)

    monkeypatch.setattr(small.model.store, "add", slow)
    body = {"documents": [{"text": "slow", "labels": ["sport"], "id": "slow"}]}
    writing = small.later("/v1/documents", body, headers={"X-API-Key": KEY})
    try:
        eventually(begun.is_set)
        with small.client() as client:
            assert client.post("/v1/predict", json=TEXT).status_code == 200
            assert client.get("/v1/documents/slow").status_code == 404
            assert client.get("/v1/history").status_code == client.get("/v1/model").status_code == 200
    finally:
        go_on.set()
    assert writing().status_code == 201
    small.model.store.remove("slow")


def test_a_stop_finishes_what_was_accepted(folder):
    with inside(folder) as running:
        running.gate.hold()
        answers = [running.later("/v1/predict", {"text": name}) for name in ("one", "two")]
        eventually(lambda: running.engine.waiting == 2)
        running.server.should_exit = True  # as a signal sets it
        eventually(lambda: not running.server.servers[0].is_serving())
        running.gate.release()
        assert [answer().status_code for answer in answers] == [200, 200]

"""Bad connections: idle, incomplete, endless headers and bodies, clients that never read, too many at once."""

import json
import os
import resource
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from inside import PATIENCE, eventually, inside, request

from denn.errors import ConfigError
from denn.service.wire import TURNED_AWAY, Wire, connection_limit

pytestmark = pytest.mark.slow  # each starts its own service

MANY = int(os.environ.get("DENN_CONNECTIONS", "40"))  # number of connections of each kind
HEAD = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
TEXT = {"text": "goal match team"}


class Quick(Wire):
    """A protocol with short timeouts."""

    HEAD_SECONDS = STUCK_SECONDS = 0.5

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.timeout_keep_alive = 0.5


@pytest.fixture(scope="module")
def running(tiny_model):
    with inside(tiny_model, wire=Quick.limited(10 * MANY)) as running:
        yield running


@pytest.fixture
def opened(running):
    """Connect and send some bytes."""
    with ExitStack() as stack:

        def connect(*data: bytes) -> socket.socket:
            connection = stack.enter_context(running.connect())
            for part in data:
                connection.sendall(part)
            return connection

        yield connect


def ended(connection: socket.socket) -> bytes:
    """Return everything received until the connection is closed; raise if it stays open."""
    connection.settimeout(PATIENCE)
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


def descriptors(of: int | str = "self") -> int:
    return len(list(Path(f"/proc/{of}/fd").iterdir()))


BEGINNINGS = {
    "idle": [],
    "two bytes": [b"\r\n"],
    "one byte": [b"\r"],
    "a letter": [b"G"],
    "half a head": [HEAD],
    "two bytes after an answer": [HEAD + b"\r\n", b"\r\n"],
    "half a head behind a request": [HEAD + b"\r\n" + HEAD],
    "a body after its answer": [b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{}{}{}{}{}", b"\r\n"],
}


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_a_connection_that_asks_for_nothing_ends(opened, kind):
    begun = time.monotonic()
    said = ended(opened(*BEGINNINGS[kind]))
    assert time.monotonic() - begun < 10
    assert said.count(b"HTTP/1.1 ") == ("answer" in kind or "request" in kind)


@pytest.mark.parametrize("drops", [b"\r\n", b"X: y\r\n"])
def test_more_of_the_same_does_not_keep_it_open(opened, drops):
    connection = opened(HEAD if drops != b"\r\n" else b"\r\n")
    begun = time.monotonic()
    with pytest.raises(ConnectionError):
        while time.monotonic() - begun < 10:
            time.sleep(0.1)
            connection.sendall(drops)
    assert time.monotonic() - begun < 5


def test_the_rest_of_a_refused_body_does_not_keep_it_open(opened):
    head = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nHost: y\r\nContent-Length: 8000000\r\n\r\n{"
    connection = opened(head)  # refused before the body is read
    assert connection.recv(12) == b"HTTP/1.1 400"
    begun = time.monotonic()
    with pytest.raises(ConnectionError):
        while time.monotonic() - begun < 10:
            time.sleep(0.1)
            connection.sendall(b"x")
    assert time.monotonic() - begun < 5


def test_a_request_that_is_under_way_is_not_cut_off(running, opened):
    running.gate.hold()
    connection = opened(request("/v1/predict", json.dumps(TEXT).encode()), b"\r\n", HEAD)
    eventually(lambda: running.engine.waiting == 1)
    time.sleep(1.2)  # longer than the timeout for headers
    running.gate.release()
    assert connection.recv(15) == b"HTTP/1.1 200 OK"


def test_an_answer_that_nobody_reads_ends(running, opened):
    """The response is longer than all buffers on the way, slightly or by far."""
    for size in (3, 300):
        connection = opened()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line = json.dumps({"text": 5, "id": "x" * 50_000}).encode() + b"\n"
        connection.sendall(request("/v1/predict/stream", line * size))
    eventually(lambda: not running.server.server_state.connections)


def test_a_client_that_has_said_all_gets_its_answer_or_an_end(running, opened):
    connection = opened(HEAD + b"\r\n")
    connection.shutdown(socket.SHUT_WR)
    ended(connection)
    eventually(lambda: not running.server.server_state.connections)


def test_many_pipelined_requests_end(opened, caplog):
    few = ended(opened((HEAD + b"\r\n") * 8))
    assert few.count(b"HTTP/1.1 200") == 8
    assert ended(opened((HEAD + b"\r\n") * 1000)).count(b"HTTP/1.1 200") < 100
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_rubbish_behind_a_request_does_not_land_in_its_answer(running, opened, caplog):
    running.gate.hold()
    try:
        for rubbish in (b"\x00rubbish", b"\x00rubbish\r\n" * 3):
            connection = opened(request("/v1/predict", json.dumps(TEXT).encode()) + HEAD + b"\r\n", rubbish)
            assert ended(connection) == b""
        eventually(lambda: running.engine.waiting == 0)  # the request was dropped
    finally:
        running.gate.release()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_hundreds_of_them_leave_room_and_every_descriptor_comes_back(running):
    eventually(lambda: not running.server.server_state.connections)
    before = descriptors()
    with ExitStack() as stack:
        for data in BEGINNINGS.values():
            for number in range(MANY):
                connection = stack.enter_context(running.connect())
                connection.sendall(b"".join(data))
                if number % 4 == 0:
                    connection.shutdown(socket.SHUT_WR)
        assert running.post("/v1/predict", TEXT).status_code == 200
        eventually(lambda: len(running.server.server_state.connections) == 0)
    eventually(lambda: descriptors() <= before)
    assert running.post("/v1/predict", TEXT).status_code == 200


def test_one_connection_too_many_gets_a_503(tiny_model):
    with inside(tiny_model, wire=Wire.limited(5)) as running, ExitStack() as stack:
        kept = [stack.enter_context(running.connect()) for _ in range(5)]
        eventually(lambda: len(running.server.server_state.connections) == 5)
        extra = stack.enter_context(running.connect())
        extra.sendall(HEAD + b"\r\n")
        head, _, body = ended(extra).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 Service Unavailable") and b"retry-after: 5" in head
        assert json.loads(body)["detail"] == "Too many connections are open. Try again later."
        for _ in range(3 * TURNED_AWAY):  # however many connect
            stack.enter_context(running.connect())
        assert len(running.server.server_state.connections) <= 5 + TURNED_AWAY + 1
        kept[0].sendall(HEAD + b"\r\n")  # existing connections stay open
        assert kept[0].recv(12) == b"HTTP/1.1 200"
        for connection in kept:
            connection.close()
        eventually(lambda: len(running.server.server_state.connections) == 0)
        assert running.post("/v1/predict", TEXT).status_code == 200


def test_the_limit_leaves_descriptors_for_the_rest(monkeypatch):
    def allowing(soft: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))

    allowing(1024)
    assert connection_limit(None) == 924 and connection_limit(924) == 924
    with pytest.raises(
        ConfigError, match="925 connections need 1,025 file descriptors, but this process may open only 1,0"
    ):
        connection_limit(925)
    allowing(1_000_000)
    assert connection_limit(None) == 1000 and connection_limit(5000) == 5000
    allowing(resource.RLIM_INFINITY)
    assert connection_limit(None) == 1000
    allowing(50)
    assert connection_limit(None) == 1


def test_the_command_takes_a_limit(serving, tiny_model):
    command = [sys.executable, "-m", "denn", "serve", str(tiny_model), "--port", "0", "--connections", "99999999"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2 and "99,999,999 connections need" in " ".join(done.stderr.split())
    with serving(tiny_model, "--connections", "2", teach=False) as running, running.client() as client:
        address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
        assert client.get("/health").status_code == 200
        with socket.create_connection(address) as second, socket.create_connection(address) as third:
            assert ended(third).startswith(b"HTTP/1.1 503")
            assert client.get("/health").status_code == 200
            second.close()


def test_a_process_without_descriptors_goes_on_and_recovers(serving, tiny_model):
    """Open connections get responses, new ones wait or are closed, and the process does not spin."""
    with serving(tiny_model, teach=False) as running, running.client() as client, ExitStack() as stack:
        assert client.post("/v1/predict", json=TEXT).status_code == 200
        pid, address = running.process.pid, ("127.0.0.1", int(running.url.rpartition(":")[2]))
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(pid) + 10, limits[1]))
        for _ in range(40):
            connection = stack.enter_context(socket.create_connection(address, PATIENCE))
            connection.sendall(HEAD)
        before, begun = _used(pid), time.monotonic()
        time.sleep(2)
        assert client.get("/health").status_code == 200  # it was already open
        assert (_used(pid) - before) / (time.monotonic() - begun) < 0.5  # share of a core
        stack.close()
        eventually(lambda: _answers(running))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        assert running.process.poll() is None
    assert len(running.log) < 100, running.log[-3:]


def _used(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _answers(running) -> bool:
    with running.client() as client:
        try:
            return client.get("/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

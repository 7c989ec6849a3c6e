"""A service inside the test process, with its own limits and a model that a test can block."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

import denn
from denn.model import Model
from denn.service.app import make_app
from denn.service.engine import Engine
from denn.service.guard import Guard
from denn.service.settings import Settings
from denn.service.wire import Wire

PATIENCE = 60.0  # seconds; generous for a busy machine, and never reached if all works


def eventually(condition: Callable[[], Any]) -> Any:
    """Wait until a condition holds, and return its value."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.01)
    return found


class Gate:
    """A wrapper of a method that records its batches, and waits while a test blocks it."""

    def __init__(self, method: Any) -> None:
        self._method = method
        self._open = threading.Event()
        self._open.set()
        self._permits = threading.Semaphore(0)
        self.batches: list[list[str]] = []  # in the order in which they started
        self.poison: str | None = None  # a text that raises an error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def hold(self) -> None:
        self._open.clear()

    def let(self, batches: int) -> None:
        """Let this many batches through."""
        self._permits.release(batches)

    def release(self) -> None:
        self._open.set()

    def _enter(self, texts: list[str]) -> None:
        self.batches.append(list(texts))
        while not self._open.wait(0.005) and not self._permits.acquire(blocking=False):
            pass
        if self.poison in texts:
            raise RuntimeError(f"cannot bear {self.poison}")

    def scores(self, texts: list[str], own_ids: Any = None, embeddings: Any = None) -> Any:
        if embeddings is not None:  # `embed` has recorded the batch
            return self._method.scores(texts, own_ids, embeddings)
        self._enter(texts)
        return self._method.scores(texts, own_ids)

    def embed(self, texts: list[str]) -> Any:
        self._enter(texts)
        return self._method.embed(texts)


def gated(folder: Path) -> tuple[Model, Gate]:
    """Load a model behind a gate."""
    model = denn.load(folder)
    model.method = Gate(model.method)
    return model, model.method


@dataclass
class Inside:
    """A service that runs in a thread."""

    port: int
    model: Model
    gate: Gate
    engine: Engine
    server: uvicorn.Server
    guard: Guard

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, key: str | None = None, **headers: str) -> httpx.Client:
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE)

    def post(self, path: str, json: Any, **options: Any) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json=json, **options)

    def later(self, path: str, json: Any, **options: Any) -> Callable[[], httpx.Response]:
        """Send a POST request from a thread; return a function that waits for the response."""
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(self.post(path, json, **options)))
        thread.start()

        def answer() -> httpx.Response:
            thread.join(PATIENCE)
            return answers[0]

        return answer

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def counted(self, name: str) -> float:
        """Return a metric."""
        with self.client() as client:
            lines = client.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == name)


@contextmanager
def inside(folder: Path, wire: type[Wire] = Wire, **limits: Any) -> Iterator[Inside]:
    """Serve a model from a thread; `limits` are those of `Settings`."""
    model, gate = gated(folder)
    app: Any = make_app(model, Settings(**limits))
    config = uvicorn.Config(app, http=wire, ws="none", log_config=None, access_log=False, timeout_graceful_shutdown=60)
    server = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        eventually(lambda: server.started)
        inner = getattr(app.app, "app", app.app)  # below the middleware that allows other origins
        yield Inside(listening.getsockname()[1], model, gate, inner.state.service.engine, server, app)
    finally:
        gate.release()
        server.should_exit = True
        thread.join(PATIENCE)


def request(path: str, body: bytes = b"", method: str = "POST", *headers: str) -> bytes:
    """Return the raw bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body

"""A real service: `denn serve` in a separate process, with a model trained on the tiny corpus."""

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from inside import PATIENCE


@dataclass
class Running:
    """A running service."""

    url: str
    write_key: str | None
    folder: Path  # of the model
    process: subprocess.Popen
    log: list[str] = field(default_factory=list)  # lines of standard error so far

    def client(self, key: str | None = None, **options) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, **options)

    def writer(self) -> httpx.Client:
        return self.client(self.write_key)


@contextmanager
def serving(folder: Path, *options: str, teach: bool = True) -> Iterator[Running]:
    """Start a service on a free port, and stop it with a signal."""
    command = [sys.executable, "-m", "denn", "serve", str(folder), "--port", "0", *options]
    process = subprocess.Popen(
        command + ["--teach"] * teach, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    reading = []
    try:
        greeting = process.stdout.readline()
        found = re.search(r"at (http://\S+?)/(?:#key=(\S+))?(?: |$)", greeting.strip())
        assert found, greeting + process.stderr.read()
        running = Running(found[1], found[2], folder, process)
        reading.append(threading.Thread(target=lambda: running.log.extend(process.stderr)))
        reading[0].start()
        with running.client() as client:
            assert client.get("/health").status_code == 200  # it is already listening, and responds when it is ready
        yield running
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.stdout.close()
            if reading:
                reading[0].join()
            process.stderr.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need a separate process as slow."""
    for item in items:
        if {"service", "serving"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def served_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tiny model whose datastore may change."""
    folder = tmp_path_factory.mktemp("served") / "tiny"
    shutil.copytree(tiny_model, folder)
    return folder


@pytest.fixture(scope="session")
def service(served_model: Path) -> Iterator[Running]:
    """One service for all tests of a process; each test removes what it added."""
    with serving(served_model) as running:
        yield running


@pytest.fixture(scope="session", name="serving")
def ways_to_serve():
    """Start services with other options or models; see `serving`."""
    return serving

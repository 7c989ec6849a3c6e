"""Run a task on the workers of a Ray cluster, each with its own model.

The rows of the Ray dataset are descriptions of partitions. A worker reads its partition and writes the result itself,
so texts never pass through Ray, and the unit that Ray retries is the unit that appears as a whole in the output.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from denn.batch.engines import ATTEMPTS, Done, Engine, attempt
from denn.batch.tasks import Task
from denn.errors import BatchError, ConfigError, DennError, MissingExtraError

log = logging.getLogger(__name__)

DIED = f"its worker died {ATTEMPTS} times, for example because it ran out of memory"
NEVER_LOADED = f"every worker died {ATTEMPTS} times while loading the model, for example because it ran out of memory"
CONNECT_SECONDS = 10.0
CPUS_PER_WORKER = 4  # if the number of workers is not given
# No usage statistics, and messages of its processes in its own log files only.
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}


@contextmanager
def connected(address: str | None = None, workers: int | None = None) -> Iterator[Engine]:
    """Connect to a Ray cluster, or start one on this machine, and yield an engine that uses it."""
    address = address or os.environ.get("RAY_ADDRESS")
    ray = import_ray()
    _check(address)
    level = logging.DEBUG if log.isEnabledFor(logging.DEBUG) else logging.ERROR
    with redirect_stdout(_Log()):  # Ray prints messages about its processes to stdout
        try:
            with _silent():
                ray.init(address or "local", include_dashboard=False, log_to_driver=False, logging_level=level)
        except (ConnectionError, TimeoutError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            reason = (str(error).splitlines() or ["?"])[0]
            what = f"connect to Ray at {address}" if address else "start Ray on this machine"
            raise ConfigError(f"Cannot {what} ({reason}).") from error
        try:
            logging.getLogger("ray.data").setLevel(level)
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            share = _share(ray.cluster_resources(), workers, nodes)
            yield lambda task, partitions: _run(ray, task, partitions, **share)
        finally:
            ray.shutdown()


def _check(address: str | None) -> None:
    """Raise if an address cannot be used; Ray itself would wait for minutes, or for ever."""
    host, _, port = (address or "").rpartition(":")
    if "//" in host:
        raise ConfigError(
            f"Got {address}, expected an address such as 10.0.0.5:6379. Run the command on a machine of the cluster, "
            "so that it sees the same files as the workers."
        )
    if not (host and port.isdigit()):  # none, or a word such as auto
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"Cannot connect to Ray at {address} ({error}). Check the address.") from error


@contextmanager
def _silent() -> Iterator[None]:
    """Drop what Ray's native code writes to stderr while it starts."""
    sys.stderr.flush()
    stderr = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def import_ray() -> Any:
    """Return the package; raise a MissingExtraError if it is not installed."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import_module("ray.data")
        return import_module("ray")
    except ImportError as error:
        raise MissingExtraError("The engine ray", "ray", "ray") from error


def _share(cluster: dict[str, float], workers: int | None, nodes: Sequence[dict[str, float]] = ()) -> dict[str, Any]:
    """Divide the CPUs and GPUs of a cluster among the workers: by default one per GPU, or per CPUS_PER_WORKER.

    A worker gets no more than the largest node has, because Ray would wait for ever for a larger one.
    """
    cpus, gpus = cluster.get("CPU", 0.0), cluster.get("GPU", 0.0)
    if not cpus:
        raise ConfigError("The Ray cluster has no CPUs for workers. Start a node with CPUs.")
    count = workers or int(gpus) or max(1, int(cpus) // CPUS_PER_WORKER)
    each = min(cpus / count, max((node.get("CPU", 0.0) for node in nodes), default=cpus))
    return {"workers": count, "num_cpus": each if each < 1 else int(each), "num_gpus": min(1.0, gpus / count)}


def _run(
    ray: Any, task: Task, partitions: Sequence[Any], workers: int, num_cpus: float, num_gpus: float
) -> Iterator[Done]:
    """Yield the outcome of each partition."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    workers = min(workers, len(partitions))
    starts = ray.remote(Starts).options(num_cpus=0).remote(ATTEMPTS * workers)
    described = [{"partition": pickle.dumps(pair)} for pair in enumerate(partitions)]
    outcomes = ray.data.from_items(described, override_num_blocks=len(described)).map_batches(
        Worker,
        fn_constructor_args=(pickle.dumps(task), starts),
        batch_size=1,
        # One partition per worker at a time: a worker that dies takes no other partition with it.
        compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
    )
    try:
        for row in outcomes.iter_rows():
            yield pickle.loads(row["done"])
    except ray.exceptions.RayError as error:
        log.debug("Ray failed", exc_info=True)
        reason = (str(error).strip().splitlines() or ["no message"])[-1]
        raise BatchError(f"Ray stopped: {type(error).__name__} ({reason.rstrip('.')}).") from error


class Starts:
    """Counts what workers begin, because Ray replaces dead ones without end."""

    def __init__(self, most_loads: int) -> None:
        self._partitions: Counter[int] = Counter()
        self._loads, self._most_loads = 0, most_loads

    def partition(self, number: int) -> int:
        """Count the start of a partition and return how many there were."""
        self._partitions[number] += 1
        return self._partitions[number]

    def load(self) -> bool:
        """Count an attempt to load the model, and return whether to make it: not if too many in a row have failed."""
        self._loads += 1
        return self._loads <= self._most_loads

    def loaded(self) -> None:
        """Note that a worker has loaded the model."""
        self._loads = 0


class Worker:
    """A process of the cluster with one model."""

    def __init__(self, task: bytes, starts: Any) -> None:
        self._open, self._starts, self._error = ExitStack(), starts, ""
        if not import_ray().get(starts.load.remote()):
            self._error = NEVER_LOADED
            return
        try:
            self._work = self._open.enter_context(pickle.loads(task).opened())
        except Exception as error:  # raised here, it would reach the driver without its message
            self._error = str(error) if isinstance(error, DennError) else f"{type(error).__name__}: {error}"
        starts.loaded.remote()

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[bytes]]:
        """Process the partition in a batch of one."""
        number, partition = pickle.loads(batch["partition"][0])
        starts = import_ray().get(self._starts.partition.remote(number))
        if self._error:
            done = Done(number, error=self._error, is_fatal=True)
        elif starts > ATTEMPTS:
            done = Done(number, error=DIED)
        else:
            done = replace(attempt(self._work, number, partition), deaths=starts - 1)
        return {"done": [pickle.dumps(done)]}


class _Log(io.TextIOBase):
    """Sends what is printed to the log, for --verbose."""

    def write(self, text: str) -> int:
        if line := text.strip():
            log.debug(line)
        return len(text)

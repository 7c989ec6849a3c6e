"""Batches of texts from several requests, computed in one thread."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from denn.errors import DennError
from denn.model import Model
from denn.service import rates
from denn.service.problems import Busy
from denn.service.settings import Settings
from denn.service.telemetry import Telemetry
from denn.stopwatch import measured

Compute = Callable[[Model, list[str], list[str | None]], Any]  # model, texts and their own ids → scores or embeddings
Finish = Callable[[Any, int, int], Any]  # these and the range of one job's texts → the job's result

CHARACTERS_PER_TOKEN = 4
CHARACTERS_READ = 200  # characters that the word witness reads in about the time of one encoder token
TRIM = 20.0  # seconds between returns of freed memory to the system


@dataclass
class _Job:
    """Texts of one request that fit into one batch."""

    model: Model  # the same for the whole request
    texts: list[str]
    own_ids: list[str | None]  # the stored document of each text itself, excluded from its evidence
    weight: int  # approximate number of tokens
    finish: Finish
    future: asyncio.Future[Any]
    arrived: float = field(default_factory=time.perf_counter)


class Batching:
    """The texts of all requests in progress: admits them, and computes them in batches of limited size."""

    def __init__(self, model: Model, settings: Settings, telemetry: Telemetry) -> None:
        self._settings, self._telemetry = settings, telemetry
        self._longest = int(model.card.parameters.get("max_length", 512))
        self._least = self._least_weight(model)
        self._waiting: dict[Compute, deque[_Job]] = {}
        self._admitted = 0  # texts of unanswered requests
        self._rate = 50.0  # recent texts per second
        self._trimmed = time.monotonic()
        self._wake = asyncio.Event()
        self._computing = ThreadPoolExecutor(1, "denn-model")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start processing, inside a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, deadline: float) -> None:
        """Finish accepted requests until the deadline, then stop the thread."""
        while self._admitted and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        if self._task is not None:
            self._task.cancel()
        await asyncio.to_thread(self._computing.shutdown, cancel_futures=True)

    @property
    def admitted(self) -> int:
        """The number of texts queued or in progress."""
        return self._admitted

    @contextmanager
    def room(self, count: int) -> Iterator[None]:
        """Admit the texts of a request; raise Busy if the queue is full."""
        if (
            self._admitted and self._admitted + count > self._settings.queue
        ):  # a request of any size is accepted if no other waits
            self._telemetry.refused.inc()
            raise Busy(
                f"The queue is full: {self._admitted:,} of {self._settings.queue:,} texts. Try again later.",
                after=self._admitted / self._rate,
            )
        rates.charge(count)
        self._admitted += count
        self._telemetry.waiting.set(self._admitted)
        try:
            yield
        finally:
            self._admitted -= count
            self._telemetry.waiting.set(self._admitted)

    def parts(self, texts: Sequence[str]) -> Iterator[list[str]]:
        """Split the texts of a request into parts that fit into a batch; other requests may run in between."""
        part: list[str] = []
        total = 0
        for text in texts:
            if part and total + self._weight(text) > self._settings.batch_tokens:
                yield part
                part, total = [], 0
            part.append(text)
            total += self._weight(text)
        if part:
            yield part

    async def run(
        self, model: Model, kind: Compute, texts: list[str], finish: Finish, own_ids: list[str | None] | None = None
    ) -> Any:
        """Compute a part of a request and return its result; cancelled requests are skipped."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(kind, deque()).append(
            _Job(model, texts, own_ids or [None] * len(texts), sum(map(self._weight, texts)), finish, future)
        )
        self._wake.set()
        return await future

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._settings.gather:
                await asyncio.sleep(self._settings.gather)
            while any(self._waiting.values()):
                for kind, queue in list(self._waiting.items()):  # alternate, so that neither kind blocks the other
                    await self._next_batch(kind, queue)

    async def _next_batch(self, kind: Compute, queue: deque[_Job]) -> None:
        """Compute a batch; nothing refers to its jobs afterwards, so that a model that was replaced can be freed."""
        loop = asyncio.get_running_loop()
        if jobs := self._take(queue):
            await loop.run_in_executor(self._computing, self._compute, kind, jobs, loop)

    def _take(self, queue: deque[_Job]) -> list[_Job]:
        """Take the jobs of the next batch in order of arrival; all use the same model."""
        jobs: list[_Job] = []
        total = 0
        while queue and (not jobs or total + queue[0].weight <= self._settings.batch_tokens):
            if jobs and queue[0].model is not jobs[0].model:
                break
            job = queue.popleft()
            if not job.future.done():
                jobs.append(job)
                total += job.weight
        return jobs

    def _compute(self, kind: Compute, jobs: list[_Job], loop: asyncio.AbstractEventLoop) -> None:
        """Process a batch; if it fails, process each job alone, so that one bad text fails only its own request."""
        begun = time.perf_counter()
        texts = [text for job in jobs for text in job.texts]
        self._telemetry.queued(begun - job.arrived for job in jobs)
        try:
            with measured() as laps:
                found, end = kind(jobs[0].model, texts, [id for job in jobs for id in job.own_ids]), 0
            self._telemetry.parts(laps)
            for job in jobs:
                begin, end = end, end + len(job.texts)
                _answer(loop, job, job.finish(found, begin, end))
        except Exception as error:  # the request gets any error of a method, and this thread keeps running
            if len(jobs) > 1:
                for job in jobs:
                    if not job.future.done():
                        self._compute(kind, [job], loop)
                return
            loop.call_soon_threadsafe(_fail, jobs[0].future, error)
        with suppress(DennError):  # the datastore may be unavailable; the next batch tries again
            self._least = self._least_weight(jobs[0].model)  # there may be new labels
        if time.monotonic() - self._trimmed > TRIM:
            _give_back()
            self._trimmed = time.monotonic()
        seconds = time.perf_counter() - begun
        self._rate += 0.2 * (len(texts) / seconds - self._rate)
        self._telemetry.batch(len(texts), seconds)

    def _weight(self, text: str) -> int:
        """Return the approximate cost in tokens: the encoder truncates a text, the word witness reads all of it."""
        tokens = min(len(text) // CHARACTERS_PER_TOKEN + 1, self._longest)
        return max(self._least, tokens + len(text) // CHARACTERS_READ)

    def _least_weight(self, model: Model) -> int:
        """Return the minimum weight of a text, so that the scores of a batch fit into memory."""
        return self._settings.batch_tokens // model.batch()


def _give_back() -> None:
    """Return freed memory to the system, because glibc keeps the fragments that batches of varying sizes leave."""
    with suppress(AttributeError, OSError, TypeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def _answer(loop: asyncio.AbstractEventLoop, job: _Job, result: Any) -> None:
    loop.call_soon_threadsafe(_set, job.future, result)


def _set(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)

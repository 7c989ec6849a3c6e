"""One model for many requests: texts of several requests share batches, and no prediction waits for a write."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from denn.errors import DennError
from denn.model import Model
from denn.prediction_types import Prediction, Scores
from denn.service.probe import Probe
from denn.service.problems import Busy
from denn.service.settings import Settings
from denn.service.telemetry import Telemetry
from denn.service.threads import BriefThreads
from denn.types import Document

if TYPE_CHECKING:
    from torch import Tensor

Result = TypeVar("Result")
LongRead: TypeAlias = Literal["map", "filter", "list"]
Compute = Callable[[Model, list[str]], Any]  # model and texts → scores or embeddings
Finish = Callable[[Any, int, int], Any]  # these and the range of one job's texts → the job's result

CHARACTERS_PER_TOKEN = 4
CHARACTERS_READ = 200  # characters that the word witness reads in about the time of one encoder token
READERS = 4  # concurrent short reads of the datastore
LONG_READS = 2  # long reads per kind: one running, which may use a whole core, and one waiting
ESTIMATES = (1.0, 0.1)  # time limit for estimating thresholds: seconds at once, and share of all prediction time
TRIM = 20.0  # seconds between returns of freed memory to the system


@dataclass(frozen=True)
class DecisionOptions:
    """Decision options of a request."""

    threshold: float | None = None
    thresholds: tuple[tuple[str, float], ...] = ()  # for single labels; these override the others
    per_label: bool = False
    min_labels: int = 0
    evidence: int = 10


@dataclass(frozen=True)
class Decided:
    """A prediction with the thresholds behind it."""

    prediction: Prediction
    thresholds: tuple[float, ...]  # in the order of the scores


@dataclass
class _Job:
    """Texts of one request that fit into one batch."""

    model: Model  # the same for the whole request
    texts: list[str]
    weight: int  # approximate number of tokens
    finish: Finish
    future: asyncio.Future[Any]


class Engine:
    """Compute batches in one thread, and read and write the datastore in short-lived threads."""

    def __init__(self, model: Model, settings: Settings, telemetry: Telemetry) -> None:
        self.model, self._settings, self._telemetry = model, settings, telemetry
        self._longest = int(model.card.parameters.get("max_length", 512))
        self._least = self._least_weight()
        self._waiting: dict[Compute, deque[_Job]] = {_scores: deque(), _vectors: deque()}
        self._admitted = 0  # texts of unanswered requests
        self._rate = 50.0  # recent texts per second
        self._trimmed = time.monotonic()
        self._wake = asyncio.Event()
        self._computing = ThreadPoolExecutor(1, "denn-model")
        self._writing = BriefThreads(1, "denn-write")
        self._reading = BriefThreads(READERS, "denn-read")
        self._retiring = BriefThreads(1, "denn-retire")
        self._reading_long = {kind: BriefThreads(1, f"denn-{kind}") for kind in get_args(LongRead)}
        self._long_reads: Counter[LongRead] = Counter()
        store = model.method.store
        self.probe = None if store is None else Probe(lambda: len(store))
        model.defer_estimates(*ESTIMATES)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start processing, inside a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        if self.probe is not None:
            self.probe.start()

    async def stop(self) -> None:
        """Finish accepted requests within the time limit, then stop the threads."""
        deadline = time.monotonic() + self._settings.stop_seconds
        while self._admitted and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        if self._task is not None:
            self._task.cancel()
        await asyncio.to_thread(self._computing.shutdown, cancel_futures=True)
        if self.probe is not None:
            await self.probe.stop()
        for threads in (self._writing, self._reading, self._retiring, *self._reading_long.values()):
            await threads.rest()

    async def switch(self, model: Model) -> None:
        """Use another model from the next request on; it must share the datastore of the current one."""
        model.defer_estimates(*ESTIMATES)
        old, self.model = self.model, model
        await self._retiring.run(old.retire)  # once the requests in progress are answered

    @property
    def waiting(self) -> int:
        """The number of texts queued or in progress."""
        return self._admitted

    async def predict(self, texts: Sequence[str], options: DecisionOptions) -> list[Decided]:
        """Tag texts, all with the same model; raise Busy if the queue is full."""
        model = self.model

        def finish(scores: Scores, begin: int, end: int) -> list[Decided]:
            return _decide(model, scores.rows(begin, end), options)

        with self._room(len(texts)):
            return [one for part in self._parts(texts) for one in await self._job(model, _scores, part, finish)]

    async def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the (n,d) embeddings of texts; raise Busy if the queue is full."""
        import torch

        with self._room(len(texts)):
            parts = [await self._job(self.model, _vectors, part, _rows) for part in self._parts(texts)]
        return torch.cat(parts)

    async def add(self, documents: Sequence[Document], source: str) -> list[str]:
        """Add documents to the datastore; they are on disk when this returns."""
        store = self.model.store
        vectors = await self.embed([document.text for document in documents])
        return await self.write(lambda: store.add(documents, vectors, source=source))

    async def write(self, work: Callable[[], Result]) -> Result:
        """Change the datastore, one change at a time; a started change finishes even if the client disconnects."""
        return await self._writing.run(work)

    async def read(self, work: Callable[[], Result]) -> Result:
        """Run a short read of the datastore."""
        return await self._reading.run(work)

    async def read_long(self, kind: LongRead, work: Callable[[], Result]) -> Result:
        """Run a long read in a separate thread, apart from short reads; raise Busy if another of its kind waits."""
        if self._long_reads[kind] >= LONG_READS:
            self._telemetry.refused.inc()
            raise Busy("Too many large reads of the datastore are in progress. Try again later.", after=1)
        self._long_reads[kind] += 1
        try:
            return await self._reading_long[kind].run(work)
        finally:
            self._long_reads[kind] -= 1

    @contextmanager
    def _room(self, count: int) -> Iterator[None]:
        if (
            self._admitted and self._admitted + count > self._settings.queue
        ):  # a request of any size is accepted if no other waits
            self._telemetry.refused.inc()
            raise Busy(
                f"The queue is full: {self._admitted:,} of {self._settings.queue:,} texts. Try again later.",
                after=self._admitted / self._rate,
            )
        self._admitted += count
        self._telemetry.waiting.set(self._admitted)
        try:
            yield
        finally:
            self._admitted -= count
            self._telemetry.waiting.set(self._admitted)

    def _least_weight(self) -> int:
        """Return the minimum weight of a text, so that the scores of a batch fit into memory."""
        return self._settings.batch_tokens // self.model.batch()

    def _weight(self, text: str) -> int:
        """Return the approximate cost in tokens: the encoder truncates a text, the word witness reads all of it."""
        tokens = min(len(text) // CHARACTERS_PER_TOKEN + 1, self._longest)
        return max(self._least, tokens + len(text) // CHARACTERS_READ)

    def _parts(self, texts: Sequence[str]) -> Iterator[list[str]]:
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

    async def _job(self, model: Model, kind: Compute, texts: list[str], finish: Finish) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[kind].append(_Job(model, texts, sum(map(self._weight, texts)), finish, future))
        self._wake.set()
        return await future  # cancelled with the request; the job is then skipped

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._settings.gather:
                await asyncio.sleep(self._settings.gather)
            while any(self._waiting.values()):
                for kind, queue in self._waiting.items():  # alternate, so that neither kind blocks the other
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
        try:
            found, end = kind(jobs[0].model, texts), 0
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
            self._least = self._least_weight()  # there may be new labels
        if time.monotonic() - self._trimmed > TRIM:
            _give_back()
            self._trimmed = time.monotonic()
        seconds = time.perf_counter() - begun
        self._rate += 0.2 * (len(texts) / seconds - self._rate)
        self._telemetry.batch(len(texts), seconds)


def _scores(model: Model, texts: list[str]) -> Scores:
    return model.score(texts)


def _vectors(model: Model, texts: list[str]) -> Tensor:
    return model.embed(texts)


def _decide(model: Model, scores: Scores, options: DecisionOptions) -> list[Decided]:
    import torch

    used = model.decision_thresholds(scores, options.threshold, options.per_label)
    if options.thresholds:
        column = {name: place for place, name in enumerate(scores.names)}
        used = used.clone() if isinstance(used, torch.Tensor) else torch.full((len(scores.names),), used)
        for label, own in options.thresholds:
            if label in column:
                used[column[label]] = own
    decided = []
    names = {} if isinstance(used, float) else {name: place for place, name in enumerate(scores.names)}
    for prediction in model.decide(scores, used, options.min_labels, options.evidence):
        shown = [used if isinstance(used, float) else float(used[names[label]]) for label in prediction.scores]
        decided.append(Decided(prediction, tuple(shown)))
    return decided


def _give_back() -> None:
    """Return freed memory to the system, because glibc keeps the fragments that batches of varying sizes leave."""
    with suppress(AttributeError, OSError, TypeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def _rows(vectors: Tensor, begin: int, end: int) -> Tensor:
    return vectors[begin:end]


def _answer(loop: asyncio.AbstractEventLoop, job: _Job, result: Any) -> None:
    loop.call_soon_threadsafe(_set, job.future, result)


def _set(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)

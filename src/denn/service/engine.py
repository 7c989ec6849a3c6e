"""One model for many requests: texts of several are scored together, and nobody waits for a write."""

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
from denn.service.probe import Probe
from denn.service.problems import Busy
from denn.service.settings import Settings
from denn.service.telemetry import Telemetry
from denn.service.threads import BriefThreads
from denn.types import Document, Prediction, Scores

if TYPE_CHECKING:
    from torch import Tensor

Result = TypeVar("Result")
LongRead: TypeAlias = Literal["map", "filter", "list"]
Compute = Callable[[Model, list[str]], Any]  # model and texts → scores or embeddings of all texts
Finish = Callable[[Any, int, int], Any]  # that, and the places of one job's texts → the job's result

CHARACTERS_PER_TOKEN = 4
CHARACTERS_READ = 200  # by witnesses of words, in about the time that the encoder takes for a token
READERS = 4  # at once, of what reads little of the datastore
LONG_READS = 2  # of one kind, of what may read much of it: one at work, which may take a whole core, and one that waits
ESTIMATES = (1.0, 0.1)  # seconds at a stretch, and the share of the time, that predictions spend on thresholds
TRIM = 20.0  # seconds after which freed memory is given back


@dataclass(frozen=True)
class DecisionOptions:
    """How a request wants its texts decided."""

    threshold: float | None = None
    thresholds: tuple[tuple[str, float], ...] = ()  # for some labels, before the others
    per_label: bool = False
    min_labels: int = 0
    evidence: int = 10


@dataclass(frozen=True)
class Decided:
    """A prediction with the thresholds it was decided by."""

    prediction: Prediction
    thresholds: tuple[float, ...]  # in the order of its scores


@dataclass
class _Job:
    """Texts of one request that go into one batch."""

    model: Model  # answers the whole request
    texts: list[str]
    weight: int  # tokens, about
    finish: Finish
    future: asyncio.Future[Any]


class Engine:
    """Computes in one thread, batch after batch; writes and reads of the datastore have brief ones of their own."""

    def __init__(self, model: Model, settings: Settings, telemetry: Telemetry) -> None:
        self.model, self._settings, self._telemetry = model, settings, telemetry
        self._longest = int(model.card.parameters.get("max_length", 512))
        self._least = self._least_weight()
        self._waiting: dict[Compute, deque[_Job]] = {_scores: deque(), _vectors: deque()}
        self._admitted = 0  # texts whose requests have no answer yet
        self._rate = 50.0  # texts a second, as last seen
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
        """Begin to work, inside a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        if self.probe is not None:
            self.probe.start()

    async def stop(self) -> None:
        """Finish what was accepted, within the time for that, then end the threads."""
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
        """Answer with another model from the next request on; it must share the datastore of the current one."""
        model.defer_estimates(*ESTIMATES)
        old, self.model = self.model, model
        await self._retiring.run(old.retire)  # it still answers requests under way

    @property
    def waiting(self) -> int:
        """How many texts wait or are worked on."""
        return self._admitted

    async def predict(self, texts: Sequence[str], options: DecisionOptions) -> list[Decided]:
        """Tag texts, all by the same model; Busy where too many wait."""
        model = self.model

        def finish(scores: Scores, begin: int, end: int) -> list[Decided]:
            return _decide(model, scores.rows(begin, end), options)

        with self._room(len(texts)):
            return [one for part in self._parts(texts) for one in await self._job(model, _scores, part, finish)]

    async def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the (n,d) embeddings of texts, between the batches of others."""
        import torch

        with self._room(len(texts)):
            parts = [await self._job(self.model, _vectors, part, _rows) for part in self._parts(texts)]
        return torch.cat(parts)

    async def add(self, documents: Sequence[Document], source: str) -> list[str]:
        """Put documents into the datastore; they are on the disk when this returns."""
        store = self.model.store
        vectors = await self.embed([document.text for document in documents])
        return await self.write(lambda: store.add(documents, vectors, source=source))

    async def write(self, work: Callable[[], Result]) -> Result:
        """Change the datastore, one change at a time; a change that has begun is finished though nobody waits."""
        return await self._writing.run(work)

    async def read(self, work: Callable[[], Result]) -> Result:
        """Read little from the datastore."""
        return await self._reading.run(work)

    async def read_long(self, kind: LongRead, work: Callable[[], Result]) -> Result:
        """Read what may be much, in a thread that short reads need not wait for; Busy where others of its kind wait."""
        if self._long_reads[kind] >= LONG_READS:
            self._telemetry.refused.inc()
            raise Busy("Too many others ask for much of the datastore. Try again.", after=1)
        self._long_reads[kind] += 1
        try:
            return await self._reading_long[kind].run(work)
        finally:
            self._long_reads[kind] -= 1

    @contextmanager
    def _room(self, count: int) -> Iterator[None]:
        if self._admitted and self._admitted + count > self._settings.queue:  # alone, any request is let in
            self._telemetry.refused.inc()
            raise Busy(
                f"{self._admitted} texts are waiting, and the limit is {self._settings.queue}. Try again later.",
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
        """Return what a text weighs at least, so that no batch has more of them than there is memory for scores."""
        return self._settings.batch_tokens // self.model.batch()

    def _weight(self, text: str) -> int:
        """Return about how many tokens take as long: the encoder reads no more than its longest text, words all."""
        tokens = min(len(text) // CHARACTERS_PER_TOKEN + 1, self._longest)
        return max(self._least, tokens + len(text) // CHARACTERS_READ)

    def _parts(self, texts: Sequence[str]) -> Iterator[list[str]]:
        """Cut the texts of a request so that each part fits into a batch; others come in between two parts."""
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
        return await future  # cancelled with the request: then the job is passed over

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._settings.gather:
                await asyncio.sleep(self._settings.gather)
            while any(self._waiting.values()):
                for kind, queue in self._waiting.items():  # in turns, so that neither holds up the other
                    if jobs := self._take(queue):
                        await loop.run_in_executor(self._computing, self._compute, kind, jobs, loop)

    def _take(self, queue: deque[_Job]) -> list[_Job]:
        """Take the jobs of a batch, first come, first served; all are for one model."""
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
        """Work on a batch; where it fails, on each job alone, so that nobody suffers from another's texts."""
        begun = time.perf_counter()
        texts = [text for job in jobs for text in job.texts]
        try:
            found, end = kind(jobs[0].model, texts), 0
            for job in jobs:
                begin, end = end, end + len(job.texts)
                _answer(loop, job, job.finish(found, begin, end))
        except Exception as error:  # whatever a method raises is the answer to its request, and this thread goes on
            if len(jobs) > 1:
                for job in jobs:
                    if not job.future.done():
                        self._compute(kind, [job], loop)
                return
            loop.call_soon_threadsafe(_fail, jobs[0].future, error)
        with suppress(DennError):  # the datastore may be away; then the next batch looks
            self._least = self._least_weight()  # labels may have come
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
    """Return freed memory to the system: glibc keeps what batches of ever other sizes leave between blocks in use."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
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

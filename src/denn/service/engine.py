"""One model for many requests: texts of several requests share batches, and no prediction waits for a write."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, get_args

from denn.datastore import Datastore
from denn.model import Model
from denn.prediction_types import Prediction, Scores
from denn.service.batching import Batching
from denn.service.probe import Probe
from denn.service.problems import Busy
from denn.service.settings import Settings
from denn.service.telemetry import Telemetry
from denn.service.threads import BriefThreads
from denn.stopwatch import lap
from denn.types import Document

if TYPE_CHECKING:
    from torch import Tensor

    from denn.analysis.queue import Queued

Result = TypeVar("Result")
LongRead: TypeAlias = Literal["map", "filter", "list"]

READERS = 4  # concurrent short reads of the datastore
LONG_READS = 2  # long reads per kind: one running, which may use a whole core, and one waiting
ESTIMATES = (1.0, 0.1)  # time limit for estimating thresholds: seconds at once, and share of all prediction time


@dataclass(frozen=True)
class DecisionOptions:
    """Decision options of a request."""

    threshold: float | None = None
    thresholds: tuple[tuple[str, float], ...] = ()  # for single labels; these override the others
    per_label: bool = False
    min_labels: int = 0
    evidence: int = 10

    @property
    def as_tuned(self) -> bool:
        """Whether the model decides alone."""
        return self == DecisionOptions(evidence=self.evidence)


@dataclass(frozen=True)
class Decided:
    """A prediction with the thresholds behind it."""

    prediction: Prediction
    thresholds: tuple[float, ...]  # in the order of the scores


class Engine:
    """Compute batches in one thread, and read and write the datastore in short-lived threads."""

    def __init__(self, model: Model, settings: Settings, telemetry: Telemetry) -> None:
        self.model, self._settings, self._telemetry = model, settings, telemetry
        self._batching = Batching(model, settings, telemetry)
        self._writing = BriefThreads(1, "denn-write")
        self._reading = BriefThreads(READERS, "denn-read")
        self._retiring = BriefThreads(1, "denn-retire")
        self._reading_long = {kind: BriefThreads(1, f"denn-{kind}") for kind in get_args(LongRead)}
        self._long_reads: Counter[LongRead] = Counter()
        store = model.method.store
        self.probe = None if store is None else Probe(partial(_count, store))
        model.defer_estimates(*ESTIMATES)

    def start(self) -> None:
        """Start processing, inside a running event loop."""
        self._batching.start()
        if self.probe is not None:
            self.probe.start()

    async def stop(self) -> None:
        """Finish accepted requests within the time limit, then stop the threads."""
        await self._batching.stop(time.monotonic() + self._settings.stop_seconds)
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
        return self._batching.admitted

    async def predict(self, texts: Sequence[str], options: DecisionOptions, own_id: str | None = None) -> list[Decided]:
        """Tag texts, all with the same model; raise Busy if the queue is full.

        A single text may be that of the stored document `own_id`, which is then excluded from its evidence.
        """
        model = self.model
        own: list[str | None] | None = [own_id] if own_id else None

        def finish(scores: Scores, begin: int, end: int) -> list[Decided]:
            return _decide(model, scores.rows(begin, end), options)

        with self._batching.room(len(texts)):
            return [
                one
                for part in self._batching.parts(texts)
                for one in await self._batching.run(model, _scores, part, finish, own)
            ]

    async def rank(self, given: Sequence[Document], count: int) -> list[Queued]:
        """Rank texts by how much their labels would teach the model; see `Model.queue`."""
        import torch

        from denn.analysis.queue import Candidate, distinct, judged, own_ids, ranked

        model, pool, vectors = self.model, list[Candidate](), list["Tensor"]()
        documents = list(distinct(given))
        own = await self.read(lambda: own_ids(model.store, documents))
        with self._batching.room(len(documents)):
            for part in self._batching.parts([document.text for document in documents]):
                rows = slice(len(pool), len(pool) + len(part))

                def finish(
                    found: tuple[Scores, Tensor], begin: int, end: int, rows: slice = rows
                ) -> tuple[list[Candidate], Tensor]:
                    scores, embeddings = found
                    return list(judged(model, documents[rows], scores.rows(begin, end))), embeddings[begin:end]

                candidates, embeddings = await self._batching.run(model, _scores_and_vectors, part, finish, own[rows])
                pool += candidates
                vectors.append(embeddings)
        return ranked(pool, torch.cat(vectors), count)

    async def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the (n,d) embeddings of texts; raise Busy if the queue is full."""
        import torch

        with self._batching.room(len(texts)):
            parts = [
                await self._batching.run(self.model, _vectors, part, _rows) for part in self._batching.parts(texts)
            ]
        return torch.cat(parts)

    async def add(self, documents: Sequence[Document], source: str) -> tuple[list[str], int | None]:
        """Add documents to the datastore; they are on disk when this returns. Return their ids and see `change`."""
        store = self.model.store
        vectors = await self.embed([document.text for document in documents])
        return await self.change(lambda: store.add(documents, vectors, source=source))

    async def change(self, work: Callable[[], Result]) -> tuple[Result, int | None]:
        """Like `write`, and also return the number of the change in the history; None if the work changed nothing."""
        store = self.model.store

        def numbered() -> tuple[Result, int | None]:
            before = store.last_change  # only this thread changes the datastore through this object
            result = work()
            return result, None if store.last_change == before else store.last_change

        return await self.write(numbered)

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


def _count(store: Datastore) -> int:
    """Count the documents of a datastore; raise an error if it cannot be used any more."""
    store.refresh()
    return len(store)


def _scores(model: Model, texts: list[str], own_ids: list[str | None]) -> Scores:
    return model.score(texts, own_ids) if any(own_ids) else model.score(texts)


def _scores_and_vectors(model: Model, texts: list[str], own_ids: list[str | None]) -> tuple[Scores, Tensor]:
    vectors = _vectors(model, texts, own_ids)
    return model.score(texts, own_ids if any(own_ids) else None, vectors), vectors


def _vectors(model: Model, texts: list[str], _: list[str | None]) -> Tensor:
    with lap("embedding"):
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


def _rows(vectors: Tensor, begin: int, end: int) -> Tensor:
    return vectors[begin:end]

"""Prometheus metrics, statistics of recent predictions without their texts, and JSON logs."""

from __future__ import annotations

import json
import logging
import math
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from denn.prediction_types import Prediction
from denn.service.drift import Drifted, RecentLabels

RECENT = 200  # number of predictions to remember
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1)  # the first is the limit below which a text is unfamiliar
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Seen:
    """Statistics of a prediction."""

    time: str
    labels: int  # number of labels chosen
    best: float  # highest score


class Telemetry:
    """The metrics of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "denn_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "denn_request_seconds",
            "Time from the first byte of a request to its response.",
            ("route",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.waiting = Gauge("denn_waiting_texts", "Texts queued or in progress.", registry=self.registry)
        self.refused = Counter("denn_refused", "Requests refused because of load.", registry=self.registry)
        self.texts = Counter("denn_texts", "Texts scored or embedded.", registry=self.registry)
        self.batches = Histogram("denn_batch_texts", "Texts per batch.", buckets=SIZES, registry=self.registry)
        self.computing = Counter("denn_computing_seconds", "Time spent computing batches.", registry=self.registry)
        self.predictions = Counter("denn_predictions", "Texts tagged.", registry=self.registry)
        self.empty = Counter("denn_empty_predictions", "Texts tagged without a label.", registry=self.registry)
        self.unfamiliar = Counter(
            "denn_unfamiliar_predictions", "Texts unlike any document in the datastore.", registry=self.registry
        )
        self.familiarity = Histogram(
            "denn_familiarity", "Familiarity of tagged texts, from 0 to 1.", buckets=SHARES, registry=self.registry
        )
        self.queue = self._seconds("denn_queue_seconds", "Time that texts of a request wait before their batch starts.")
        self.embedding = self._seconds("denn_embedding_seconds", "Time to embed the texts of a batch.")
        self.search = self._seconds("denn_search_seconds", "Time to find the neighbours of a batch in the datastore.")
        self.drift = Gauge("denn_label_drift", "Distance of recent from training labels.", registry=self.registry)
        self.drift_by_chance = Gauge(
            "denn_label_drift_by_chance", "Distance to expect if the labels have not changed.", registry=self.registry
        )
        self.drift_texts = Gauge("denn_label_drift_texts", "Recent predictions compared.", registry=self.registry)
        self.recent_labels = RecentLabels()
        self.documents = Gauge("denn_documents", "Documents in the datastore.", registry=self.registry)
        self.refits = Counter("denn_refits", "Refits run by this service.", ("outcome",), registry=self.registry)
        for outcome in ("done", "kept", "failed"):
            self.refits.labels(outcome)
        self._recent: deque[Seen] = deque(maxlen=RECENT)
        self._total = self._empty = 0

    def _seconds(self, name: str, description: str) -> Histogram:
        return Histogram(name, description, buckets=SECONDS, registry=self.registry)

    def queued(self, waits: Iterable[float]) -> None:
        """Count the seconds that parts of requests waited for their batch."""
        for wait in waits:
            self.queue.observe(wait)

    def parts(self, seconds: Mapping[str, float]) -> None:
        """Count the seconds of the parts of a batch."""
        if "embedding" in seconds:
            self.embedding.observe(seconds["embedding"])
        if "search" in seconds:
            self.search.observe(seconds["search"])

    def compared(self, found: Drifted) -> None:
        """Set the metrics of drift."""
        self.drift.set(math.nan if found.drift is None else found.drift)
        self.drift_by_chance.set(math.nan if found.by_chance is None else found.by_chance)
        self.drift_texts.set(found.texts)

    def batch(self, texts: int, seconds: float) -> None:
        """Count a batch."""
        self.texts.inc(texts)
        self.batches.observe(texts)
        self.computing.inc(seconds)

    def predicted(self, predictions: Sequence[Prediction], as_tuned: bool = True) -> None:
        """Count predictions and remember their statistics; `as_tuned`: their labels were decided by the model alone."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        for one in predictions:
            best = max(one.scores.values(), default=0.0)
            self._recent.append(Seen(now, len(one.labels), best))
            if as_tuned:  # other thresholds would look like drift, and can assign any number of labels
                self.recent_labels.add(one.labels)
            if one.familiarity is not None:
                self.familiarity.observe(one.familiarity)
        empty = sum(not one.labels for one in predictions)
        self._total, self._empty = self._total + len(predictions), self._empty + empty
        self.predictions.inc(len(predictions))
        self.empty.inc(empty)
        self.unfamiliar.inc(sum(one.unfamiliar for one in predictions))

    def recent(self) -> dict[str, Any]:
        """Return statistics of recent predictions, oldest first."""
        return {"total": self._total, "empty": self._empty, "predictions": [asdict(seen) for seen in self._recent]}

    def exposition(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)


class JsonLines(logging.Formatter):
    """Format a log record and its fields as one line of JSON, without error messages, which may contain texts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "message": record.getMessage().partition("\n")[0]}
        line |= getattr(record, "facts", {})
        if record.exc_info and record.exc_info[1]:
            line["trace"] = "".join(trace(record.exc_info[1]))
        return json.dumps(line, ensure_ascii=False)


def trace(error: BaseException | None) -> Iterator[str]:
    """Yield the tracebacks and types of an error and its causes, without their messages."""
    while error is not None:
        yield from traceback.format_tb(error.__traceback__)
        yield f"{type(error).__qualname__}\n"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)

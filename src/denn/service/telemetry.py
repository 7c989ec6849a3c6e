"""What a service tells of itself: Prometheus metrics, recent predictions without their texts, logs in JSON."""

from __future__ import annotations

import json
import logging
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from denn.types import Prediction

RECENT = 200  # predictions that are remembered
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Seen:
    """What is remembered of a prediction."""

    time: str
    labels: int  # how many were chosen
    best: float  # the highest score


class Telemetry:
    """The counters of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "denn_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "denn_request_seconds",
            "From the first byte to the answer.",
            ("route",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.waiting = Gauge("denn_waiting_texts", "Texts that wait or are worked on.", registry=self.registry)
        self.refused = Counter("denn_refused", "Requests refused as too much is to do.", registry=self.registry)
        self.texts = Counter("denn_texts", "Texts scored or embedded.", registry=self.registry)
        self.batches = Histogram("denn_batch_texts", "Texts worked on together.", buckets=SIZES, registry=self.registry)
        self.computing = Counter("denn_computing_seconds", "Time spent on batches.", registry=self.registry)
        self.predictions = Counter("denn_predictions", "Texts tagged.", registry=self.registry)
        self.empty = Counter("denn_empty_predictions", "Texts that got no label.", registry=self.registry)
        self.unfamiliar = Counter(
            "denn_unfamiliar_predictions", "Texts unlike anything in the datastore.", registry=self.registry
        )
        self.documents = Gauge("denn_documents", "Documents in the datastore.", registry=self.registry)
        self.refits = Counter("denn_refits", "Refits run by this service.", ("outcome",), registry=self.registry)
        for outcome in ("done", "kept", "failed"):
            self.refits.labels(outcome)
        self._recent: deque[Seen] = deque(maxlen=RECENT)
        self._total = self._empty = 0

    def batch(self, texts: int, seconds: float) -> None:
        """Count a batch."""
        self.texts.inc(texts)
        self.batches.observe(texts)
        self.computing.inc(seconds)

    def predicted(self, predictions: Sequence[Prediction]) -> None:
        """Count predictions, and remember the last ones."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        for one in predictions:
            best = max(one.scores.values(), default=0.0)
            self._recent.append(Seen(now, len(one.labels), best))
        empty = sum(not one.labels for one in predictions)
        self._total, self._empty = self._total + len(predictions), self._empty + empty
        self.predictions.inc(len(predictions))
        self.empty.inc(empty)
        self.unfamiliar.inc(sum(one.unfamiliar for one in predictions))

    def recent(self) -> dict[str, Any]:
        """Return what is remembered, oldest first."""
        return {"total": self._total, "empty": self._empty, "predictions": [asdict(seen) for seen in self._recent]}

    def exposition(self) -> bytes:
        """Return all metrics as Prometheus reads them."""
        return generate_latest(self.registry)


class JsonLines(logging.Formatter):
    """Writes a record as one line of JSON, with the fields that it was given; no words of errors, which hold texts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "message": record.getMessage().partition("\n")[0]}
        line |= getattr(record, "facts", {})
        if record.exc_info and record.exc_info[1]:
            line["trace"] = "".join(trace(record.exc_info[1]))
        return json.dumps(line, ensure_ascii=False)


def trace(error: BaseException | None) -> Iterator[str]:
    """Say where an error and those behind it came from, and of which kind they are."""
    while error is not None:
        yield from traceback.format_tb(error.__traceback__)
        yield f"{type(error).__qualname__}\n"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)

"""What the routes share: the running service, who may write, the sizes of texts, predictions as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from denn.model import Model
from denn.service.engine import Decided, Engine, Wish
from denn.service.labels import OrderedLabels
from denn.service.problems import Refusal
from denn.service.projection import Projection
from denn.service.schemas import Options
from denn.service.settings import Settings
from denn.service.telemetry import Telemetry
from denn.types import Document, Neighbour


@dataclass(frozen=True)
class Service:
    """Everything that answers requests."""

    model: Model
    settings: Settings
    telemetry: Telemetry
    engine: Engine
    projection: Projection
    labels: OrderedLabels

    @property
    def learns(self) -> bool:
        """Whether the model keeps a datastore."""
        return self.model.method.store is not None


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@dataclass(frozen=True)
class Author:
    """Who changes the datastore."""

    key: str  # its name

    def source(self, claimed: str) -> str:
        """Return what the history says of a change: the key, which nobody can choose, and what its owner added."""
        return f"{self.key}: {claimed}" if claimed else self.key


async def _may_write(request: Request) -> Author:
    settings: Settings = request.app.state.service.settings
    if not settings.keys.has("write"):
        raise Refusal(403, "Writing is off. Start the service with a write key to turn it on.")
    if not request.state.may_write:
        raise Refusal(401, "This needs a key that may write. Send it as 'Authorization: Bearer KEY'.", BEARER)
    return Author(request.state.key)


ANSWER_CHARACTERS = 10_000_000  # of stored texts in one answer
BEARER = {"WWW-Authenticate": "Bearer"}
Running = Annotated[Service, Depends(_service)]
Writer = Annotated[Author, Depends(_may_write)]


def check_texts(settings: Settings, texts: Sequence[str]) -> None:
    """Refuse too many texts, and those that are too long."""
    if len(texts) > settings.texts:
        raise Refusal(413, f"Got {len(texts)} texts, expected at most {settings.texts}. Send them in several requests.")
    for number, text in enumerate(texts, 1):
        if len(text) > settings.characters:
            raise Refusal(
                413,
                f"Text {number} has {len(text):,} characters, expected at most {settings.characters:,}. Cut it.",
            )


def check_answer(texts: Iterable[str], characters: int = ANSWER_CHARACTERS) -> None:
    """Refuse to send stored texts that are too long together; each counts with at most so many characters."""
    if sum(min(len(text), characters) for text in texts) > ANSWER_CHARACTERS:
        raise Refusal(413, f"The answer would hold more than {ANSWER_CHARACTERS:,} characters of text. Ask for less.")


def wish(options: Options) -> Wish:
    """Return what the engine needs of a request's options."""
    return Wish(
        options.threshold,
        tuple(options.thresholds.items()),
        options.per_label,
        options.min_labels,
        options.evidence,
    )


def prediction_json(decided: Decided, options: Options) -> dict[str, Any]:
    """Write a prediction as the API shows it."""
    one = decided.prediction
    labels = one.labels[: options.top_k]
    chosen = set(labels)
    return {
        "labels": list(labels),
        "scores": [
            {"label": label, "score": score, "threshold": cut, "chosen": label in chosen}
            for (label, score), cut in zip(one.scores.items(), decided.cuts, strict=True)
        ],
        "confidence": one.confidence,
        "neighbours": [neighbour_json(neighbour, options.text_characters) for neighbour in one.neighbours],
    }


def neighbour_json(neighbour: Neighbour, characters: int) -> dict[str, Any]:
    """Write a neighbour as the API shows it."""
    return {
        "id": neighbour.id,
        "similarity": neighbour.similarity,
        "labels": list(neighbour.labels),
        "text": neighbour.text[:characters],
    }


def document_json(document: Document) -> dict[str, Any]:
    """Write a stored document as the API shows it."""
    return {"id": document.id, "text": document.text, "labels": list(document.labels)}

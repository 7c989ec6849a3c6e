"""The running service as routes see it, and the check for write access."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from denn.model import Model
from denn.service.engine import Engine
from denn.service.labels import OrderedLabels
from denn.service.problems import Refusal
from denn.service.projection import Projection
from denn.service.refits import Refits
from denn.service.settings import Settings
from denn.service.telemetry import Telemetry

BEARER = {"WWW-Authenticate": "Bearer"}


@dataclass(frozen=True)
class Service:
    """The parts of a running service."""

    settings: Settings
    telemetry: Telemetry
    engine: Engine
    projection: Projection
    labels: OrderedLabels
    refits: Refits

    @property
    def model(self) -> Model:
        """The current model; a refit may replace it between two requests."""
        return self.engine.model

    @property
    def learns(self) -> bool:
        """Whether the model has a datastore."""
        return self.model.method.store is not None


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@dataclass(frozen=True)
class Author:
    """The author of a change to the datastore."""

    key: str  # name of the key

    def source(self, claimed: str) -> str:
        """Return the source to record in the history: the key, which a client cannot forge, and the client's text."""
        return f"{self.key}: {claimed}" if claimed else self.key


async def _may_write(request: Request) -> Author:
    settings: Settings = request.app.state.service.settings
    if not settings.keys.has("write"):
        raise Refusal(403, "Editing is off. Start the service with --teach or a write key to enable it.")
    if not request.state.may_write:
        raise Refusal(401, "A key with write access is required. Send it as 'Authorization: Bearer KEY'.", BEARER)
    return Author(request.state.key)


Running = Annotated[Service, Depends(_service)]
Writer = Annotated[Author, Depends(_may_write)]

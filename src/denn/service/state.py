"""The running service as routes see it, and the rights that they need."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from denn.model import Model
from denn.service.audits import Audits
from denn.service.engine import Engine
from denn.service.key_ring import Access, KeyRing
from denn.service.keys import BETWEEN, Right
from denn.service.labels import OrderedLabels
from denn.service.problems import Refusal
from denn.service.projection import Projection
from denn.service.refits import Refits
from denn.service.settings import Settings
from denn.service.telemetry import Telemetry

RIGHT = "right"  # attribute of a dependency, from which the API's description names the right that a route needs


@dataclass(frozen=True)
class Service:
    """The parts of a running service."""

    settings: Settings
    telemetry: Telemetry
    engine: Engine
    projection: Projection
    labels: OrderedLabels
    refits: Refits
    audits: Audits
    ring: KeyRing
    draining: threading.Event  # set when the service is about to stop

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
        return f"{self.key}{BETWEEN}{claimed}" if claimed else self.key


def _needs(right: Right) -> Callable[[Request], Coroutine[Any, Any, Author]]:
    """Return a dependency that lets only keys with this right pass."""

    async def author(request: Request) -> Author:
        service: Service = request.app.state.service
        if not service.ring.keys.allow_teaching:
            raise Refusal(403, "Editing is off. Start the service with --teach or a key for teaching to enable it.")
        access: Access = request.state.access
        access.check(right)
        return Author(access.name)

    setattr(author, RIGHT, right)
    return author


Running = Annotated[Service, Depends(_service)]
Writer = Annotated[Author, Depends(_needs("teach"))]  # adds, changes or removes documents
Administrator = Annotated[Author, Depends(_needs("administer"))]  # changes the model, or sees the keys

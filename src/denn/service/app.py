"""The ASGI application: routes, errors, limits and the page for one model."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, Response
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles

from denn import __version__
from denn.model import Model
from denn.service import (
    annif,
    problems,
    routes_audit,
    routes_documents,
    routes_examples,
    routes_facts,
    routes_labels,
    routes_predict,
    routes_refit,
)
from denn.service.audits import Audits
from denn.service.engine import Engine
from denn.service.guard import OPEN, Guard
from denn.service.key_ring import KeyRing
from denn.service.labels import OrderedLabels
from denn.service.projection import Projection
from denn.service.refits import Refits
from denn.service.renewal import Renewal
from denn.service.settings import Settings
from denn.service.state import RIGHT, Service
from denn.service.telemetry import Telemetry

log = logging.getLogger("denn.service")

PAGE = Path(__file__).parent / "page"
ROUTES = (
    routes_predict,
    routes_examples,
    routes_documents,
    routes_facts,
    routes_labels,
    routes_audit,
    routes_refit,
    annif,
)


def make_app(model: Model, settings: Settings, draining: threading.Event | None = None) -> Guard:
    """Return an ASGI application that serves a model and closes it on shutdown; it is not ready while `draining`."""
    telemetry, ring, draining = Telemetry(), KeyRing(settings.keys, settings.key_file), draining or threading.Event()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        nonlocal model
        engine = Engine(model, settings, telemetry)
        del model  # a refit may replace the model; no reference may keep the old one in memory
        engine.start()
        renewal = Renewal(engine)
        renewal.start()
        refits = Refits(engine, renewal, settings, telemetry)
        refits.start()
        audits = Audits(engine, settings)
        service = Service(settings, telemetry, engine, Projection(), OrderedLabels(), refits, audits, ring, draining)
        app.state.service = service
        ring.start()
        begun = time.monotonic()
        log.info("started", extra={"facts": _facts(service)})
        try:
            yield
        finally:
            await ring.stop()
            await audits.stop()
            await refits.stop()
            await renewal.stop()
            await engine.stop()
            await asyncio.to_thread(engine.model.close)
            log.info("stopped", extra={"facts": {"model": settings.name, "seconds": round(time.monotonic() - begun)}})

    app = FastAPI(
        title="denn",
        version=__version__,
        description="Tag texts with multiple labels, and show the evidence for each label.",
        docs_url=None,  # FastAPI's pages load code from a CDN; page/docs.html does not
        redoc_url=None,
        lifespan=lifespan,
    )
    problems.install(app)
    for routes in ROUTES:
        app.include_router(routes.router)
    app.mount("/page", StaticFiles(directory=PAGE), name="page")
    app.add_api_route("/", _page, include_in_schema=False)
    app.add_api_route("/docs", _documentation, include_in_schema=False)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return Guard(app, settings, telemetry, ring, draining)


def _facts(service: Service) -> dict[str, Any]:
    """Return what the log says about a service that starts."""
    model, keys = service.model, service.ring.keys.known
    return {
        "version": __version__,
        "model": service.settings.name,
        "method": model.card.method,
        "created": model.card.created,
        "refitted": (model.card.refitted or {}).get("time"),
        "labels": len(model.labels),
        "keys": sum(key.state() == "active" for key in keys),
    }


def _right(route: APIRoute) -> dict[str, str]:
    """Return the right that a route needs as an extension of its description; nothing if it needs no key."""
    declared = [getattr(one.call, RIGHT, None) for one in route.dependant.dependencies]
    right = next((one for one in declared if one), None if OPEN.fullmatch(route.path_format) else "read")
    return {} if right is None else {"x-right": right}


async def _page() -> Response:
    return FileResponse(PAGE / "index.html", media_type="text/html")


async def _documentation() -> Response:
    return FileResponse(PAGE / "docs.html", media_type="text/html")


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description, with the problem format and the keys."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            openapi_version="3.1.0",
        )
        parts = schema["components"]
        problem = problems.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        parts["schemas"] |= problem.pop("$defs", {}) | {"Problem": problem}
        for unused in ("HTTPValidationError", "ValidationError"):
            parts["schemas"].pop(unused, None)
        parts["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "basic": {"type": "http", "scheme": "basic", "description": "Any user name, with the key as the password."},
            "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
        schema["security"] = [{}, *({name: []} for name in parts["securitySchemes"])]
        for route in (route for routes in ROUTES for route in routes.router.routes):
            if isinstance(route, APIRoute) and route.include_in_schema:
                for method in route.methods or ():
                    schema["paths"][route.path_format][method.lower()] |= _right(route)
        app.openapi_schema = schema
    return app.openapi_schema

"""The ASGI application: routes, errors, limits and the page for one model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles

from denn import __version__
from denn.model import Model
from denn.service import annif, problems, routes_documents, routes_facts, routes_predict, routes_refit
from denn.service.engine import Engine
from denn.service.guard import Guard
from denn.service.labels import OrderedLabels
from denn.service.projection import Projection
from denn.service.refits import Refits
from denn.service.renewal import Renewal
from denn.service.settings import Settings
from denn.service.state import Service
from denn.service.telemetry import Telemetry

PAGE = Path(__file__).parent / "page"


def make_app(model: Model, settings: Settings) -> Guard:
    """Return an ASGI application that serves a model and closes it on shutdown."""
    telemetry = Telemetry()

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
        app.state.service = Service(settings, telemetry, engine, Projection(), OrderedLabels(), refits)
        try:
            yield
        finally:
            await refits.stop()
            await renewal.stop()
            await engine.stop()
            await asyncio.to_thread(engine.model.close)

    app = FastAPI(
        title="denn",
        version=__version__,
        description="Tag texts with multiple labels, and show the evidence for each label.",
        docs_url=None,  # both pages load code from a CDN
        redoc_url=None,
        lifespan=lifespan,
    )
    problems.install(app)
    for routes in (routes_predict, routes_documents, routes_facts, routes_refit, annif):
        app.include_router(routes.router)
    app.mount("/page", StaticFiles(directory=PAGE), name="page")
    app.add_api_route("/", _page, include_in_schema=False)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return Guard(app, settings, telemetry)


async def _page() -> Response:
    return FileResponse(PAGE / "index.html", media_type="text/html")


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
        app.openapi_schema = schema
    return app.openapi_schema

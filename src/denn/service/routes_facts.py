"""Routes on the model and the service: labels, model card, map, recent predictions, health, metrics."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from denn import __version__
from denn.service.answers import check_texts, names_json
from denn.service.key_ring import Access
from denn.service.labels import Order
from denn.service.problems import UNAVAILABLE, Busy, responses
from denn.service.request_schemas import LARGEST, PlaceRequest
from denn.service.response_schemas import LabelsOut, MapOut, PlaceOut
from denn.service.state import Administrator, Running
from denn.service.status_schemas import DriftOut, KeysOut, ModelOut, RecentOut, SessionOut, StatusOut
from denn.vocabulary import Vocabulary

router = APIRouter()

POINTS = 2000  # default size of the map


@router.get("/v1/session", response_model=SessionOut, responses=responses(), tags=["service"])
async def session(request: Request, service: Running) -> Response:
    """Describe the service and the permissions of the key."""
    settings, card = service.settings, service.model.card
    access: Access = request.state.access
    limits = {"body_bytes": settings.body_bytes, "texts": settings.texts, "characters": settings.characters}
    return JSONResponse(
        {
            "version": __version__,
            "model": settings.name,
            "method": card.method,
            "key": access.name or None,
            "rights": list(access.rights),
            "expires": access.key.expires.isoformat() if access.key and access.key.expires else None,
            "why_not": access.why_not or None,
            "may_read": "read" in access.rights,
            "may_write": "teach" in access.rights,
            "writes": "on" if service.ring.keys.allow_teaching else "off",
            "learns": service.learns,
            "neighbours": service.learns,
            "k": card.parameters.get("k"),
            "limits": limits,
        }
    )


@router.get("/v1/labels", response_model=LabelsOut, responses=responses(), tags=["model"])
async def labels(
    service: Running,
    query: Annotated[str, Query(max_length=1000, description="Labels that contain this, ignoring case.")] = "",
    sort: Order = "documents",
    offset: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    limit: Annotated[int, Query(ge=0, le=1000)] = 100,
) -> Response:
    """List all labels, including those added since training, with document counts and thresholds."""

    model, names = service.model, service.model.vocabulary
    decides = model.card.thresholds["final"].decides

    def look() -> dict[str, Any]:
        counts = model.label_counts()
        found = service.labels.find(counts, query, sort, names)
        shown = found[offset : offset + limit]
        rows = [
            _named(names, name) | {"documents": counts[name], "trained": name in model.labels, "threshold": threshold}
            for name, threshold in zip(shown, model.label_thresholds(shown), strict=True)
        ]
        return {"total": len(found), "decides": decides, "labels": rows} | names_json(names, shown)

    return JSONResponse(await service.engine.read(look))


def _named(names: Vocabulary, label: str) -> dict[str, str]:
    described = names.description(label)
    return (
        {"label": label}
        | ({"name": names.name(label)} if names else {})
        | ({"description": described} if described else {})
    )


@router.get("/v1/model", response_model=ModelOut, responses=responses(), tags=["model"])
async def model(service: Running) -> Response:
    """Show the model card."""
    model = service.model
    card = model.card
    body = card.model_dump(mode="json", exclude={"digests", "thresholds", "format", "learnt", "validation"})
    body["corpus"].pop("label_counts", None)
    encoder = card.parameters.get("encoder")
    if encoder is not None:
        body["parameters"]["encoder"] = encoder = Path(encoder).name if Path(encoder).is_absolute() else encoder

    def look() -> tuple[int, dict[str, object] | None]:
        return len(model.label_counts()), model.store.info() if service.learns else None

    labels, store = await service.engine.read(look)
    return JSONResponse(
        body
        | {
            "name": service.settings.name,
            "encoder": encoder,
            "labels": labels,
            "thresholds": {part: tuned.overall for part, tuned in card.thresholds.items()},
            "decides": card.thresholds["final"].decides,
            "store": store and {key: value for key, value in store.items() if key not in ("path", "address", "place")},
        }
    )


@router.get("/v1/map", response_model=MapOut, responses=responses(409), tags=["model"])
async def map_(service: Running, limit: Annotated[int, Query(ge=1, le=10_000)] = POINTS) -> Response:
    """Show the documents of the datastore in two dimensions, or a sample if there are many."""
    store, vocabulary = service.model.store, service.model.vocabulary

    def look() -> dict[str, Any]:
        drawn = service.projection.map(store, limit)
        points = [{"id": p.id, "x": p.x, "y": p.y, "labels": list(p.labels)} for p in drawn.points]
        facts = {"labels": list(drawn.labels), "documents": drawn.documents, "share": drawn.share}
        return {"points": points} | facts | names_json(vocabulary, {one for p in drawn.points for one in p.labels})

    return JSONResponse(await service.engine.read_long("map", look))


@router.post("/v1/map/place", response_model=PlaceOut, responses=responses(409), tags=["model"])
async def place(body: PlaceRequest, service: Running) -> Response:
    """Return the coordinates of a text on the most recent map."""
    check_texts(service.settings, [body.text])
    store = service.model.store
    vector = await service.engine.embed([body.text])
    drawn = service.projection.last
    if drawn is None:
        drawn = await service.engine.read_long("map", lambda: service.projection.map(store, POINTS))
    x, y = await service.engine.read(lambda: drawn.place(vector))
    return JSONResponse({"x": x, "y": y})


@router.get("/v1/recent", response_model=RecentOut, responses=responses(), tags=["service"])
async def recent(service: Running) -> Response:
    """Show statistics of recent predictions, without their texts."""
    return JSONResponse(service.telemetry.recent())


@router.get("/v1/drift", response_model=DriftOut, responses=responses(), tags=["service"])
async def drift(service: Running, limit: Annotated[int, Query(ge=0, le=1000)] = 10) -> Response:
    """Compare the labels of recent predictions with those of the training documents."""
    model, recent = service.model, service.telemetry.recent_labels.counts()

    def look() -> dict[str, Any]:
        trained = model.training_counts()
        movers = recent.movers(trained, limit)
        rows = [
            _named(model.vocabulary, one.label) | {"trained": one.trained, "predicted": one.predicted} for one in movers
        ]
        return asdict(recent.drifted(trained)) | {"movers": rows}

    return JSONResponse(await service.engine.read(look))


@router.get("/v1/keys", response_model=KeysOut, responses=responses(), tags=["service"])
async def keys(service: Running, _: Administrator) -> Response:
    """List the keys with their rights, limits and states, without anything secret."""
    known = sorted(service.ring.keys.known, key=lambda key: key.shown)
    return JSONResponse({"keys": [key.facts() for key in known]})


@router.get("/health", response_model=StatusOut, responses=responses(), tags=["service"])
async def health() -> Response:
    """Report that the process is running."""
    return JSONResponse({"status": "ok"})


@router.get("/ready", response_model=StatusOut, responses=responses(), tags=["service"])
async def ready(service: Running) -> Response:
    """Report whether to send requests: the service is not stopping, its queue has room, its datastore responds."""
    if service.draining.is_set():
        raise Busy("The service is about to stop. Send requests to another replica.", after=5)
    if service.engine.waiting >= service.settings.queue:
        raise Busy("The queue is full. Try again later.", after=1)
    if service.engine.probe is not None and not service.engine.probe.well:
        raise Busy(UNAVAILABLE, after=5)
    return JSONResponse({"status": "ready"})


@router.get("/metrics", response_class=PlainTextResponse, responses=responses(), tags=["service"])
async def metrics(service: Running) -> Response:
    """Return the Prometheus metrics."""
    if service.engine.probe is not None:
        service.telemetry.documents.set(service.engine.probe.documents)
    model, recent = service.model, service.telemetry.recent_labels.counts()
    # Not with the reads of the datastore, which may be slow.
    service.telemetry.compared(await asyncio.to_thread(lambda: recent.drifted(model.training_counts())))
    return Response(service.telemetry.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

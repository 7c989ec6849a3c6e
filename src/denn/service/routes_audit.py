"""Routes that start an audit and list the documents whose labels look wrong."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response

from denn.service.answers import check_answer, documents_json, names_json, neighbour_json
from denn.service.problems import responses
from denn.service.request_schemas import AuditRequest
from denn.service.state import Running, Service, Writer
from denn.service.status_schemas import AuditOut

router = APIRouter(prefix="/v1", tags=["datastore"])

CHARACTERS = 300  # of each neighbour's text


@router.get("/audit", response_model=AuditOut, responses=responses(409))
async def show(service: Running, limit: Annotated[int, Query(ge=0, le=100)] = 20) -> Response:
    """Show the running or last audit, and the documents that are still to be decided, the most suspicious first.

    A document is decided when its labels change or are confirmed: `PATCH /v1/documents/{id}`.
    """
    return JSONResponse(await _status(service, limit))


@router.post("/audit", status_code=202, response_model=AuditOut, responses=responses(409))
async def begin(service: Running, author: Writer, body: AuditRequest | None = None) -> Response:
    """Audit the datastore in the background."""
    service.audits.begin(author.key, (body or AuditRequest()).count)
    return JSONResponse(await _status(service, 0), 202)


async def _status(service: Service, limit: int) -> dict[str, Any]:
    model, audits = service.model, service.audits
    store, vocabulary = model.store, model.vocabulary
    if not audits.has_suspects:
        return asdict(audits.last) | {"pending": 0, "suspects": []} | names_json(vocabulary, ())

    def look() -> dict[str, Any]:
        pending = audits.pending(model)
        ids = [id for one in pending[:limit] for id in (one["id"], *(near for near, _ in one["neighbours"]))]
        documents = {one.id: one for one in store.get(list(dict.fromkeys(ids)), missing_ok=True)}
        check_answer(documents[one["id"]].text for one in pending[:limit] if one["id"] in documents)
        rows = [
            suspect
            | {
                "text": documents[suspect["id"]].text,
                "neighbours": [
                    neighbour_json(documents[id], similarity, CHARACTERS)
                    for id, similarity in suspect["neighbours"]
                    if id in documents
                ],
            }
            for suspect in pending[:limit]
            if suspect["id"] in documents
        ]
        names = documents_json(list(documents.values()), vocabulary)
        if vocabulary:
            suspected = (doubt["label"] for one in rows for doubt in (*one["add"], *one["drop"]))
            names["names"] |= vocabulary.names(suspected)
        return {"pending": len(pending), "suspects": rows} | names

    return asdict(audits.last) | await service.engine.read_long("filter", look)

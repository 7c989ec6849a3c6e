"""Routes that rename and merge labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from denn.errors import UnknownError
from denn.service.problems import Refusal, responses
from denn.service.request_schemas import MergeRequest, RenameRequest
from denn.service.response_schemas import MergedOut, RenamedOut
from denn.service.state import Administrator, Running, Service

router = APIRouter(prefix="/v1/labels", tags=["model"])


@router.post("/rename", response_model=RenamedOut, responses=responses(404, 409))
async def rename(body: RenameRequest, service: Running, author: Administrator) -> Response:
    """Give a label another name; its id, its documents and all predictions stay the same."""
    model = service.model

    def change() -> dict[str, Any]:
        label = model.vocabulary.id(body.label)
        before = model.vocabulary.name(label)
        model.rename_label(label, body.name)
        documents = model.label_counts().get(label, 0)
        return {
            "label": label,
            "before": before,
            "name": body.name,
            "documents": documents,
            "names": {label: body.name},
        }

    return JSONResponse(await _changed(service, change))


@router.post("/merge", response_model=MergedOut, responses=responses(404, 409))
async def merge(body: MergeRequest, service: Running, author: Administrator) -> Response:
    """Give all documents of some labels another label instead, as one change of the history.

    Until a refit, the other label gets the highest score of all of them, and they are no longer predicted.
    """
    model = service.model

    def change() -> dict[str, Any]:
        source = author.source(body.source)
        documents = model.merge_labels(body.labels, body.into, source=source)
        merged = model.vocabulary.id(body.labels[0])
        return {"documents": documents, "change": model.vocabulary.replaced_in(merged) or None}

    return JSONResponse(await _changed(service, change))


async def _changed(service: Service, change: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Change labels; raise a refusal if there is no such label."""
    try:
        return await service.engine.write(change)
    except UnknownError:
        raise Refusal(404, "There is no such label. GET /v1/labels lists the labels.") from None

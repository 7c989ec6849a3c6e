"""Routes that start a refit and show its progress."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from denn.service.problems import responses
from denn.service.request_schemas import RefitRequest
from denn.service.state import Administrator, Running
from denn.service.status_schemas import RefitOut

router = APIRouter(prefix="/v1", tags=["model"])


@router.get("/refit", response_model=RefitOut, responses=responses(409))
async def status(service: Running) -> Response:
    """Show the running refit, or the outcome of the last one."""
    return JSONResponse(await service.refits.status())


@router.post("/refit", status_code=202, response_model=RefitOut, responses=responses(409))
async def begin(service: Running, author: Administrator, body: RefitRequest | None = None) -> Response:
    """Refit the model in the background; the old model keeps answering until the refit is done."""
    await service.refits.begin(author.key, body is not None and body.force)
    return JSONResponse(await service.refits.status(), 202)

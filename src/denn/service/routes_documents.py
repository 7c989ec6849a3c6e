"""Routes to the datastore: list, get, add, change and remove documents; the history, and undoing."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse, Response
from pydantic import AfterValidator, BeforeValidator
from starlette.convertors import PathConvertor, register_url_convertor

from denn.service.parts import Running, Service, Writer, check_texts, document_json, fetch
from denn.service.problems import responses
from denn.service.schemas import (
    LARGEST,
    AddRequest,
    DocumentOut,
    DocumentsOut,
    HistoryOut,
    Id,
    IdsOut,
    Label,
    PatchRequest,
    PutRequest,
    UndoneOut,
)
from denn.types import Document, Where

router = APIRouter(prefix="/v1", tags=["datastore"])


def _written(time: Any) -> Any:
    if isinstance(time, str) and not re.match(r"\d{4}-", time):  # seconds since 1970 would be taken as well
        raise ValueError("expected a time such as 2026-01-31T23:59:00Z")
    return time


def _in_utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)  # one without a zone is local
    except (OverflowError, ValueError) as error:
        raise ValueError("expected a time of the years 1 to 9999, in UTC") from error


Time = Annotated[datetime, BeforeValidator(_written), AfterValidator(_in_utc)]


class _AnyId(PathConvertor):
    regex = "(?s:.*)"  # line breaks too


register_url_convertor("id", _AnyId())


@router.get("/documents", response_model=DocumentsOut, responses=responses(409))
async def documents(
    service: Running,
    label: Annotated[list[Label], Query(max_length=100, description="With one of these.")] = [],  # noqa: B006
    text: Annotated[str | None, Query(max_length=1000, description="Part of the text, letter for letter.")] = None,
    source: Annotated[str | None, Query(max_length=200, description="Who changed it last.")] = None,
    since: Annotated[Time | None, Query(description="Changed at this time or later.")] = None,
    before: Annotated[Time | None, Query(description="Changed before.")] = None,
    offset: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    limit: Annotated[int, Query(ge=0, le=1000)] = 50,
) -> Response:
    """List stored documents, newest first."""
    store, where = service.model.store, Where(tuple(label), text, source, since, before)

    def look() -> dict[str, Any]:
        ids = store.ids() if where == Where() else store.select(where)
        shown = ids[::-1][offset : offset + limit]
        return {"total": len(ids), "documents": [document_json(one) for one in fetch(store, shown)]}

    return JSONResponse(await service.engine.read(look))


@router.post("/documents", status_code=201, response_model=IdsOut, responses=responses(409), dependencies=[Writer])
async def add(body: AddRequest, service: Running) -> Response:
    """Learn documents, all or none; they are safe when this is answered, and the next prediction knows them."""
    check_texts(service.settings, [document.text for document in body.documents])
    new = [Document(document.text, tuple(document.labels), document.id) for document in body.documents]
    return JSONResponse({"ids": await service.engine.add(new, body.source)}, 201)


@router.get("/documents/{id:id}", response_model=DocumentOut, responses=responses(404, 409))
async def get(id: str, service: Running) -> Response:
    """Show a document."""
    store = service.model.store
    return JSONResponse(document_json((await service.engine.read(lambda: store.get([id])))[0]))


@router.put("/documents/{id:id}", response_model=DocumentOut, responses=responses(409), dependencies=[Writer])
async def put(id: Annotated[Id, Path()], body: PutRequest, service: Running) -> Response:
    """Make or replace a document."""
    check_texts(service.settings, [body.text])
    document = Document(body.text, tuple(body.labels), id)
    await service.engine.add([document], body.source)
    return JSONResponse(document_json(document))


@router.patch("/documents/{id:id}", response_model=DocumentOut, responses=responses(404, 409), dependencies=[Writer])
async def patch(id: str, body: PatchRequest, service: Running) -> Response:
    """Give a document other labels."""
    store = service.model.store

    def change() -> Document:
        store.relabel(id, body.labels, add=body.add, drop=body.drop, source=body.source)
        return store.get([id])[0]

    return JSONResponse(document_json(await service.engine.write(change)))


@router.delete("/documents/{id:id}", status_code=204, responses=responses(404, 409), dependencies=[Writer])
async def delete(id: str, service: Running, forget: bool = False, source: str = "service") -> Response:
    """Remove a document; `forget` takes it out of the history too, for good."""
    store = service.model.store

    def change() -> None:
        store.get([id])  # a forget says nothing of what is not there
        (store.forget if forget else store.remove)(id, source=source[:200])

    await service.engine.write(change)
    return Response(status_code=204)


@router.get("/history", response_model=HistoryOut, responses=responses(409))
async def history(
    service: Running, limit: Annotated[int, Query(ge=0, le=1000)] = 50, id: str | None = None
) -> Response:
    """List the changes of the datastore, newest first; with an id those of that document."""
    store = service.model.store
    found = await service.engine.read(lambda: store.history(limit, id))
    rows = [
        {
            "number": change.number,
            "time": change.time.isoformat(),
            "action": change.action,
            "source": change.source,
            "documents": change.documents,
        }
        for change in found
    ]
    return JSONResponse({"changes": rows})


@router.post("/history/{number}/undo", response_model=UndoneOut, responses=responses(404, 409), dependencies=[Writer])
async def undo(number: Annotated[int, Path(ge=1, le=LARGEST)], service: Running, source: str = "service") -> Response:
    """Bring the documents that a change touched to where they were before."""
    return JSONResponse({"documents": await _undone(service, number, source[:200])})


async def _undone(service: Service, number: int, source: str) -> int:
    store = service.model.store
    return await service.engine.write(lambda: store.undo(number, source=source))

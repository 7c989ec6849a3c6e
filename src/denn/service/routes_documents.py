"""Routes of the datastore: list, get, add, change and remove documents; history and undo."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse, Response
from pydantic import AfterValidator, BeforeValidator
from starlette.convertors import PathConvertor, register_url_convertor

from denn.data.vocabularies import with_ids
from denn.datastore import Datastore
from denn.service.answers import check_answer, check_texts, document_json, documents_json
from denn.service.keys import BETWEEN
from denn.service.problems import Mistake, Refusal, responses
from denn.service.request_schemas import LARGEST, AddRequest, Id, Label, PatchRequest, PutRequest, Source
from denn.service.response_schemas import (
    ChangedDocumentOut,
    DeletedOut,
    DocumentOut,
    DocumentsOut,
    HistoryOut,
    IdsOut,
    UndoneOut,
)
from denn.service.state import Running, Writer
from denn.stores.rules import is_large
from denn.types import Document, Where

router = APIRouter(prefix="/v1", tags=["datastore"])

FEW = 200  # documents that count as a short read
TOGETHER = 50  # documents per read, so that memory stays bounded if the texts are too long


def _written(time: Any) -> Any:
    if isinstance(time, str) and not re.match(r"\d{4}-", time):  # pydantic would also accept seconds since 1970
        raise ValueError("must be a time such as 2026-01-31T23:59:00Z")
    return time


def _in_utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)  # a time without a zone is local
    except (OverflowError, ValueError) as error:
        raise ValueError("must be in the years 1 to 9999, in UTC") from error


Time = Annotated[datetime, BeforeValidator(_written), AfterValidator(_in_utc)]


class _AnyId(PathConvertor):
    regex = "(?s:.*)"  # including line breaks


register_url_convertor("id", _AnyId())


@router.get("/documents", response_model=DocumentsOut, responses=responses(409))
async def documents(
    service: Running,
    label: Annotated[list[Label], Query(max_length=100, description="Documents with any of these labels.")] = [],  # noqa: B006
    text: Annotated[
        str | None,
        Query(min_length=1, max_length=1000, description="Documents whose text contains this, case-sensitive."),
    ] = None,
    source: Annotated[
        str | None,
        Query(min_length=1, max_length=400, description="Documents last changed by this source, as in the history."),
    ] = None,
    since: Annotated[Time | None, Query(description="Documents last changed at this time or later.")] = None,
    before: Annotated[Time | None, Query(description="Documents last changed before this time.")] = None,
    unlabelled: Annotated[bool, Query(description="Documents that have no labels and reject none.")] = False,
    offset: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    limit: Annotated[int, Query(ge=0, le=1000)] = 50,
) -> Response:
    """List stored documents, newest first."""
    store, vocabulary = service.model.store, service.model.vocabulary
    where = Where(vocabulary.ids(label), text, source, since, before, unlabelled=unlabelled)

    def look() -> dict[str, Any]:
        ids = store.ids() if where == Where() else store.select(where)
        shown = _shown(store, ids[::-1][offset : offset + limit])
        rows = [document_json(document) for document in shown]
        return {"total": len(ids), "documents": rows} | documents_json(shown, vocabulary)

    if where != Where(where.labels):
        return JSONResponse(await service.engine.read_long("filter", look))
    if limit > FEW:
        return JSONResponse(await service.engine.read_long("list", look))
    return JSONResponse(await service.engine.read(look))


def _shown(store: Datastore, ids: list[str]) -> list[Document]:
    found: list[Document] = []
    for begin in range(0, len(ids), TOGETHER):
        found += store.get(ids[begin : begin + TOGETHER], missing_ok=True)
        check_answer(document.text for document in found)
    return found


@router.post("/documents", status_code=201, response_model=IdsOut, responses=responses(409))
async def add(body: AddRequest, service: Running, author: Writer) -> Response:
    """Add documents, all or none. They are on disk when this returns, and the next prediction uses them."""
    check_texts(service.settings, [document.text for document in body.documents])
    given = [Document(one.text, tuple(one.labels), one.id, tuple(one.rejected)) for one in body.documents]
    new = with_ids(given, service.model.vocabulary)
    ids, number = await service.engine.add(new, author.source(body.source))
    answer: dict[str, Any] = {"ids": ids, "change": number}
    if warning := service.model.label_warning(label for document in new for label in document.labels):
        answer["warning"] = warning
    return JSONResponse(answer, 201)


@router.get("/documents/{id:id}", response_model=DocumentOut, responses=responses(404, 409))
async def get(id: str, service: Running) -> Response:
    """Show a document."""
    store, vocabulary = service.model.store, service.model.vocabulary
    return JSONResponse(document_json((await service.engine.read(lambda: store.get([id])))[0], vocabulary))


@router.put("/documents/{id:id}", response_model=ChangedDocumentOut, responses=responses(409))
async def put(id: Annotated[Id, Path()], body: PutRequest, service: Running, author: Writer) -> Response:
    """Create or replace a document."""
    check_texts(service.settings, [body.text])
    vocabulary = service.model.vocabulary
    (document,) = with_ids([Document(body.text, tuple(body.labels), id, tuple(body.rejected))], vocabulary)
    _, number = await service.engine.add([document], author.source(body.source))
    return JSONResponse(document_json(document, vocabulary) | {"change": number})


@router.patch("/documents/{id:id}", response_model=ChangedDocumentOut, responses=responses(404, 409))
async def patch(id: str, body: PatchRequest, service: Running, author: Writer) -> Response:
    """Change the labels of a document."""
    store, vocabulary = service.model.store, service.model.vocabulary
    labels = None if body.labels is None else vocabulary.ids(body.labels)
    add, drop, reject = (vocabulary.ids(some) for some in (body.add, body.drop, body.reject))

    def change() -> Document:
        store.relabel(
            id, labels, add=add, drop=drop, reject=reject, confirm=body.confirm, source=author.source(body.source)
        )
        return store.get([id])[0]

    document, number = await service.engine.change(change)
    return JSONResponse(document_json(document, vocabulary) | {"change": number})


@router.delete("/documents/{id:id}", response_model=DeletedOut, responses=responses(404, 409))
async def delete(
    id: str, service: Running, author: Writer, forget: bool = False, source: Annotated[Source, Query()] = ""
) -> Response:
    """Remove a document; `forget` also erases it from the history and the validation documents.

    A document that was removed before can still be forgotten.
    """
    model = service.model
    erase = model.forget if forget else model.remove
    _, number = await service.engine.change(lambda: erase(id, source=author.source(source)))
    return JSONResponse({"change": number})


@router.get("/history", response_model=HistoryOut, responses=responses(409))
async def history(
    service: Running, limit: Annotated[int, Query(ge=0, le=1000)] = 50, id: str | None = None
) -> Response:
    """List the changes of the datastore, or of one document, newest first."""
    store = service.model.store
    found = await service.engine.read(lambda: store.history(limit, id))
    rows = [
        {
            "number": change.number,
            "time": change.time.isoformat(),
            "action": change.action,
            "source": change.source,
            "author": change.source.partition(BETWEEN)[0],
            "documents": change.documents,
            "ids": list(change.ids),
            "undoes": change.undoes,
            "undone": change.undone,
            "undoable": change.undoable,
        }
        for change in found
    ]
    return JSONResponse({"changes": rows})


@router.post("/history/{number}/undo", response_model=UndoneOut, responses=responses(404, 409))
async def undo(
    number: Annotated[int, Path(ge=1, le=LARGEST)],
    service: Running,
    author: Writer,
    source: Annotated[Source, Query()] = "",
    confirm: Annotated[bool, Query(description="Undo the change even if it affects many documents.")] = False,
) -> Response:
    """Revert a change; `confirm` is required if it affects many documents."""
    store = service.model.store

    def change() -> int:
        if not confirm:
            _check_extent(store, number)
        return store.undo(number, source=author.source(source))

    restored, undoing = await service.engine.change(change)
    return JSONResponse({"documents": restored, "change": undoing})


def _check_extent(store: Datastore, number: int) -> None:
    """Refuse to undo a change of many documents, or of a large share of the datastore."""
    newest = store.history(1)
    later = store.history(newest[0].number - number + 1) if newest and newest[0].number >= number else []
    touched = next((change.documents for change in later if change.number == number), 0)
    if touched > 1 and is_large(touched, len(store)):
        raise Refusal(
            409,
            f"Undoing change {number} affects {touched:,} documents; the datastore holds {len(store):,}. "
            "Send confirm=true to proceed.",
            errors=[Mistake(where="query.confirm", message=f"affects {touched:,} documents")],
        )

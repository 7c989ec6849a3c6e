"""The route of documents to try the model on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response

from denn.service.answers import document_json, documents_json
from denn.service.problems import responses
from denn.service.response_schemas import ExamplesOut
from denn.service.state import Running
from denn.types import Document
from denn.validation import some_kept

router = APIRouter(prefix="/v1", tags=["tag"])

READ = 200  # documents to choose from
CHARACTERS = (200, 2000)  # length of a text that is read quickly
LABELS = 3  # more labels do not make a better example


@router.get("/examples", response_model=ExamplesOut, responses=responses())
async def examples(service: Running, limit: Annotated[int, Query(ge=1, le=10)] = 3) -> Response:
    """Show documents to try the model on: held-out documents, or stored ones if the model keeps no others."""
    model, longest = service.model, service.settings.characters

    def look() -> dict[str, Any]:
        kept = some_kept(model.folder, READ) if model.folder else []
        stored = model.store.get(model.store.ids()[:READ], missing_ok=True) if service.learns and not kept else []
        shown = _best((one for one in kept or stored if len(one.text) <= longest), limit)
        rows = [document_json(document) for document in shown]
        return {"held_out": bool(kept), "documents": rows} | documents_json(shown, model.vocabulary)

    return JSONResponse(await service.engine.read(look))


def _best(documents: Iterable[Document], count: int) -> list[Document]:
    """Return the documents that show most: those with several labels and neither short nor long, in their order."""

    def rank(document: Document) -> tuple[bool, int]:
        return not CHARACTERS[0] <= len(document.text) <= CHARACTERS[1], -min(LABELS, len(document.labels))

    return sorted((document for document in documents if document.text.strip()), key=rank)[:count]

"""Routes that tag one text, several texts or a stream, and find neighbours."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from denn.errors import DennError
from denn.service import rates
from denn.service.answers import (
    check_answer,
    check_texts,
    decision_options,
    documents_json,
    names_json,
    neighbour_json,
    prediction_json,
)
from denn.service.key_ring import Access
from denn.service.problems import Busy, Refusal, responses, status_and_sentence
from denn.service.request_schemas import BatchRequest, NeighboursRequest, Options, PredictRequest, QueueRequest, Share
from denn.service.response_schemas import BatchOut, NeighboursOut, PredictionOut, QueueOut
from denn.service.state import Running, Service
from denn.types import Document

router = APIRouter(prefix="/v1", tags=["tag"])

NDJSON = "application/x-ndjson"
FEW = 200  # neighbours that count as a short read
LINES = 32  # lines of a stream per batch
PATIENCE = 0.1  # seconds before a stream retries when the queue is full


@router.post("/predict", response_model=PredictionOut, responses=responses())
async def predict(body: PredictRequest, service: Running) -> Response:
    """Tag one text."""
    check_texts(service.settings, [body.text])
    return JSONResponse((await _predicted(service, [body.text], body, body.id))[0])


@router.post("/predict/batch", response_model=BatchOut, responses=responses())
async def predict_batch(body: BatchRequest, service: Running) -> Response:
    """Tag several texts."""
    check_texts(service.settings, body.texts)
    return JSONResponse({"predictions": await _predicted(service, body.texts, body)})


@router.post(
    "/predict/stream",
    response_class=Response,
    responses=responses()
    | {200: {"content": {NDJSON: {"schema": {"type": "string"}}}, "description": "JSON lines, one per input line."}},
    openapi_extra={"requestBody": {"content": {NDJSON: {"schema": {}}}}},
)
async def predict_stream(
    request: Request,
    service: Running,
    threshold: Annotated[Share | None, Query()] = None,
    per_label: bool = False,
    min_labels: Annotated[int, Query(ge=0, le=100)] = 0,
    top_k: Annotated[int | None, Query(ge=1, le=1000)] = None,
    evidence: Annotated[int, Query(ge=0, le=100)] = 0,
) -> Response:
    """Tag any number of texts.

    Send JSON lines, each with a `text` and optionally an `id`. Each line gets one line in the response; an invalid one
    gets an `error`.
    """
    options = Options(threshold=threshold, per_label=per_label, min_labels=min_labels, top_k=top_k, evidence=evidence)
    lines = enumerate(io.BytesIO(await request.body()), 1)
    return StreamingResponse(_stream(service, request.state.access, lines, options), media_type=NDJSON)


@router.post("/queue", response_model=QueueOut, responses=responses(409))
async def queue(body: QueueRequest, service: Running) -> Response:
    """Rank unlabelled texts by how much the model would learn from their labels."""
    _ = service.model.store  # refuses a model without one
    texts = [one.text for one in body.documents]
    check_texts(service.settings, texts)
    given = [Document(one.text, id=one.id) for one in body.documents]
    found = await service.engine.rank(given, body.count or len(given))
    places = {text: place for place, text in reversed([*enumerate(texts)])}  # of equal texts, the first
    rows = [
        {
            "place": places[one.text],
            "uncertainty": one.uncertainty,
            "nearness": one.nearness,
            "labels": list(one.prediction.labels),
        }
        for one in found
    ]
    labels = {label for one in found for label in one.prediction.labels}
    return JSONResponse({"queue": rows} | names_json(service.model.vocabulary, sorted(labels)))


@router.post("/neighbours", response_model=NeighboursOut, responses=responses(409))
async def neighbours(body: NeighboursRequest, service: Running) -> Response:
    """Find the stored documents nearest to a text."""
    check_texts(service.settings, [body.text])
    store, vocabulary = service.model.store, service.model.vocabulary
    vector = await service.engine.embed([body.text])

    def look() -> dict[str, Any]:
        found = store.search(vector, body.k)
        documents = {document.id: document for document in store.get(found.ids[0], missing_ok=True)}
        check_answer((document.text for document in documents.values()), body.text_characters)
        nearest = zip(found.ids[0], found.similarity[0].tolist(), strict=False)  # similarity may have more columns
        rows = [
            neighbour_json(documents[id], similarity, body.text_characters)
            for id, similarity in nearest
            if id in documents
        ]
        return {"neighbours": rows} | documents_json(list(documents.values()), vocabulary)

    if body.k > FEW:
        return JSONResponse(await service.engine.read_long("list", look))
    return JSONResponse(await service.engine.read(look))


async def _predicted(
    service: Service, texts: Sequence[str], options: Options, own_id: str | None = None
) -> list[dict[str, Any]]:
    deciding = decision_options(options, service.model.vocabulary)
    decided = await service.engine.predict(texts, deciding, own_id)
    service.telemetry.predicted([one.prediction for one in decided], deciding.as_tuned)
    check_answer((near.text for one in decided for near in one.prediction.neighbours), options.text_characters)
    return [prediction_json(one, options) for one in decided]


async def _stream(
    service: Service, access: Access, lines: Iterator[tuple[int, bytes]], options: Options
) -> AsyncIterator[bytes]:
    while some := list(islice(lines, LINES)):
        read = []
        for number, line in some:
            read.append(_read(service, number, line))
            await asyncio.sleep(0)  # long lines may take a while; let other requests run
        good = [line for line in read if "error" not in line]
        try:
            found = iter(await _patiently(service, access, [line.pop("text") for line in good], options))
            answers = [line if "error" in line else line | next(found) for line in read]
        except (DennError, Refusal) as error:
            sentence = error.detail if isinstance(error, Refusal) else status_and_sentence(error)[1]
            answers = [line if "error" in line else line | {"error": sentence} for line in read]
        yield b"".join(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n" for line in answers)


async def _patiently(service: Service, access: Access, texts: Sequence[str], options: Options) -> list[dict[str, Any]]:
    """Tag texts, and retry while the queue is full; raise a refusal if the key ends in the meantime."""
    if not texts:
        return []
    await rates.turn()
    while True:
        service.ring.check_again(access)
        try:
            return await _predicted(service, texts, options)
        except Busy:
            await asyncio.sleep(PATIENCE)


def _read(service: Service, number: int, line: bytes) -> dict[str, Any]:
    """Parse one line of a stream: return its number and id, with the text or an error."""
    found: dict[str, Any] = {"line": number, "id": None}
    if len(line) > service.settings.body_bytes:
        return found | {"error": f"The line is longer than {service.settings.body_bytes:,} bytes. Shorten its text."}
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode()  # reject lone surrogates and NaN
        found["id"], text = row.get("id"), row.get("text")
        if not isinstance(text, str):
            raise TypeError
        check_texts(service.settings, [text])
    except (ValueError, TypeError, AttributeError, RecursionError):
        return found | {"error": "Not a JSON object with a text, in UTF-8."}
    except Refusal as refusal:
        return found | {"error": refusal.detail}
    return found | {"text": text}

"""Annif's REST API over a denn model, so that its clients work unchanged."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, unquote

from fastapi import APIRouter, Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, FailFast, Field, TypeAdapter, ValidationError

from denn import __version__
from denn.model import Model
from denn.prediction_types import Prediction
from denn.service.answers import check_texts
from denn.service.engine import Decided, DecisionOptions
from denn.service.problems import Refusal, responses
from denn.service.request_schemas import Label, Share
from denn.service.state import Running, Service, Writer
from denn.types import Document

router = APIRouter(prefix="/v1", tags=["Annif"])

FORM = "application/x-www-form-urlencoded"
FIELDS = 1000  # maximum per form
RESULTS = 1000  # maximum per text, whatever the requested limit: Annif sets none, and each result takes time
LABEL = 1000  # maximum number of characters
UNDETERMINED = "und"  # the ISO 639 code for unknown: labels may be in any language
ABSOLUTE = re.compile(r"(https?://|urn:)\S+")
SUBJECT: dict[str, Any] = {"uri": {"type": ["string", "null"]}, "label": TypeAdapter(Label).json_schema()}


class Given(BaseModel):
    """A request body as Annif accepts it; unknown fields, such as metadata, are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class SuggestForm(BaseModel):
    """A text to suggest subjects for."""

    text: str
    limit: int = Field(10, ge=0, description=f"Maximum number of results, up to {RESULTS}.")
    threshold: Share = Field(0.0, description="Minimum score of a result.")
    language: str | None = Field(None, description="Ignored: labels are not translated.")


class GivenText(Given):
    """One text of a batch."""

    text: str
    document_id: str | None = None


class GivenBatch(Given):
    """Texts to suggest subjects for."""

    documents: Annotated[list[GivenText], FailFast()]


class GivenSubject(Given):
    """A subject of a document to learn; its URI alone is enough if the model knows it."""

    # A schema cannot express which URIs are known, so it requires the label, which is always accepted.
    model_config = ConfigDict(json_schema_extra={"properties": SUBJECT, "required": ["label"]})

    uri: str | None = None
    label: str | None = None


class GivenDocument(Given):
    """A document to learn; without a text or subjects it is ignored, as in Annif."""

    text: str | None = None
    subjects: list[GivenSubject] | None = Field(None, max_length=1000)


class VocabularyOut(BaseModel):
    """The labels of the model, as an Annif vocabulary."""

    vocab_id: str
    languages: list[str]
    size: int
    loaded: bool


class VocabulariesOut(BaseModel):
    """The list of vocabularies, which has one entry."""

    vocabs: list[VocabularyOut]


class ProjectOut(BaseModel):
    """The model, as an Annif project."""

    project_id: str
    name: str
    language: str
    backend: dict[str, str]
    vocab: VocabularyOut
    vocab_language: str
    is_trained: bool
    modification_time: str


class ProjectsOut(BaseModel):
    """The list of projects, which has one entry."""

    projects: list[ProjectOut]


class SubjectOut(BaseModel):
    """A suggested label."""

    uri: str
    label: str
    notation: None
    score: float


class SuggestionsOut(BaseModel):
    """The labels of one text, best first."""

    results: list[SubjectOut]


class DocumentSuggestionsOut(SuggestionsOut):
    """The labels of one text of a batch."""

    document_id: str | None


def _project(project_id: str, service: Running) -> Service:
    own = _project_id(service)
    if project_id != own:
        raise Refusal(404, f"Project '{project_id[:100]}' not found. The only project here is '{own}'.")
    return service


async def _form(request: Request) -> SuggestForm:
    """Read a form; FastAPI's own parser treats an empty text as missing and rejects texts over one megabyte."""
    try:
        body = (await request.body()).decode()
        given = dict(parse_qsl(body, keep_blank_values=True, errors="strict", max_num_fields=FIELDS))
    except ValueError as error:
        raise Refusal(400, f"The form is not valid. Send at most {FIELDS} fields in UTF-8.") from error
    try:
        return SuggestForm.model_validate(given)
    except ValidationError as error:
        raise RequestValidationError([one | {"loc": ("body", *one["loc"])} for one in error.errors()]) from error


Project = Annotated[Service, Depends(_project)]


@router.get("/", response_model=dict[str, str], responses=responses())
async def info() -> Response:
    """Show the name and version of the service."""
    return JSONResponse({"title": "Annif REST API, served by denn", "version": __version__})


@router.get("/vocabs", response_model=VocabulariesOut, responses=responses())
async def vocabularies(service: Running) -> Response:
    """List the vocabularies."""
    return JSONResponse({"vocabs": [await service.engine.read(lambda: _vocabulary_json(service))]})


@router.get("/projects", response_model=ProjectsOut, responses=responses())
async def projects(service: Running) -> Response:
    """List the projects."""
    return JSONResponse({"projects": [await service.engine.read(lambda: _project_json(service))]})


@router.get("/projects/{project_id}", response_model=ProjectOut, responses=responses(404))
async def project(service: Project) -> Response:
    """Show a project."""
    return JSONResponse(await service.engine.read(lambda: _project_json(service)))


@router.post(
    "/projects/{project_id}/suggest",
    response_model=SuggestionsOut,
    responses=responses(404),
    openapi_extra={"requestBody": {"content": {FORM: {"schema": SuggestForm.model_json_schema()}}, "required": True}},
)
async def suggest(service: Project, form: Annotated[SuggestForm, Depends(_form)]) -> Response:
    """Suggest the best subjects for a text, without the thresholds of `/v1/predict`."""
    return JSONResponse({"results": (await _suggested(service, [form.text], form.limit, form.threshold))[0]})


@router.post(
    "/projects/{project_id}/suggest-batch", response_model=list[DocumentSuggestionsOut], responses=responses(404)
)
async def suggest_batch(
    body: GivenBatch,
    service: Project,
    limit: Annotated[int, Query(ge=0, description=f"Maximum number of results, up to {RESULTS}.")] = 10,
    threshold: Annotated[Share, Query(description="Minimum score of a result.")] = 0.0,
    language: Annotated[str | None, Query(description="Ignored: labels are not translated.")] = None,
) -> Response:
    """Suggest subjects for several texts, in the order given."""
    found = await _suggested(service, [one.text for one in body.documents], limit, threshold)
    named = zip(body.documents, found, strict=True)
    return JSONResponse([{"document_id": one.document_id, "results": results} for one, results in named])


@router.post("/projects/{project_id}/learn", status_code=204, responses=responses(404, 409))
async def learn(body: Annotated[list[GivenDocument], FailFast()], service: Project, author: Writer) -> Response:
    """Learn documents, all or none; the next suggestion uses them."""
    store = service.model.store
    known = frozenset(await service.engine.read(lambda: store.labels))
    labels = [tuple(_label(subject, service, known) for subject in one.subjects or ()) for one in body]
    new = [
        Document(one.text, given)
        for one, given in zip(body, labels, strict=True)
        if one.text is not None and one.subjects is not None
    ]
    check_texts(service.settings, [document.text for document in new])
    if new:
        await service.engine.add(new, author.source("annif"))
    return Response(status_code=204)


@router.post("/detect-language", include_in_schema=False)
async def detect_language() -> Response:
    """Answer with the status from which Annif's client reads a reason."""
    raise Refusal(404, "This service does not detect languages.")


async def _suggested(service: Service, texts: Sequence[str], limit: int, threshold: float) -> list[list[Any]]:
    """Return the suggestions for each text."""
    check_texts(service.settings, texts)
    limit = min(limit, RESULTS)
    model = service.model
    # No score exceeds this threshold, so only min_labels decides, by score alone.
    decided = await service.engine.predict(texts, DecisionOptions(threshold=1.0, min_labels=limit, evidence=0))
    service.telemetry.predicted(await service.engine.read(lambda: _as_tuned(model, decided)))
    best = [[pair for pair in one.prediction.scores.items() if 0 < pair[1] >= threshold][:limit] for one in decided]
    return [[_subject_json(service, *pair) for pair in pairs] for pairs in best]


def _as_tuned(model: Model, decided: Sequence[Decided]) -> list[Prediction]:
    """Return predictions with the labels that the model would choose, so that metrics of all routes are comparable."""
    found = [one.prediction for one in decided]
    names = list({label for one in found for label in one.scores})
    thresholds = dict(zip(names, model.label_thresholds(names), strict=True))
    return [
        replace(one, labels=tuple(label for label, score in one.scores.items() if score > thresholds[label]))
        for one in found
    ]


def _label(subject: GivenSubject, service: Service, known: Collection[str]) -> str:
    """Return the label of a subject."""
    uri, label, ours = subject.uri or "", subject.label or "", service.settings.label_uri
    if uri in known or uri in service.model.vocabulary:
        label = uri
    elif uri.startswith(ours):
        with suppress(UnicodeDecodeError):  # then it is not one of our URIs
            label = unquote(uri.removeprefix(ours), errors="strict") or label
    if not label.strip():
        raise Refusal(400, f"The URI '{uri[:100]}' is unknown and has no label. Send the label as well.")
    if len(label) > LABEL:
        raise Refusal(400, f"A subject's label has {len(label):,} characters. Shorten it to at most {LABEL:,}.")
    if "\n" in label:
        raise Refusal(400, "A subject's label has several lines. Put it on one line.")
    return service.model.vocabulary.id(label)


def _subject_json(service: Service, label: str, score: float) -> dict[str, Any]:
    uri = label if ABSOLUTE.fullmatch(label) else service.settings.label_uri + quote(label, safe="")
    return {"uri": uri, "label": service.model.vocabulary.name(label), "notation": None, "score": score}


def _project_id(service: Service) -> str:
    """Return the model's name in the characters that Annif allows in project ids."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", service.settings.name).strip("-") or "model"


def _vocabulary_json(service: Service) -> dict[str, Any]:
    size = len(service.model.label_counts())
    return {"vocab_id": _project_id(service), "languages": [UNDETERMINED], "size": size, "loaded": True}


def _project_json(service: Service) -> dict[str, Any]:
    changes = service.model.store.history(1) if service.learns else []
    return {
        "project_id": _project_id(service),
        "name": service.settings.name,
        "language": UNDETERMINED,
        "backend": {"backend_id": "denn"},
        "vocab": _vocabulary_json(service),
        "vocab_language": UNDETERMINED,
        "is_trained": True,
        "modification_time": changes[0].time.isoformat() if changes else service.model.card.created,
    }

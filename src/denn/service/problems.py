"""Errors as `application/problem+json` (RFC 9457), in the same format everywhere."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from denn.errors import BundleError, ConflictError, DennError, EncoderError, UnavailableError, UnknownError
from denn.wording import counted

log = logging.getLogger("denn.service")

MEDIA = "application/problem+json"
SHOWN = 20  # maximum number of mistakes reported per request
UNAVAILABLE = "The datastore is unavailable. Try again later."
UNUSABLE = "The model's files cannot be used. See the service log."
FAILED = "Internal error. The service log has details under this request's id."
TITLES = {413: "Content Too Large", 422: "Unprocessable Content"}  # as in RFC 9110; older Pythons differ
STATUS: Sequence[tuple[type[DennError], int, str | None]] = (  # with a sentence that names no path and no address
    (UnknownError, 404, "No such document or change in the datastore."),
    (ConflictError, 409, None),
    (UnavailableError, 503, UNAVAILABLE),
    (BundleError, 500, UNUSABLE),
    (EncoderError, 500, UNUSABLE),
    (DennError, 422, None),
)


class Mistake(BaseModel):
    """A mistake in a request."""

    where: str
    message: str


class Problem(BaseModel):
    """The reason why a request failed."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    errors: list[Mistake] | None = Field(default=None)


class Refusal(Exception):
    """An error that ends a request with a problem response."""

    def __init__(
        self,
        status: int,
        detail: str,
        headers: Mapping[str, str] | None = None,
        errors: list[Mistake] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers, self.errors = status, detail, headers, errors


class Busy(Refusal):
    """A refusal because of load, with a Retry-After header."""

    def __init__(self, detail: str, after: float) -> None:
        super().__init__(503, detail, {"Retry-After": str(max(1, round(after)))})


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of these error statuses and of those that any request can have."""
    every = sorted({400, 401, 403, 408, 413, 422, 429, 500, 503, 504, *statuses})
    content = {MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": _title(status), "content": content} for status in every}


def problem(
    status: int,
    detail: str,
    path: str,
    request_id: str,
    errors: list[Mistake] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return a problem response."""
    found = Problem(
        title=_title(status),
        status=status,
        detail=detail,
        instance=path,
        request_id=request_id,
        errors=errors,
    )
    body = found.model_dump(exclude_none=True)
    return JSONResponse(body, status, headers=dict(headers or {}), media_type=MEDIA)


def status_and_sentence(error: DennError) -> tuple[int, str]:
    """Return status and message for an error; messages that may name places on the server go to the log only."""
    status, sentence = next((status, sentence) for kind, status, sentence in STATUS if isinstance(error, kind))
    if status >= 500:
        log.warning("%s", error)
    text = sentence or str(error)
    return status, text[:1].upper() + text[1:]


def install(app: FastAPI) -> None:
    """Answer all errors of an application with problem responses."""

    def answer(request: Request, status: int, detail: str, **more: Any) -> Response:
        return problem(status, detail, request.url.path, request.state.request_id, **more)

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return answer(request, error.status, error.detail, errors=error.errors, headers=error.headers)

    @app.exception_handler(DennError)
    async def invalid_use(request: Request, error: DennError) -> Response:
        status, sentence = status_and_sentence(error)
        return answer(request, status, sentence, headers={"Retry-After": "5"} if status == 503 else None)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        mistakes = [
            Mistake(where=_where(one["loc"]), message=one["msg"].removeprefix("Value error, "))
            for one in error.errors()[:SHOWN]
        ]
        more = len(error.errors()) - len(mistakes)
        first = f"{mistakes[0].where}: {mistakes[0].message}" + (
            f" (and {counted(more, 'more mistake')})" if more else ""
        )
        return answer(request, 422, f"Invalid request: {first}.", errors=mistakes)

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        detail, headers = _DETAILS.get(error.status_code, str(error.detail)), error.headers
        if error.status_code == 405 and (methods := _methods(app, request)):
            headers = {"Allow": ", ".join(methods)}
        return answer(request, error.status_code, detail, headers=headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, _: Exception) -> Response:  # it is raised again, for the log
        return answer(request, 500, FAILED)


_DETAILS = {
    400: "The body is not valid. Send JSON in UTF-8.",
    404: "Not found. See /openapi.json for all paths.",
    405: "Method not allowed for this path. See /openapi.json.",
}


def _methods(app: FastAPI, request: Request) -> list[str]:
    """Return all methods of a path, because the framework knows only those of one route."""
    path = re.sub(r":\w+}", "}", getattr(request.scope.get("route"), "path", ""))
    return sorted(method.upper() for method in app.openapi()["paths"].get(path, ()))


def _title(status: int) -> str:
    return TITLES.get(status) or HTTPStatus(status).phrase


def _where(place: Sequence[int | str]) -> str:
    """Return the path to a mistake, without the value there."""
    return ".".join(str(part)[:60] for part in place[:6])

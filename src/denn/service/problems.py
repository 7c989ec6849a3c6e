"""Errors as `application/problem+json` (RFC 9457): one sentence each, the same shape everywhere."""

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

from denn.errors import ConflictError, DennError, UnavailableError, UnknownError

log = logging.getLogger("denn.service")

MEDIA = "application/problem+json"
SHOWN = 20  # mistakes of a request that are told
SENTENCES = {
    404: "The datastore has no such document or change.",
    503: "The datastore cannot be used just now. Try again.",
}
FAILED = "Something went wrong here. The log has more under this request's id."
TITLES = {413: "Content Too Large", 422: "Unprocessable Content"}  # as RFC 9110 has them, whatever Python says
STATUS: Sequence[tuple[type[DennError], int]] = (
    (UnknownError, 404),
    (ConflictError, 409),
    (UnavailableError, 503),
    (DennError, 422),
)


class Mistake(BaseModel):
    """One thing that is wrong in a request."""

    where: str
    message: str


class Problem(BaseModel):
    """Why a request was not answered."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    errors: list[Mistake] | None = Field(default=None)


class Refusal(Exception):
    """Ends a request with a problem."""

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
    """There is too much to do; it says when to come back."""

    def __init__(self, detail: str, after: float) -> None:
        super().__init__(503, detail, {"Retry-After": str(max(1, round(after)))})


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe problems of these kinds, and those that any request can have, for OpenAPI."""
    every = sorted({400, 401, 403, 408, 413, 422, 503, *statuses})
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
    """Write a problem as an answer."""
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
    """Return status and sentence for an error; where the datastore is, which its own may name, is not told."""
    status = next(status for kind, status in STATUS if isinstance(error, kind))
    text = SENTENCES.get(status) or str(error)
    return status, text[:1].upper() + text[1:]


def install(app: FastAPI) -> None:
    """Have all errors of an application answered as problems."""

    def answer(request: Request, status: int, detail: str, **more: Any) -> Response:
        return problem(status, detail, request.url.path, request.state.request_id, **more)

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return answer(request, error.status, error.detail, errors=error.errors, headers=error.headers)

    @app.exception_handler(DennError)
    async def mendable(request: Request, error: DennError) -> Response:
        status, sentence = status_and_sentence(error)
        if status == 503:
            log.warning("%s", error)
        return answer(request, status, sentence, headers={"Retry-After": "5"} if status == 503 else None)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        mistakes = [Mistake(where=_where(one["loc"]), message=one["msg"]) for one in error.errors()[:SHOWN]]
        more = len(error.errors()) - len(mistakes)
        first = f"{mistakes[0].where}: {mistakes[0].message}" + (f", and {more} more mistakes" if more else "")
        return answer(request, 422, f"The request is not as expected. {first}.", errors=mistakes)

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        detail, headers = _DETAILS.get(error.status_code, str(error.detail)), error.headers
        if error.status_code == 405 and (methods := _methods(app, request)):
            headers = {"Allow": ", ".join(methods)}
        return answer(request, error.status_code, detail, headers=headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, _: Exception) -> Response:  # which is raised again, for the log
        return answer(request, 500, FAILED)


_DETAILS = {
    400: "The body cannot be read. Expected JSON in UTF-8.",
    404: "There is nothing at this address. See /openapi.json for all there are.",
    405: "This address does not take that method. See /openapi.json.",
}


def _methods(app: FastAPI, request: Request) -> list[str]:
    """Return what an address takes; the framework names the methods of one of its routes only."""
    path = re.sub(r":\w+}", "}", getattr(request.scope.get("route"), "path", ""))
    return sorted(method.upper() for method in app.openapi()["paths"].get(path, ()))


def _title(status: int) -> str:
    return TITLES.get(status) or HTTPStatus(status).phrase


def _where(place: Sequence[int | str]) -> str:
    """Say where a mistake is; what was given there is not repeated."""
    return ".".join(str(part)[:60] for part in place[:6])

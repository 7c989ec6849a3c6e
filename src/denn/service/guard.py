"""Middleware for every request: access, size and time limits, security headers, metrics and one log line."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from denn.service.key_ring import Access, KeyRing
from denn.service.keys import given_key
from denn.service.origin import check_origin
from denn.service.problems import FAILED, Busy, Refusal, problem
from denn.service.settings import Settings
from denn.service.telemetry import Telemetry

log = logging.getLogger("denn.service")

STREAM = "/v1/predict/stream"
HELD = 8  # maximum number of full-size bodies in memory; the same number of bytes for responses
SMALL_ANSWER = 64 * 1024  # bytes; smaller responses are sent whatever else is in memory
OPEN = re.compile(r"/|/page/.*|/docs|/health|/ready|/v1/session|/openapi\.json")  # paths that need no key
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
DESCRIPTION = "/openapi.json"
CLIENT_GONE = 499
CLOSE = {"Connection": "close"}  # the rest of the body stays unread
LATER = {"Retry-After": "5"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class Stalled(Exception):
    """The client does not read its response."""


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(
        self, app: ASGIApp, settings: Settings, telemetry: Telemetry, ring: KeyRing, draining: threading.Event
    ) -> None:
        self.app, self._settings, self._telemetry = self.shared(app, settings), settings, telemetry
        self._ring, self._draining = ring, draining
        self._held = 0  # bytes of request bodies in memory
        self._leaving = 0  # bytes of responses in memory

    @staticmethod
    def shared(app: ASGIApp, settings: Settings) -> ASGIApp:
        """Let web pages of the allowed origins read the responses of an application."""
        if not settings.origins:
            return app
        return CORSMiddleware(
            app,
            allow_origins=settings.origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            if scope["method"] == "HEAD":
                scope = {**scope, "method": "GET"}  # the server omits the body
            await _Request(self, scope, receive, send).answer()


class _Request:
    """One request."""

    def __init__(self, guard: Guard, scope: Scope, receive: Receive, send: Send) -> None:
        self._guard, self._scope, self._receive, self._send = guard, scope, receive, send
        self._settings = guard._settings
        self._headers = Headers(scope=scope)
        given = self._headers.get("x-request-id", "")
        self._id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        self._status = 0  # no response yet
        self._gone = False
        self._access = Access()
        self._size = 0  # bytes of the body
        self._answer_size = 0  # bytes, if known before sending
        self._unsent: Refusal | None = None  # sent instead of a response that is too large

    async def answer(self) -> None:
        begun = time.perf_counter()
        state: MutableMapping[str, Any] = self._scope.setdefault("state", {})
        state["request_id"] = self._id
        try:
            self._enter(state)
            body = await self._body()
            await self._work(body)
            if self._unsent is not None:
                raise self._unsent
        except Refusal as refusal:
            await self._refuse(refusal)
        except asyncio.CancelledError:
            if not self._gone:
                raise
        except Stalled:
            self._gone = True
        except Exception:  # a bug: the last place to turn it into a response
            log.exception("request failed", extra={"facts": {"request_id": self._id}})
            await self._refuse(Refusal(500, FAILED))
        finally:
            self._guard._held -= self._size
            self._guard._leaving -= self._answer_size
            self._record(time.perf_counter() - begun)

    def _enter(self, state: MutableMapping[str, Any]) -> None:
        """Set the permissions of the request, and reject it if it has none."""
        hosts, asked = self._settings.hosts, self._headers.getlist("host") or [""]
        name = asked[0].rsplit(":", 1)[0] if not asked[0].endswith("]") else asked[0]
        if len(asked) > 1 or (hosts and name.lower() not in hosts):
            raise Refusal(400, "Host name not allowed. Add it with --host-name.")
        check_origin(self._scope["method"], self._scope["path"], self._headers, self._settings.origins)
        ring = self._guard._ring
        given = given_key(self._headers.get("authorization"), self._headers.get("x-api-key"))
        self._access = state["access"] = ring.access(given)
        if self._scope["method"] == "OPTIONS" or OPEN.fullmatch(self._scope["path"]):
            return
        self._access.check("read")
        ring.bill(self._access)

    async def _body(self) -> bytes:
        """Read the whole body within the size and time limits."""
        stream = self._scope["path"] == STREAM
        limit = self._settings.stream_bytes if stream else self._settings.body_bytes
        length = self._headers.get("content-length", "0")
        parts = []
        try:
            async with asyncio.timeout(self._settings.body_seconds * (10 if stream else 1)):
                while True:
                    if self._size > limit or (length.isdecimal() and int(length) > limit):
                        raise Refusal(413, f"The body is larger than {limit:,} bytes. Split the request.", CLOSE)
                    if (
                        self._size and self._guard._held > HELD * self._settings.stream_bytes
                    ):  # small bodies are always accepted
                        raise Refusal(503, "Too many large requests are in progress. Try again later.", LATER | CLOSE)
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        self._gone = True
                        raise asyncio.CancelledError
                    parts.append(message.get("body", b""))
                    self._size += len(parts[-1])
                    self._guard._held += len(parts[-1])
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refusal(
                408, "The body did not arrive in time. Send it faster, or split the request.", CLOSE
            ) from None

    async def _work(self, body: bytes) -> None:
        """Run the application; stop it after the timeout, or when the client disconnects."""
        given, gone = False, asyncio.Event()

        async def replay() -> Message:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def watch(work: asyncio.Task[None]) -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            gone.set()
            self._gone = not work.done()
            work.cancel()

        work = asyncio.create_task(_run(self.app, self._scope, replay, self._sent))
        watcher = asyncio.create_task(watch(work))
        limit = None if self._scope["path"] == STREAM else self._settings.seconds
        try:
            async with asyncio.timeout(limit):
                await work
        except TimeoutError:
            if self._status:
                raise Stalled from None
            raise Refusal(504, f"The request took longer than {limit:g} s. Split it, or try again later.") from None
        finally:
            watcher.cancel()

    @property
    def app(self) -> ASGIApp:
        return self._guard.app

    async def _sent(self, message: Message) -> None:
        """Send a part of the response; drop a client that does not read it in time."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            self._unsent = self._too_much(headers)
        if self._unsent is not None:
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
            for name, value in SECURITY.items():
                headers.setdefault(name, value)
            headers["X-Request-Id"] = self._id
            if self._guard._draining.is_set():
                headers["Connection"] = "close"  # so that no request arrives on a connection that is about to close
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                await self._send(message)
        except TimeoutError:
            raise Stalled from None

    def _too_much(self, headers: MutableHeaders) -> Refusal | None:
        """Count a response towards the memory limit; return a refusal if it exceeds the limit."""
        size = int(headers.get("content-length", "0"))
        if size > SMALL_ANSWER and self._guard._leaving + size > HELD * self._settings.stream_bytes:
            return Busy("Too many large responses are in progress. Try again later.", after=5)
        self._answer_size = size
        self._guard._leaving += size
        return None

    async def _refuse(self, refusal: Refusal) -> None:
        if self._status:
            return
        answer = problem(refusal.status, refusal.detail, self._scope["path"], self._id, headers=refusal.headers)
        await Guard.shared(answer, self._settings)(self._scope, self._receive, self._sent)

    def _record(self, seconds: float) -> None:
        """Count and log the request, without texts, ids or queries."""
        route = self._route()
        status = CLIENT_GONE if self._gone and not self._status else self._status
        self._guard._telemetry.requests.labels(self._method(), route, status).inc()
        self._guard._telemetry.seconds.labels(route).observe(seconds)
        facts = {"request_id": self._id, "method": self._method(), "route": route, "status": status}
        facts |= {"ms": round(1000 * seconds, 1), "bytes": self._size, "key": self._access.name}
        log.info("request", extra={"facts": facts})

    def _route(self) -> str:
        """Return the route for metrics and the log, which is one of few, whatever the client requests."""
        path, found = self._scope["path"], getattr(self._scope.get("route"), "path", None)
        return found or ("page" if path.startswith("/page/") else path if path == DESCRIPTION else "none")

    def _method(self) -> str:
        method = str(self._scope["method"])
        return method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS") else "other"


async def _run(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)

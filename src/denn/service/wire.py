"""HTTP on the wire: how many connections there may be, and what has to end before a request or after its answer."""

from __future__ import annotations

import asyncio
import json
import math
from typing import TYPE_CHECKING, Self

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from denn.errors import ConfigError

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

CONNECTIONS = 1000  # at most, unless more are asked for
RESERVED = 100  # file descriptors for everything else
TURNED_AWAY = 20  # connections beyond the limit that are told so; more are closed without a word
FAREWELL = 1.0  # seconds to read that
FULL = json.dumps(
    {
        "type": "about:blank",
        "title": "Service Unavailable",
        "status": 503,
        "detail": "Too many connections are open. Try again later.",
    }
).encode()
FULL_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 5\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(FULL), FULL)
)


class Wire(HttpToolsProtocol):
    """HTTP as uvicorn speaks it, with an end to heads that never end and to clients that never read."""

    HEAD_BYTES = 64 * 1024
    HEAD_SECONDS = 20.0
    STUCK_SECONDS = 20.0  # without a byte taken
    PIPELINED = 16  # requests that may follow one that is not answered
    CONNECTIONS = CONNECTIONS

    _head = 0  # bytes since the last head or part of a body
    _late: asyncio.TimerHandle | None = None  # runs from the first byte that belongs to no request
    _stuck: asyncio.TimerHandle | None = None
    _turned_away = False
    _at_work: RequestResponseCycle | None = None

    @classmethod
    def limited(cls, connections: int) -> type[Self]:
        """Return the same protocol for at most so many connections."""
        return type(cls.__name__, (cls,), {"CONNECTIONS": connections})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give a new connection as long as one between two requests; one too many gets an answer and no more."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that `pause_writing` tells of every byte that is not taken
        over = len(self.connections) - self.CONNECTIONS
        if over <= 0:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
            return
        self._turned_away = True
        if over > TURNED_AWAY:
            transport.abort()
            return
        transport.write(FULL_ANSWER)
        self._late = self.loop.call_later(FAREWELL, transport.close)  # at once, the answer could be lost

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._at_work = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and the timers that hold it; uvicorn tells only the last of several requests."""
        super().connection_lost(exc)
        if self._at_work is not None and not self._at_work.response_complete:
            self._at_work.disconnected = True
            self._at_work.message_event.set()
        for timer in (self._late, self._stuck):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Read on, unless it is the head of a request and too long; what begins no request has its time as well."""
        if self._turned_away:
            return
        self._head += len(data)
        super().data_received(data)  # which stops the timer between two requests
        if self.transport.is_closing():
            return
        if self._head > self.HEAD_BYTES:
            self.send_400_response(f"The headers are longer than {self.HEAD_BYTES:,} bytes.")
        elif self._late is None and (self.cycle is None or self.cycle.response_complete):
            self._late = self.loop.call_later(self.HEAD_SECONDS, self.transport.close)

    def on_headers_complete(self) -> None:
        """End a head."""
        self._head = 0
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self.HEAD_BYTES:
            raise ValueError  # answered with 400
        if len(self.pipeline) >= self.PIPELINED:
            self.transport.abort()
            raise ValueError
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP; where another answer is on its way, this one would land in its middle."""
        if self.pipeline or (self.cycle and self.cycle.response_started and not self.cycle.response_complete):
            self.transport.abort()
        else:
            super().send_400_response(msg)

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, which has limits of its own."""
        self._head = 0
        super().on_body(body)

    def pause_writing(self) -> None:
        """Stop writing to who does not read, and look whether that lasts."""
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Write on."""
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()

    def _watch(self, left: int) -> None:
        self._stuck = self.loop.call_later(self.STUCK_SECONDS, self._look, left)

    def _look(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < before and not self.transport.is_closing():
            self._watch(left)
        else:
            self.transport.abort()


def connection_limit(wanted: int | None) -> int:
    """Return how many connections there may be: as many as are wanted, or the usual number where that is possible."""
    possible = _descriptors() - RESERVED
    if wanted is None:
        return int(max(1, min(CONNECTIONS, possible)))
    if wanted > possible:
        raise ConfigError(
            f"{wanted:,} connections need {wanted + RESERVED:,} file descriptors, and this process may open "
            f"{possible + RESERVED:,.0f}. Allow more with `ulimit -n {wanted + RESERVED}`, or lower --connections."
        )
    return wanted


def _descriptors() -> float:
    """Return how many files and sockets this process may have open."""
    try:
        import resource
    except ImportError:  # Windows, where no such limit is near
        return math.inf
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft

"""The HTTP protocol: a limit on connections, and timeouts for headers and slow readers."""

from __future__ import annotations

import asyncio
import json
import math
from typing import TYPE_CHECKING, Self

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from denn.errors import ConfigError

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

CONNECTIONS = 1000  # default maximum
RESERVED = 100  # file descriptors for everything else
TURNED_AWAY = 20  # connections beyond the limit that get a 503; further ones are just closed
FAREWELL = 1.0  # seconds to read the 503
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
    """uvicorn's HTTP protocol, with limits for endless headers and clients that do not read."""

    HEAD_BYTES = 64 * 1024
    HEAD_SECONDS = 20.0
    STUCK_SECONDS = 20.0  # without the client reading a byte
    PIPELINED = 16  # maximum number of requests queued on a connection
    CONNECTIONS = CONNECTIONS

    _head = 0  # bytes since the last complete header or body part
    _late: asyncio.TimerHandle | None = None  # runs from the first byte outside a request
    _stuck: asyncio.TimerHandle | None = None
    _turned_away = False
    _at_work: RequestResponseCycle | None = None

    @classmethod
    def limited(cls, connections: int) -> type[Self]:
        """Return this protocol with another limit on connections."""
        return type(cls.__name__, (cls,), {"CONNECTIONS": connections})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Apply the keep-alive timeout to new connections; answer those beyond the limit with 503."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that `pause_writing` is called for every unread byte
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
        self._late = self.loop.call_later(FAREWELL, transport.close)  # closing at once could lose the response

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._at_work = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel timers, and notify the running request, because uvicorn notifies only the last pipelined one."""
        super().connection_lost(exc)
        if self._at_work is not None and not self._at_work.response_complete:
            self._at_work.disconnected = True
            self._at_work.message_event.set()
        for timer in (self._late, self._stuck):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse data; close connections with headers that are too long or too slow."""
        if self._turned_away:
            return
        self._head += len(data)
        super().data_received(data)  # stops the keep-alive timer
        if self.transport.is_closing():
            return
        if self._head > self.HEAD_BYTES:
            self.send_400_response(f"The headers are longer than {self.HEAD_BYTES:,} bytes. Shorten them.")
        elif self._late is None and (self.cycle is None or self.cycle.response_complete):
            self._late = self.loop.call_later(self.HEAD_SECONDS, self.transport.close)

    def on_headers_complete(self) -> None:
        """Check the size of the headers and the number of pipelined requests."""
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
        """Reject invalid HTTP; abort if another response is being sent, which this one would corrupt."""
        if self.pipeline or (self.cycle and self.cycle.response_started and not self.cycle.response_complete):
            self.transport.abort()
        else:
            super().send_400_response(msg)

    def on_body(self, body: bytes) -> None:
        """Receive a part of a body, which has its own limits."""
        self._head = 0
        super().on_body(body)

    def pause_writing(self) -> None:
        """Pause writing, and start watching for a client that does not read."""
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Resume writing."""
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
    """Return the maximum number of connections, limited by the file descriptors of this process."""
    possible = _descriptors() - RESERVED
    if wanted is None:
        return int(max(1, min(CONNECTIONS, possible)))
    if wanted > possible:
        raise ConfigError(
            f"{wanted:,} connections need {wanted + RESERVED:,} file descriptors, but this process may open only "
            f"{possible + RESERVED:,.0f}. Raise the limit with `ulimit -n {wanted + RESERVED}`, or lower --connections."
        )
    return wanted


def _descriptors() -> float:
    """Return the maximum number of open files and sockets."""
    try:
        import resource
    except ImportError:  # Windows, where the limit is far higher
        return math.inf
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft

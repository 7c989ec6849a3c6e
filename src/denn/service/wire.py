"""HTTP on the wire: what has to end before there is a request, or after its answer."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Wire(HttpToolsProtocol):
    """HTTP as uvicorn speaks it, with an end to heads that never end and to clients that never read."""

    HEAD_BYTES = 64 * 1024
    HEAD_SECONDS = 20.0
    STUCK_SECONDS = 20.0  # without a byte taken

    _head = 0  # bytes since the last head or part of a body
    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give a new connection as long as one between two requests."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        """Read on, unless it is the head of a request and too long."""
        self._head += len(data)
        super().data_received(data)
        if self._head > self.HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The headers are longer than {self.HEAD_BYTES:,} bytes.")

    def on_message_begin(self) -> None:
        """Begin a head, which has its time."""
        super().on_message_begin()
        self._late = self.loop.call_later(self.HEAD_SECONDS, self.transport.close)

    def on_headers_complete(self) -> None:
        """End a head."""
        self._head = 0
        if self._late is not None:
            self._late.cancel()
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self.HEAD_BYTES:
            raise ValueError  # answered with 400
        super().on_headers_complete()

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
        if left < before:
            self._watch(left)
        else:
            self.transport.abort()

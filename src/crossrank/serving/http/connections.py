"""How long, and how much, a connection may keep the server busy."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import orjson
from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEADER_SECONDS = 10.0
LARGEST_HEAD = 2**16  # beyond what came in the first piece


class PatientProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """HTTP, less connections that do not bring a head in time, bring too much of one, or do not take their answers."""

    _late: asyncio.TimerHandle | None = None
    _full: asyncio.TimerHandle | None = None
    _in_head, _head_size = False, 0
    ended: Callable[[], object] | None = None  # who is told that it has

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._late = self.loop.call_later(HEADER_SECONDS, transport.close)
        self._cycles: weakref.WeakSet[Any] = weakref.WeakSet()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_size = True, 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        self._cycles.add(self.cycle)

    def data_received(self, data: bytes) -> None:
        before, unfinished = self.cycle, self._in_head
        super().data_received(data)
        if self.cycle is not before:
            self._in_time()
        elif self._late is None and (before is None or before.response_complete):
            self._late = self.loop.call_later(HEADER_SECONDS, self.transport.close)
        if unfinished and self._in_head:
            self._head_size += len(data)
            if self._head_size > LARGEST_HEAD:
                self._refuse(431, f"The head of a request must have at most {LARGEST_HEAD:,} bytes.")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "A request must be HTTP/1.1; this one cannot be read.")

    def _refuse(self, status: int, message: str) -> None:
        """Answer before there is a request, and hang up."""
        body = orjson.dumps({"error": message})
        fields = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close"
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{fields}\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._full = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._full is not None:
            self._full.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        if self._full is not None:
            self._full.cancel()
        for cycle in self._cycles:  # also of requests that were sent before the last, without waiting for answers
            cycle.disconnected = True
        super().connection_lost(exc)
        if self.ended is not None:
            self.ended()

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

"""The shortest way to a score, for requests whose head was let through before.

A client that keeps its connection sends the same head, byte for byte, with each row. The first such request goes the
long way: the parser of HTTP, the gate, a task of its own. The next one needs none of them, whichever connection it
comes on: its head says what the first one said. Many clients send the body in a piece of its own, which is waited for.
Whatever else is unusual goes the long way too, and is told there what is wrong: a request that comes in other parts or
with another behind it, rows that are refused, a full queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson

from crossrank.serving.http.bodies import RefusedError
from crossrank.serving.http.connections import PatientProtocol
from crossrank.serving.http.gate import HEADERS, describe
from crossrank.serving.http.served import Scores, Served

if TYPE_CHECKING:
    from crossrank.serving.http.app import App

END = b"\r\n\r\n"
MOST_HEADS, LARGEST_HEAD = 1024, 4096
BODY_SECONDS = 0.05
UNUSUAL = frozenset({b"content-encoding", b"expect", b"transfer-encoding", b"upgrade"})
PHRASES = {one.value: one.phrase.encode() for one in HTTPStatus}


def lines(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%s: %s\r\n" % pair for pair in pairs])


FIXED = lines([(b"content-type", b"application/json"), *HEADERS])


class ShortProtocol(PatientProtocol):
    """A connection, which is itself the answer that the batcher waits to tell."""

    _model: Served | None = None  # while rows are scored for it
    _start, _held, _last = 0.0, b"", False
    _head = b""  # that was let through before, and has come without its body
    _patience: asyncio.TimerHandle
    app: App

    def data_received(self, data: bytes) -> None:
        if self._model is not None:
            self._held += data
            self.flow.pause_reading()
            return
        data = self._without_body() + data
        if not self._is_free():
            super().data_received(data)
            return
        end = data.find(END) + len(END)
        head, body, before = data[:end], data[end:], self.cycle
        size = self.app.heads.get(head)
        if size and not body:
            self._head, self._patience = head, self.loop.call_later(BODY_SECONDS, self._go_on)
        elif size != len(body) or not self._take(body):
            super().data_received(data)
            if self.cycle is not before:
                self._learn(head, body)

    def _without_body(self) -> bytes:
        """The head that waits for its body, which does so no longer."""
        head, self._head = self._head, b""
        if head:
            self._patience.cancel()
        return head

    def _go_on(self) -> None:
        """Let a head that waits go the long way, where its body may come as it likes."""
        if head := self._without_body():
            super().data_received(head)

    def _is_free(self) -> bool:
        """Whether what comes next begins a request, and may be answered at once."""
        answered = self.cycle is None or (self.cycle.response_complete and not self.cycle.more_body)
        busy = self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency
        return answered and not (self._in_head or busy or self.flow.write_paused or self.transport.is_closing())

    def _learn(self, head: bytes, body: bytes) -> None:
        """Remember a head if all that it says is that a body of a size is to be scored."""
        cycle, scope, heads = self.cycle, self.cycle.scope, self.app.heads
        fields = dict(scope["headers"])
        plain = UNUSUAL.isdisjoint(fields) and not scope["query_string"]
        alone = cycle.body == body and cycle.keep_alive and len(head) <= LARGEST_HEAD
        if plain and alone and (scope["method"], scope["path"]) == ("POST", "/score"):
            with contextlib.suppress(RefusedError):
                self.app.gate.check(scope)
                if len(heads) >= MOST_HEADS:
                    heads.clear()
                heads[head] = int(fields.get(b"content-length", 0))

    def _take(self, body: bytes) -> bool:
        self._start = time.perf_counter()
        self._model = self.app.submit(body, self)
        if self._model is None:
            return False
        self._in_time()
        return True

    def done(self) -> bool:
        """Whether the client has gone."""
        return self._model is None

    def set_result(self, scores: Scores) -> None:
        assert self._model is not None
        self._tell(200, {"scores": scores.tolist(), "model": self._model.version}, {})

    def set_exception(self, error: Exception) -> None:
        status, content, headers, told = describe(error)
        self._tell(status, content, headers, **told)

    def _tell(self, status: int, content: dict[str, Any], headers: dict[str, str], **told: str) -> None:
        body = orjson.dumps(content)
        if self._last:
            headers = {**headers, "connection": "close"}
        more = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        fields = lines(self.server_state.default_headers) + FIXED + lines(more)
        head = b"HTTP/1.1 %d %s\r\n%scontent-length: %d\r\n\r\n" % (status, PHRASES[status], fields, len(body))
        self.transport.write(head + body)
        self.app.gate.journal.add("POST", "/score", status, time.perf_counter() - self._start, **told)
        self._model = None
        self.server_state.total_requests += 1
        if self._last:
            self.transport.close()
            return
        if self.timeout_keep_alive_task is None:
            self._wait(self.timeout_keep_alive)
        if self._held:
            held, self._held = self._held, b""
            self.flow.resume_reading()
            self.data_received(held)

    def _wait(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Hang up, unless rows were sent meanwhile: a timer for each of them would cost more than this one."""
        left = self._start + self.timeout_keep_alive - time.perf_counter()
        if self._model is None and not self._head and left <= 0:
            super().timeout_keep_alive_handler()
        else:
            self._wait(max(left, 1.0))

    def shutdown(self) -> None:
        self._last = True
        self._go_on()
        if self._model is None:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._model = None
        self._without_body()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

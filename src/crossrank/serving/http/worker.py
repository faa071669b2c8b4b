"""One process that answers."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import weakref
from collections.abc import Callable
from http import HTTPStatus
from multiprocessing.connection import Connection
from typing import Any

import orjson
import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from crossrank.errors import CrossRankError
from crossrank.serving.http.logs import log
from crossrank.serving.http.settings import ServeSettings

HEADER_SECONDS = 10.0
LARGEST_HEAD = 2**16  # beyond what came in the first piece
IDLE_SECONDS = 75
MOST_CONNECTIONS = 1000


class PatientProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """HTTP, less connections that do not bring a head in time, bring too much of one, or do not take their answers."""

    _late: asyncio.TimerHandle | None = None
    _full: asyncio.TimerHandle | None = None
    _in_head, _head_size = False, 0

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

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class JsonHandler(logging.Handler):
    """The server's own words, as lines of our log."""

    def emit(self, record: logging.LogRecord) -> None:
        log("server", level=record.levelname.lower(), message=record.getMessage()[:500])


class WorkerServer(uvicorn.Server):
    """A server that calls back once it listens."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening()


def work(settings: ServeSettings, bound: socket.socket, told: Connection) -> None:
    """Load the model, tell the supervisor, and answer until SIGTERM, or until the supervisor is gone."""
    os.setpgid(0, 0)  # Ctrl-C goes to the supervisor, which lets us finish
    missed: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _: missed.append(number))
    logging.basicConfig(level=logging.WARNING, handlers=[JsonHandler()])
    from crossrank.serving.bundle import is_bundle
    from crossrank.serving.http.app import App
    from crossrank.serving.http.served import Served

    if not is_bundle(settings.run):
        import torch

        torch.set_num_threads(1)  # processes work side by side, not threads
    try:
        models = Served.open_all(settings)
    except CrossRankError as error:
        told.send(("failed", error.message, error.hint))
        return
    gc.collect()
    gc.freeze()  # what is loaded stays; looking through it again and again would cost each request
    gc.set_threshold(10_000)
    app = App(settings, models, tell_others=lambda: os.kill(os.getppid(), signal.SIGHUP))
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=int(settings.timeout_seconds) + 1,
        limit_concurrency=MOST_CONNECTIONS,
    )
    reloads: set[asyncio.Task[bool]] = set()

    def listening() -> None:
        loop = asyncio.get_running_loop()

        def reload() -> None:
            task = loop.create_task(app.reload())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        loop.add_signal_handler(signal.SIGHUP, reload)
        loop.add_reader(told.fileno(), lambda: server.handle_exit(signal.SIGTERM, None))
        if missed:
            reload()
        told.send(("ready", app.model.version))
        log("ready", model=app.model.version, pid=os.getpid())

    server = WorkerServer(config, listening)
    server.run(sockets=[bound])

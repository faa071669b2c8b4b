"""One process that answers."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
from multiprocessing.connection import Connection
from typing import Any

import uvicorn

from crossrank.errors import CrossRankError
from crossrank.serving.http.logs import log
from crossrank.serving.http.settings import ServeSettings
from crossrank.serving.http.sharing import WorkerServer

IDLE_SECONDS = 75
MOST_CONNECTIONS = 1000


class JsonHandler(logging.Handler):
    """The server's own words, as lines of our log."""

    def emit(self, record: logging.LogRecord) -> None:
        log("server", level=record.levelname.lower(), message=record.getMessage()[:500])


def work(settings: ServeSettings, bound: socket.socket, told: Connection, counts: Any, place: int) -> None:
    """Load the model, tell the supervisor, and answer until SIGTERM, or until the supervisor is gone.

    ``counts`` and ``place`` are those of :class:`WorkerServer`.
    """
    os.setpgid(0, 0)  # Ctrl-C goes to the supervisor, which lets us finish
    missed: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _: missed.append(number))
    logging.basicConfig(level=logging.WARNING, handlers=[JsonHandler()])
    from crossrank.serving.bundle import is_bundle
    from crossrank.serving.http.app import App
    from crossrank.serving.http.served import Served
    from crossrank.serving.http.shortcut import ShortProtocol

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
        http=ShortProtocol,
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

    server = WorkerServer(config, bound, counts, place, listening)
    server.run()

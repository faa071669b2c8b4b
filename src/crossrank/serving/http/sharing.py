"""Connections of one socket, shared out evenly among the processes that listen.

Each process tells the others how many connections it has. One that has more than another leaves those that wait to it
for a moment, and then takes one all the same: the other may be busy. They wait in the socket, which all processes have,
so that none is lost with a process.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from crossrank.serving.http.connections import PatientProtocol
from crossrank.serving.http.logs import log

ABSENT = 2**31 - 1  # the connections of a process that does not listen
LEAD = 9 / 8  # of one over another, and one connection more, before it waits
PATIENCE_SECONDS, RETRY_SECONDS = 0.003, 1.0


class WorkerServer(uvicorn.Server):
    """The server of one process.

    Args:
        config: of uvicorn.
        bound: the socket.
        counts: how many connections each process has, in memory that all of them share.
        place: of this process among them.
        listening: called once it listens.
    """

    def __init__(
        self, config: uvicorn.Config, bound: socket.socket, counts: Any, place: int, listening: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._bound, self._counts, self._place, self._listening = bound, counts, place, listening
        self._beginning: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._num = 0  # connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])  # it would take all that wait
        self._loop = asyncio.get_running_loop()
        self._bound.setblocking(False)
        self._bound.listen(self.config.backlog)
        self._count(0)
        self._loop.add_reader(self._bound, self._accept)
        self._listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._counts[self._place] = ABSENT
        self._counts = list(self._counts)  # what ends from now on is told to nobody
        self._loop.remove_reader(self._bound)
        if self._pause is not None:
            self._pause.cancel()
        self._bound.close()
        if self._beginning:
            await asyncio.wait(self._beginning)
        await super().shutdown([])

    def _count(self, more: int) -> None:
        """Count connections, and tell the others."""
        self._num += more
        self._counts[self._place] = self._num

    def _accept(self, *, patient: bool = True) -> None:
        """Take a connection that waits; the loop calls again while there are others."""
        if self._num > LEAD * min(self._counts) + 1 and patient:
            self._wait(PATIENCE_SECONDS)
            return
        try:
            connection, _ = self._bound.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # no more files may be open
            log("no connection accepted", error=str(error))
            self._wait(RETRY_SECONDS)
            return
        self._count(1)
        task = self._loop.create_task(self._begin(connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:  # it is gone already
            self._count(-1)

    def _protocol(self) -> PatientProtocol:
        made: Any = self.config.http_protocol_class
        protocol: PatientProtocol = made(self.config, self.server_state, self.lifespan.state)
        protocol.ended = lambda: self._count(-1)
        return protocol

    def _wait(self, seconds: float) -> None:
        self._loop.remove_reader(self._bound)
        self._pause = self._loop.call_later(seconds, self._go_on, min(self._counts))

    def _go_on(self, before: int) -> None:
        self._loop.add_reader(self._bound, self._accept)
        self._accept(patient=min(self._counts) != before)  # else nobody has come

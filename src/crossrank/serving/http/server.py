"""The processes of a server.

The first one binds the address, starts the workers and watches them: it brings back one that has died, passes SIGHUP on
to all of them, and ends them on SIGTERM. Workers share the socket, and listen once their model is loaded and warm. It
has no model, and imports none.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import NamedTuple

from crossrank.errors import ConfigError, RunError
from crossrank.serving.http.logs import log
from crossrank.serving.http.settings import METRICS_FOLDER, ServeSettings
from crossrank.serving.http.sharing import ABSENT
from crossrank.serving.http.worker import work

LONGEST_PAUSE = 30.0
GRACE_SECONDS = 5.0


def bind(host: str, port: int) -> socket.socket:
    """A socket of an address; nobody can connect until a worker listens."""
    host = host.strip("[]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as opened:
            bound = opened.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            opened.pop_all()
    except OSError as error:
        raise ConfigError(
            f"The address {host}, port {port} must be free and this machine's; {error.strerror or error}.",
            hint="Choose another --port; 0 takes any free one.",
        ) from None
    bound.set_inheritable(True)
    return bound


def serve(settings: ServeSettings) -> None:
    """Serve until SIGTERM or SIGINT; the address is printed once the first worker listens.

    Raises:
        ConfigError: where the address cannot be had.
        CrossRankError: what kept the first worker from starting.
    """
    bound = bind(settings.host, settings.port)
    with tempfile.TemporaryDirectory(prefix="crossrank-metrics-") as folder, _environment(folder):
        supervisor = Supervisor(settings, bound)
        version = supervisor.start()
        host, port = bound.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"serving {settings.run} (version {version}) on http://{shown}:{port}", flush=True)
        supervisor.watch()


@contextlib.contextmanager
def _environment(folder: str) -> Iterator[None]:
    os.environ[METRICS_FOLDER] = folder
    try:
        yield
    finally:
        del os.environ[METRICS_FOLDER]


class Worker(NamedTuple):
    """A process, what it tells, since when it is there, and its place among the processes."""

    process: SpawnProcess
    told: Connection
    since: float
    place: int


class Supervisor:
    """Starts workers and keeps them going."""

    def __init__(self, settings: ServeSettings, bound: socket.socket) -> None:
        self.settings, self.bound = settings, bound
        self.events: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.workers: dict[int, Worker] = {}
        self.pause, self.spawned = 1.0, 0.0
        self.counts = multiprocessing.RawArray("i", [ABSENT] * settings.workers)  # connections of each

    def _spawn(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        place = min(set(range(self.settings.workers)) - {worker.place for worker in self.workers.values()})
        process = context.Process(target=work, args=(self.settings, self.bound, theirs, self.counts, place))
        process.start()
        theirs.close()
        self.spawned = time.monotonic()
        self.workers[process.pid or 0] = Worker(process, ours, self.spawned, place)
        return ours

    def start(self) -> str:
        """Start all workers; returns the version they serve, once the first of them listens."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda number, _: self.events.put(number))
        told = self._spawn()
        while not told.poll(0.2):
            if self._asked_to_stop():
                self.stop()
                raise SystemExit(0)
        try:
            kind, *rest = told.recv()
        except EOFError:
            kind, rest = "failed", ["The first worker must come up; it died.", "Its last words are above."]
        if kind == "failed":
            self.stop()
            raise RunError(rest[0], hint=rest[1])
        for _ in range(self.settings.workers - 1):
            self._spawn()
        return str(rest[0])

    def _asked_to_stop(self) -> bool:
        with contextlib.suppress(queue.Empty):
            while True:
                if self.events.get_nowait() in (signal.SIGTERM, signal.SIGINT):
                    return True
        return False

    def watch(self) -> None:
        """Until a signal ends it."""
        while True:
            with contextlib.suppress(queue.Empty):
                number = self.events.get(timeout=1.0)
                if number in (signal.SIGTERM, signal.SIGINT):
                    break
                if number == signal.SIGHUP:
                    self._send(signal.SIGHUP)
            self._bring_back()
        self.stop()

    def _bring_back(self) -> None:
        from prometheus_client.multiprocess import mark_process_dead

        for pid, (process, told, since, place) in list(self.workers.items()):
            if process.is_alive():
                continue
            said = ()
            with contextlib.suppress(EOFError, OSError):
                said = told.recv() if told.poll() else ()
            told.close()
            del self.workers[pid]
            self.counts[place] = ABSENT
            mark_process_dead(pid)  # type: ignore[no-untyped-call]
            self.pause = 1.0 if time.monotonic() - since > LONGEST_PAUSE else min(2 * self.pause, LONGEST_PAUSE)
            log("worker died", pid=pid, code=process.exitcode, said=said, back_in_seconds=self.pause)
        missing = self.settings.workers - len(self.workers)
        if missing and time.monotonic() - self.spawned >= self.pause:
            self._spawn()

    def _send(self, number: int) -> None:
        for pid, (process, *_) in self.workers.items():
            if process.is_alive():
                os.kill(pid, number)

    def stop(self) -> None:
        """Let workers finish what they have accepted."""
        self._send(signal.SIGTERM)
        end = time.monotonic() + self.settings.timeout_seconds + GRACE_SECONDS
        for process, *_ in self.workers.values():
            process.join(max(0.1, end - time.monotonic()))
            if process.is_alive():
                process.kill()

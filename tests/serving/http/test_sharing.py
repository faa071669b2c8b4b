"""Processes of one socket share its connections; threads stand for them here."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
import uvicorn

from crossrank.serving.http.connections import PatientProtocol
from crossrank.serving.http.gate import answer
from crossrank.serving.http.server import bind
from crossrank.serving.http.sharing import ABSENT, WorkerServer

NUM = 16


async def app(scope, receive, send) -> None:
    await answer(send, 200, {}, {})


@pytest.fixture
def start():
    """A function that lets a server listen on a socket, at its place among the counts, in a thread."""
    with contextlib.ExitStack() as ended:

        def one(bound, counts, place) -> tuple[WorkerServer, threading.Thread]:
            config = uvicorn.Config(app, http=PatientProtocol, lifespan="off", log_config=None, backlog=64)
            listening = threading.Event()
            server = WorkerServer(config, bound.dup(), counts, place, listening.set)
            thread = threading.Thread(target=server.run)
            thread.start()
            ended.callback(thread.join)
            ended.callback(setattr, server, "should_exit", True)
            assert listening.wait(20)
            return server, thread

        yield one


@pytest.fixture
def patient(monkeypatch) -> None:
    """Others are waited for even where this machine is busy."""
    monkeypatch.setattr("crossrank.serving.http.sharing.PATIENCE_SECONDS", 0.1)


@pytest.fixture
def bound():
    with bind("127.0.0.1", 0) as bound:
        yield bound


@contextlib.contextmanager
def connected(bound, num: int = NUM):
    """Connections opened at once, each answered."""
    with contextlib.ExitStack() as opened:
        address = bound.getsockname()
        every = [opened.enter_context(socket.create_connection(address, timeout=20)) for _ in range(num)]
        for one in every:
            one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert all(one.recv(4096).startswith(b"HTTP/1.1 200") for one in every)
        yield


def until(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.01)


def test_connections_opened_at_once_are_shared_and_counted(bound, start, patient) -> None:
    counts = [ABSENT, ABSENT]
    servers = [start(bound, counts, place)[0] for place in range(2)]
    for _ in range(5):
        with connected(bound):
            assert counts == [len(one.server_state.connections) for one in servers]
            assert sum(counts) == NUM and min(counts) > NUM / 3
        until(lambda: counts == [0, 0])


def test_the_one_with_fewer_comes_first(bound, start, patient) -> None:
    counts = [ABSENT, ABSENT]
    start(bound, counts, 0)
    with connected(bound, 8):
        start(bound, counts, 1)
        with connected(bound, 8):
            assert counts == [8, 8]


def test_one_that_does_not_come_is_not_waited_for(bound, start) -> None:
    counts = [ABSENT, 0]  # the other says that it listens, and does not
    start(bound, counts, 0)
    with connected(bound):
        assert counts == [NUM, 0]


def test_one_that_stops_leaves_what_waits_to_the_others(bound, start) -> None:
    counts = [ABSENT, ABSENT]
    (_, (server, thread)) = [start(bound, counts, place) for place in range(2)]
    with connected(bound):
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive() and counts[1] == ABSENT
        with connected(bound):
            assert counts[1] == ABSENT and counts[0] >= NUM


def test_where_no_more_files_may_be_open_it_tries_again(bound, start, monkeypatch, capfd) -> None:
    counts = [ABSENT]
    server, _ = start(bound, counts, 0)
    monkeypatch.setattr("crossrank.serving.http.sharing.RETRY_SECONDS", 0.05)
    taken, listener = [], server._bound

    class Failing:
        def accept(self) -> tuple[socket.socket, object]:
            taken.append(1)
            if len(taken) < 3:
                raise OSError(24, "Too many open files")
            return listener.accept()

        def __getattr__(self, name: str) -> object:
            return getattr(listener, name)

    server._bound = Failing()
    with connected(bound, 1):
        assert counts == [1] and len(taken) >= 3
    assert capfd.readouterr().err.count("Too many open files") == 2
    server._bound = listener

"""The short way and the long way give the same answers, and only what is plain goes the short one."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from types import SimpleNamespace

import orjson
import pytest

import crossrank as cr
from crossrank.serving.http import shortcut
from crossrank.serving.http.app import App
from crossrank.serving.http.served import Models
from crossrank.serving.http.settings import ServeSettings
from crossrank.serving.http.shortcut import ShortProtocol

HEAD = "POST /score HTTP/1.1\r\nHost: localhost\r\n{}Content-Length: {}\r\n\r\n"
TOKEN = "a-token-of-this-test"


@pytest.fixture
def listen(served, run, let_listen):
    """A function that lets a server listen; what it is made of, and how many went the short way."""

    def start(idle=75, model=served, **settings):
        app = App(ServeSettings(run=run.path, **settings), Models(model))
        submit, taken = app.submit, []

        def counted(body, answer):
            model = submit(body, answer)
            taken.append(model is not None)
            return model

        app.submit = counted
        own = {"http": ShortProtocol, "ws": "none", "proxy_headers": False, "timeout_keep_alive": idle}
        server, address = let_listen(app, **own)
        return SimpleNamespace(app=app, server=server, taken=taken, address=address)

    return start


def connect(one) -> socket.socket:
    return socket.create_connection(one.address, timeout=20)


def request(content: object, fields: str = "") -> bytes:
    body = content if isinstance(content, bytes) else orjson.dumps(content)
    return HEAD.format(fields, len(body)).encode() + body


def answer_of(connection: socket.socket) -> tuple[bytes, bytes]:
    """The head, without its date, and the body of the next answer."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1) or pytest.fail("the server hung up")
    size, body = int(re.search(rb"content-length: (\d+)", head)[1]), b""
    while len(body) < size:
        body += connection.recv(size - len(body))
    lines = head.split(b"\r\n")
    return b"\r\n".join([lines[0], *sorted(line for line in lines[1:] if not line.startswith(b"date: "))]), body


def ask(connection: socket.socket, sent: bytes) -> tuple[bytes, bytes]:
    connection.sendall(sent)
    return answer_of(connection)


def test_a_head_that_was_let_through_goes_the_short_way_on_any_connection_with_the_same_answer(listen, rows) -> None:
    one = listen()
    with connect(one) as first, connect(one) as second:
        long = ask(first, request(rows[0]))
        assert one.taken == [] and long[0].startswith(b"HTTP/1.1 200")
        assert [ask(first, request(rows[0])), ask(second, request(rows[0]))] == [long, long]
    assert one.taken == [True, True]


def refused(rows) -> list[bytes]:
    """Bodies that are wrong in one way or another."""
    row = rows[0]
    some = [b"{", b"[]", {**row, "price": []}, {**row, "price": "dear"}, {"rows": 3}, {"rows": [row, 3]}]
    missing = {name: value for name, value in row.items() if name != "price"}
    return [one if isinstance(one, bytes) else orjson.dumps(one) for one in [*some, missing, {"rows": [row, missing]}]]


def test_what_is_refused_is_refused_in_the_same_words(listen, rows) -> None:
    one, longest = listen(), 10 + max(map(len, [*refused(rows), orjson.dumps(rows[0])]))
    good = orjson.dumps(rows[0]).ljust(longest)
    with connect(one) as connection:
        ask(connection, request(good))
        for body in refused(rows):
            short = ask(connection, request(body.ljust(longest)))
            one.app.heads.clear()
            assert short == ask(connection, request(body.ljust(longest)))
            assert short[0].startswith(b"HTTP/1.1 400") and orjson.loads(short[1])["error"]
            ask(connection, request(good))
        assert ask(connection, request(good))[0].startswith(b"HTTP/1.1 200")
    assert True in one.taken and False in one.taken


def test_a_failure_of_ours_is_told_and_logged_as_ever(listen, rows, served, monkeypatch, capfd) -> None:
    one = listen()
    with connect(one) as connection:
        ask(connection, request(rows[0]))
        monkeypatch.setattr(type(served), "score", lambda *_: 1 / 0)
        head, body = ask(connection, request(rows[0]))
        assert (head, body) == ask(connection, request(rows[0]))  # by now the first is logged
    assert head.startswith(b"HTTP/1.1 500 Internal Server Error") and b"log knows more" in body
    assert one.taken == [True, True] and "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_requests_that_are_sent_without_waiting_are_answered_in_their_order(listen, rows, parts) -> None:
    one = listen(max_wait_ms=20)
    with connect(one) as connection:
        expected = [ask(connection, request(row)) for row in rows[:10]]
        sent = b"".join(request(row) for row in rows[:10])
        step = -(-len(sent) // parts)
        for start in range(0, len(sent), step):
            connection.sendall(sent[start : start + step])
            time.sleep(0.005)
        assert [answer_of(connection) for _ in expected] == expected
        for row in rows[:10]:
            connection.sendall(request(row))
            time.sleep(0.002)
        assert [answer_of(connection) for _ in expected] == expected
    assert True in one.taken


def test_a_head_and_a_body_may_come_apart(listen, rows) -> None:
    one = listen()
    with connect(one) as connection:
        expected = ask(connection, request(rows[0]))
        head, _, body = request(rows[0]).partition(b"\r\n\r\n")
        for part in (head[:9], head[9:] + b"\r\n\r\n", body[:5], body[5:]):
            connection.sendall(part)
            time.sleep(0.02)
        assert answer_of(connection) == expected == ask(connection, request(rows[0]))
    assert one.taken == [True]


def in_two(sent: bytes) -> tuple[bytes, bytes]:
    head, end, body = sent.partition(b"\r\n\r\n")
    return head + end, body


def send_each(connection: socket.socket, *parts: bytes, pause: float = 0.02) -> None:
    for part in parts:
        connection.sendall(part)
        time.sleep(pause)


def test_a_body_that_comes_after_its_head_goes_the_short_way(listen, rows, monkeypatch) -> None:
    monkeypatch.setattr(shortcut, "BODY_SECONDS", 60)
    one = listen()
    with connect(one) as first, connect(one) as second:
        for connection in (first, first, second):
            send_each(connection, *in_two(request(rows[0])))
        long, *short = [answer_of(connection) for connection in (first, first, second)]
        assert long[0].startswith(b"HTTP/1.1 200") and short == [long, long]
        assert ask(first, request(rows[0])) == long
    assert one.taken == [True, True, True]


def test_our_own_client_goes_the_short_way(listen, rows, monkeypatch) -> None:
    monkeypatch.setattr(shortcut, "BODY_SECONDS", 60)
    one = listen()
    with cr.Client("http://{}:{}".format(*one.address)) as client:
        assert client.score(rows[0]) == client.score(rows[0]) == client.score([rows[0]])
    assert one.taken == [True, True]


@pytest.mark.parametrize("patience", [0.01, 60])
def test_what_comes_otherwise_after_a_head_goes_the_long_way(listen, rows, monkeypatch, patience) -> None:
    monkeypatch.setattr(shortcut, "BODY_SECONDS", patience)
    one = listen()
    with connect(one) as connection:
        expected = ask(connection, request(rows[0]))
        head, body = in_two(request(rows[0]))
        send_each(connection, head, body[:5], body[5:], pause=0.2)
        assert answer_of(connection) == expected
        send_each(connection, head, body + head + body, pause=0.2)
        assert [answer_of(connection), answer_of(connection)] == [expected, expected]
    assert one.taken == []


def test_a_head_without_a_body_is_told_as_ever(listen, rows) -> None:
    one = listen(timeout_seconds=0.2)
    with connect(one) as connection:
        ask(connection, request(rows[0]))
        connection.sendall(in_two(request(rows[0]))[0])
        assert answer_of(connection)[0].startswith(b"HTTP/1.1 408")
        assert connection.recv(1) == b""
    assert one.taken == []


def test_a_head_that_waits_for_its_body_is_answered_before_the_server_ends(listen, rows, monkeypatch) -> None:
    monkeypatch.setattr(shortcut, "BODY_SECONDS", 60)
    one = listen()
    with connect(one) as gone, connect(one) as connection:
        expected = ask(connection, request(rows[0]))[1]
        head, body = in_two(request(rows[0]))
        gone.sendall(head)
        send_each(connection, head, pause=0.1)
        gone.close()
        one.server.should_exit = True
        time.sleep(0.3)
        assert ask(connection, body)[1] == expected
        assert connection.recv(1) == b""
    assert one.taken == []


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("POST /score?version=1 HTTP/1.1", ""),
        ("POST /rank HTTP/1.1", ""),
        ("GET /score HTTP/1.1", ""),
        ("POST /score HTTP/1.0", ""),
        ("POST /score HTTP/1.1", "Connection: close"),
        ("POST /score HTTP/1.1", "Content-Encoding: identity"),
        ("POST /score HTTP/1.1", "Expect: 100-continue"),
        ("POST /score HTTP/1.1", "Upgrade: h2c"),
        ("POST /score HTTP/1.1", "Host: evil.example"),
        ("POST /score HTTP/1.1", "X-Long: " + "y" * 5000),
    ],
)
def test_an_unusual_head_is_not_remembered(listen, rows, line, field) -> None:
    one = listen()
    sent = request(rows[0], field + "\r\n" if field else "").replace(b"POST /score HTTP/1.1", line.encode())
    with connect(one) as connection:
        connection.sendall(sent)
        connection.recv(1 << 16)
    assert one.app.heads == {}


def test_a_chunked_body_goes_the_long_way(listen, rows) -> None:
    one, body = listen(), orjson.dumps(rows[0])
    head = b"POST /score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(one) as connection:
        for _ in range(2):
            assert ask(connection, head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))[0].startswith(b"HTTP/1.1 200")
    assert one.app.heads == {} and one.taken == []


def test_a_token_is_part_of_the_head(listen, rows) -> None:
    one = listen(token=TOKEN)
    with connect(one) as connection:
        for token, status in ((TOKEN[::-1], b"401"), (TOKEN, b"200"), (TOKEN, b"200"), (TOKEN[::-1], b"401")):
            head, _ = ask(connection, request(rows[0], f"Authorization: Bearer {token}\r\n"))
            assert head.split()[1] == status
        assert ask(connection, request(rows[0]))[0].split()[1] == b"401"
    assert one.taken == [True] and len(one.app.heads) == 1


def test_heads_that_never_come_again_are_forgotten(listen, rows, monkeypatch) -> None:
    monkeypatch.setattr(shortcut, "MOST_HEADS", 4)
    one = listen()
    with connect(one) as connection:
        for number in range(20):
            ask(connection, request(rows[0], f"X-Request-Id: {number}\r\n"))
            assert len(one.app.heads) <= 4


def test_more_rows_than_a_pass_takes_go_the_long_way(listen, rows) -> None:
    one = listen(max_batch=8)
    with connect(one) as connection:
        expected = ask(connection, request({"rows": rows[:20]}))
        assert ask(connection, request({"rows": rows[:20]})) == expected
        assert len(orjson.loads(expected[1])["scores"]) == 20
    assert one.taken == [False]


def test_what_was_accepted_is_answered_before_the_server_ends(listen, rows) -> None:
    one = listen(max_wait_ms=500)
    with connect(one) as connection:
        expected = ask(connection, request(rows[0]))[1]
        connection.sendall(request(rows[0]))
        time.sleep(0.1)
        one.server.should_exit = True
        head, body = answer_of(connection)
        assert body == expected and b"connection: close" in head
        assert connection.recv(1) == b""
    assert one.taken == [True]


def test_a_client_that_leaves_is_not_scored_and_no_error(listen, rows, capfd) -> None:
    one = listen(max_wait_ms=100)
    with connect(one) as connection:
        ask(connection, request(rows[0]))
        connection.sendall(request(rows[0]))
        time.sleep(0.03)
    time.sleep(0.3)
    with connect(one) as connection:
        assert ask(connection, request(rows[0]))[0].startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"\ncrossrank_rows_total 2.0\n" in answer_of(connection)[1]
    assert one.taken == [True, True] and "traceback" not in capfd.readouterr().err


def test_an_idle_connection_is_closed_and_one_in_use_is_not(listen, rows) -> None:
    one = listen(idle=1)
    with connect(one) as connection:
        for _ in range(5):
            ask(connection, request(rows[0]))
            time.sleep(0.4)
        start = time.monotonic()
        assert connection.recv(1) == b""
    assert 0.3 < time.monotonic() - start < 3 and one.taken == [True] * 4


def test_each_request_is_counted_and_logged(listen, rows, capfd) -> None:
    one = listen()
    with contextlib.ExitStack() as opened:
        many = [opened.enter_context(connect(one)) for _ in range(8)]
        ask(many[0], request(rows[0]))
        for _ in range(5):
            for connection in many:
                connection.sendall(request(rows[0]))
            for connection in many:
                answer_of(connection)
        many[0].sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        page = answer_of(many[0])[1].decode()
    assert 'crossrank_requests_total{path="/score",status="200"} 41.0' in page
    assert 'crossrank_request_seconds_count{path="/score"} 41.0' in page
    assert 'crossrank_request_seconds_bucket{le="+Inf",path="/score"} 41.0' in page
    lines = [orjson.loads(line) for line in capfd.readouterr().err.splitlines()]
    scored = [line for line in lines if line.get("path") == "/score"]
    assert len(scored) == 41 and len(one.taken) == 40
    assert {(line["event"], line["method"], line["status"]) for line in scored} == {("request", "POST", 200)}
    assert all(line["ms"] > 0 and line["time"] > 1.7e9 for line in scored)

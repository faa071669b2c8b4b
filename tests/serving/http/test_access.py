"""Who may ask, and what hostile bodies cost."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time

import orjson
import pytest
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossrank.errors import ConfigError
from crossrank.serving.http import connections
from crossrank.serving.http.app import App
from crossrank.serving.http.served import Models
from crossrank.serving.http.server import bind
from crossrank.serving.http.settings import ServeSettings, read_token
from crossrank.serving.http.shortcut import ShortProtocol

TOKEN, ADMIN = "the-token-of-clients", "the-token-of-admins"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org", ""])
def test_a_server_without_a_token_listens_on_this_machine_alone(host, tmp_path) -> None:
    with pytest.raises(ConfigError, match="Without a token"):
        ServeSettings(run=tmp_path, host=host)
    ServeSettings(run=tmp_path, host=host, token=TOKEN)


def test_a_token_is_read_from_a_file_or_the_environment_and_never_shown(tmp_path, monkeypatch) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file, "X_TOKEN") == TOKEN
    assert read_token(None, "X_TOKEN") == ""
    monkeypatch.setenv("X_TOKEN", TOKEN)
    assert read_token(None, "X_TOKEN") == TOKEN
    assert TOKEN not in repr(ServeSettings(run=tmp_path, token=TOKEN, admin_token=ADMIN))
    for bad in ("", "short", "with blanks in the token", "with-ünicode-in-the-token"):
        file.write_text(bad)
        with pytest.raises(ConfigError, match="16 or more") as caught:
            read_token(file, "X_TOKEN")
        assert not bad or bad not in str(caught.value)


@pytest.mark.parametrize("path", ["/model", "/metrics", "/v2", "/v2/models/small", "/nowhere"])
def test_what_tells_something_needs_the_token(make_client, path) -> None:
    client = make_client(token=TOKEN)
    for headers in ({}, bearer("wrong"), bearer(TOKEN[:-1]), {"authorization": TOKEN}, bearer(ADMIN)):
        answer = client.get(path, headers=headers)
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert client.get(path, headers=bearer(TOKEN)).status_code in (200, 404)


@pytest.mark.parametrize("path", ["/", "/v2/health/live", "/v2/health/ready"])
def test_probes_and_the_empty_page_need_none(make_client, path) -> None:
    assert make_client(token=TOKEN).get(path).status_code == 200


def test_admin_calls_have_a_token_of_their_own(make_client) -> None:
    client = make_client(token=TOKEN, admin_token=ADMIN)
    assert client.post("/admin/reload", headers=bearer(TOKEN)).status_code == 401
    assert client.post("/admin/reload", headers=bearer(ADMIN)).status_code == 200
    assert make_client().post("/admin/reload").status_code == 403


def test_the_log_never_has_a_token(make_client, rows, capfd) -> None:
    make_client(token=TOKEN).post("/score", json=rows[0], headers=bearer(TOKEN))
    make_client(token=TOKEN).post("/score", json=rows[0], headers=bearer("another-secret-word"))
    lines = [orjson.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["status"] for line in lines] == [200, 401]
    assert "token-of" not in str(lines) and "secret" not in str(lines)


@pytest.mark.parametrize(
    ("host", "status"), [("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("evil.example", 421)]
)
def test_without_a_token_a_page_of_another_host_cannot_ask_through_a_browser(client, host, status) -> None:
    assert client.get("/model", headers={"host": host}).status_code == status


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(make_client) -> None:
    client = make_client(max_body_mb=0.01)
    assert client.post("/score", content=b"x" * 20_000).status_code == 413
    sent = []

    def endless():
        for _ in range(1000):
            sent.append(1)
            yield b"x" * 1000

    assert client.post("/score", content=endless()).status_code == 413


def test_a_compressed_body_is_refused(client) -> None:
    assert client.post("/score", content=b"", headers={"content-encoding": "gzip"}).status_code == 415


@pytest.mark.parametrize("method", ["get", "put", "delete", "patch"])
def test_another_method_is_refused_with_those_that_there_are(client, method) -> None:
    answer = getattr(client, method)("/rank")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    assert answer.json() == {"error": "This path takes POST."}


HOSTILE = [
    b"",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"rows":' * 100_000,
    b'{"rows": [{"price": NaN}]}',
    b'{"rows": [{"price": 1e999}]}',
    b'{"rows": [{"price": ' + b"9" * 100_000 + b"}]}",
    b'{"user": "\\ud800"}',
    orjson.dumps({"rows": [[]] * 500_000}),
    orjson.dumps({f"user{i}": i for i in range(300_000)}),
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("path", ["/score", "/rank", "/v2/models/small/infer"])
def test_a_hostile_body_costs_little_and_is_refused(client, path, body) -> None:
    start = time.process_time()
    assert client.post(path, content=body).status_code in (400, 413)
    assert time.process_time() - start < 3


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    plain,
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(max_size=5), some, max_size=4),
    max_leaves=8,
)
names = st.sampled_from(
    ["user", "hour", "tags", "price", "age_days", "rows", "context", "items", "k", "inputs", "outputs"]
)
tensors = st.dictionaries(
    st.sampled_from(["name", "shape", "datatype", "data", "parameters"]), values | names, max_size=5
)
bodies = st.dictionaries(
    names, values | st.lists(st.dictionaries(names, values), max_size=3) | st.lists(tensors, max_size=3)
)


@given(change=bodies, whole=st.booleans(), path=st.sampled_from(["/score", "/rank", "/v2/models/small/infer"]))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_json_is_sent_the_answer_is_a_score_or_a_reason(client, rows, change, whole, path) -> None:
    content = (rows[0] if whole else {}) | change
    try:
        body = orjson.dumps(content)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits, a surrogate
        return
    answer = client.post(path, content=body)
    assert answer.status_code in (200, 400, 413), answer.text
    assert answer.json().get("error") or answer.status_code == 200


@given(body=st.binary(max_size=200), header=st.text("0123456789-x ", max_size=4))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_bytes_are_sent_they_are_refused(client, body, header) -> None:
    headers = {"Inference-Header-Content-Length": header}
    assert client.post("/v2/models/small/infer", content=body, headers=headers).status_code == 400


@pytest.fixture
def listening(served, run, monkeypatch):
    """A real server in a thread, with little patience; its address."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    app = App(ServeSettings(run=run.path, timeout_seconds=0.3), Models(served))
    own = {"http": ShortProtocol, "proxy_headers": False}
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None, **own)
    server = uvicorn.Server(config)
    with bind("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield bound.getsockname()
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET /", b"y" * 50_000),
        (b"GET / HTTP/1.1\r\nX-", b"y" * 50_000),
        (b"GET / HTTP/1.1\r\nX: ", b"y" * 50_000),
        (b"GET / HTTP/1.1\r\n", b"X: y\r\n" * 8_000),
    ],
    ids=["path", "name", "value", "lines"],
)
def test_a_head_without_end_is_refused_while_it_is_small(listening, start, more) -> None:
    with socket.create_connection(listening, timeout=10) as connection:
        connection.sendall(start)
        pieces = 0
        while not select.select([connection], [], [], 0.02)[0]:
            connection.sendall(more)
            pieces += 1
            assert pieces < 10
        got = connection.recv(1000)
    assert got.startswith(b"HTTP/1.1 431") and b"connection: close" in got
    assert list(orjson.loads(got.partition(b"\r\n\r\n")[2])) == ["error"]


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/9.9\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_http_gets_an_error_in_json(listening, sent) -> None:
    with socket.create_connection(listening, timeout=10) as connection:
        connection.sendall(sent)
        head, _, body = connection.recv(1000).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400") and list(orjson.loads(body)) == ["error"]


def test_a_client_that_leaves_without_reading_its_answers_is_no_error_of_the_server(listening, capfd) -> None:
    with socket.create_connection(listening, timeout=10) as connection:
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1500)
        time.sleep(0.5)  # the answers fill what the system holds for a client, and the server waits
    time.sleep(1)
    with socket.create_connection(listening, timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    num_tracebacks = capfd.readouterr().err.count("traceback")
    assert num_tracebacks == 0


def test_a_client_that_does_not_take_its_answers_is_not_waited_for(listening) -> None:
    with socket.create_connection(listening, timeout=10) as connection:
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1500)
        time.sleep(2)
        got = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 20):
                got += part
    num_answers = got.count(b"HTTP/1.1 200")
    assert 0 < num_answers < 1500


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"POST /score HTTP/1.1\r\nHost: local", b""),
        (b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", b"HTTP/1.1 408"),
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_slow_sender_is_not_waited_for(listening, sent, answer) -> None:
    with socket.create_connection(listening, timeout=10) as connection:
        connection.sendall(sent)
        start, got = time.monotonic(), b""
        while part := connection.recv(1000):
            got += part
    assert got.startswith(answer) and bool(got) == bool(answer)
    assert time.monotonic() - start < 5

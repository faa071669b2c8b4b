"""Requests of those who mean harm to a server, each with what a correct answer is; ``soak.py`` sends them.

An attack is bytes to send with pauses between, at the end perhaps half a connection closed, and the statuses that are
right; 0 is a connection that the server closed without an answer. Whatever the status, an answer tells an error in
JSON, or finite scores, and nothing of the machine that it comes from.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import random
import re
from collections.abc import Iterator
from typing import Any

SECONDS = 40.0  # in which each must be over; the server's own limits are 10 s for a head and 10 s for a body
CLOSED = 0
TELLING = re.compile(rb"Traceback|File \"|site-packages|\.py\b|root:|/(home|tmp|usr|etc)/")


@dataclasses.dataclass(frozen=True)
class Attack:
    """What is sent, and the statuses that are right.

    Attributes:
        kind: as it is counted.
        parts: bytes to send, seconds to wait, or None: nothing more will be sent.
        statuses: of a correct answer.
    """

    kind: str
    parts: tuple[bytes | float | None, ...]
    statuses: frozenset[int]


def request(body: bytes = b"", path: str = "/score", method: str = "POST", **headers: str) -> bytes:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    fields = {"Host": "localhost", "Content-Length": str(len(body)), **given}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def attack(kind: str, *parts: bytes | float | None, right: tuple[int, ...]) -> Attack:
    return Attack(kind, parts, frozenset(right))


def bodies(row: dict[str, Any], context: dict[str, Any], number: str, several: str) -> Iterator[Attack]:
    """Bodies of a row and of a ranking with one thing wrong: its columns `number` and `several` are spoiled."""

    def scored(value: str, name: str = number) -> bytes:
        return request(json.dumps({"rows": [{**row, name: "VALUE"}]}).replace('"VALUE"', value).encode())

    for body in (b"", b"{", b"[1]", b"\xff\xfe", b'{"rows": 3}', b'{"rows": [3]}', b'{"rows": [{}]}', b"null"):
        yield attack("malformed", request(body), right=(400,))
    for depth in (500, 100_000):
        for start in ("[", '{"rows":'):
            yield attack("deep nesting", request(start.encode() * depth), right=(400,))
    yield attack("deep nesting", scored("[" * 200 + "]" * 200, several), right=(400,))
    for digits in ("1e999", "-1e999", "NaN", "Infinity", "-Infinity", "nan", "0x10", "01", "+1"):
        yield attack("no number", scored(digits), right=(400,))
    for digits in ("1e308", "-1e308", "5e-324", "9" * 19, "9" * 40, "9" * 100_000, '"9e999"'):
        yield attack("huge numbers", scored(digits), right=(200, 400))
    for value in ("{}", "[]", "[1]", '{"a": 1}', '"much"'):
        yield attack("wrong types", scored(value), right=(400,))
    for value in ("[{}]", "[[1]]", "{}"):
        yield attack("wrong types", scored(value, several), right=(400,))
    yield attack("too many", request(b'{"rows": [' + b"0," * 20_000 + b"0]}"), right=(413,))
    yield attack(
        "too many", request(json.dumps({**row, **dict.fromkeys(map(str, range(50_000)))}).encode()), right=(400,)
    )
    asked: list[dict[str, Any]] = [{"k": value} for value in (-1, 0, 10**9, 1.5, "10", None, True, [])]
    asked += [{"context": value} for value in ([], 1, "a", {number: {}})]
    asked += [{"items": value} for value in ({}, 1, [[]], [None], [{}, 1], ["an item", {}])]
    asked += [{"exclude": [{}]}, {"exclude": 1}, {"explain": 1}, {"explain": True, "k": 10_000}]
    for change in asked:
        body = json.dumps({"context": context, "k": 3, **change}).encode()
        yield attack("wrong rankings", request(body, "/rank"), right=(400,))


def protocol(name: str) -> Iterator[Attack]:
    """Tensors that lie about their size, for the model of this name."""
    path = f"/v2/models/{name}/infer"
    for shape in ([10**18], [-1], [2**63, 2], [], [1, 1, 1], "1", [1.5]):
        tensor = {"name": "price", "shape": shape, "datatype": "FP64", "data": [1.0]}
        yield attack("lying tensors", request(json.dumps({"inputs": [tensor]}).encode(), path), right=(400, 413))
    for length in ("-1", "99999999999999999999", "x", "0"):
        lying = request(b'{"inputs": []}', path, Inference_Header_Content_Length=length)
        yield attack("lying tensors", lying, right=(400,))
    for other in ("nothing", "..", "%2e%2e", "a" * 5000):
        yield attack("lying tensors", request(b"{}", f"/v2/models/{other}/infer"), right=(404,))


def http(row: dict[str, Any]) -> Iterator[Attack]:
    """Heads and connections that are not as they should be."""
    body = json.dumps(row).encode()
    good, half = request(body), body[: len(body) // 2]
    for length in (str(9 << 20), "9" * 15, "9" * 18, "9" * 30, "-1", "x", "1 1", "0x10", "+5"):
        yield attack("wrong length", request(Content_Length=length), right=(400, 413))
    yield attack("wrong length", request(body, Content_Length="5"), right=(400,))
    yield attack("wrong length", request(body, Transfer_Encoding="chunked"), right=(400,))
    yield attack("wrong length", request(body, content_length="7"), right=(400,))
    chunked = request(Transfer_Encoding="chunked").replace(b"Content-Length: 0\r\n", b"")
    for chunk in (b"x\r\n", b"-1\r\n", b"f" * 17 + b"\r\n", b"5\r\n{}\r\n0\r\n\r\n"):
        yield attack("wrong length", chunked + chunk + b"\r\n\r\n", right=(400, CLOSED))
    yield attack("too large", request(b"x" * (9 << 20)), right=(413, CLOSED))
    yield attack("too large", chunked + (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 140, right=(413, CLOSED))
    yield attack("compressed", request(body, Content_Encoding="gzip"), right=(415,))
    many = "".join(f"X-{number}: {number}\r\n" for number in range(100_000)).encode()
    for flood in (many, b"X: " + b"y" * (20 << 20), b"X: y\r\n" * (2 << 20), b"X-" + b"y" * (20 << 20)):
        yield attack("header flood", good.split(b"\r\n\r\n")[0] + b"\r\n" + flood, right=(400, 431, CLOSED))
    yield attack("header flood", request(body, "/" + "a" * (20 << 20)), right=(400, 404, 414, 431, CLOSED))
    yield attack("header flood", request(body, "/score?version=" + "a" * 60_000), right=(404, 414, 431))
    for path in ("/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc%2fpasswd", "/score/../model",
                 "//etc/passwd", "/v2/models/../../../etc/passwd", "/static/..\\..\\etc", "/%00", "/score%00", "/%ff",
                 "/score/", "//admin/reload", "/.git/config", "/report.html", "/model.safetensors"):  # fmt: skip
        yield attack("paths", request(path=path, method=random.choice(["GET", "POST"])), right=(404,))
    for path in ("/admin/reload", "/admin%2freload", "/%61dmin/reload", "/admin/../score", "/admin/"):
        for token in ("", "Bearer", "Bearer wrong", "Basic YTpi", "Bearer " + "x" * 10_000, "Bearer \xff\xfe"):
            yield attack("admin", request(path=path, Authorization=token), right=(401, 403))
    yield attack("other hosts", request(body, Host="evil.example"), right=(421,))
    yield attack("other hosts", good.replace(b"Host: localhost\r\n", b""), right=(400, 421))
    for method in ("GET", "PUT", "DELETE", "TRACE", "PATCH"):
        yield attack("methods", request(body, method=method), right=(405,))
    for garbage in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                    b"CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x00" * 100, b"GET /\r\n\r\n",
                    b"GET / HTTP/9.9\r\n\r\n",
                    b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
                    good.replace(b"Host:", b"Ho\x00st:"), good.replace(b"localhost", b"local\x00host")):  # fmt: skip
        yield attack("no HTTP", garbage, right=(400, 404, 405, 421, CLOSED))
    upgrade = request(b"", "/score", "GET", Connection="Upgrade", Upgrade="websocket", Sec_WebSocket_Key="eA==")
    yield attack("no HTTP", upgrade, right=(400, 405, 426))
    yield attack("half closed", good[: -len(half)], None, right=(CLOSED, 400))
    yield attack("half closed", good[:20], None, right=(CLOSED, 400))
    yield attack("half closed", good, None, right=(200, CLOSED))
    yield attack("not read", request(path="/openapi.json", method="GET") * 2000, 3.0, right=(200,))


def slow(row: dict[str, Any]) -> list[Attack]:
    """Senders that never finish: each holds a connection until the server has had enough."""
    good = request(json.dumps(row).encode())
    drip = tuple(part for byte in good[:40] for part in (bytes([byte]), 1.0))
    return [
        attack("slow", b"", right=(CLOSED,)),
        attack("slow", good[:30], right=(CLOSED,)),
        attack("slow", *drip, right=(CLOSED,)),
        attack("slow", good[:-5], right=(408,)),
        attack("slow", good[:-60], *drip, right=(408,)),
        attack("slow", request(Content_Length="1000"), right=(408,)),
    ]


def flipped(good: bytes) -> Attack:
    """A request with some of its bytes changed: anything may be right but an error of the server's own."""
    content = bytearray(good)
    for _ in range(random.randint(1, 4)):
        content[random.randrange(len(content))] = random.randrange(256)
    return attack("bytes flipped", bytes(content), None, right=(CLOSED, 200, *range(400, 500)))


async def answer_of(port: int, parts: tuple[bytes | float | None, ...]) -> tuple[int, bytes]:
    """Status and content of the first answer; 0 where the server closed the connection without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        answer = asyncio.create_task(_first(reader))  # it may come, and the connection be closed, before all is sent
        with contextlib.suppress(OSError):
            for part in parts:
                if part is None:
                    writer.write_eof()
                elif isinstance(part, float):
                    await asyncio.sleep(part)
                else:
                    writer.write(part)
                    await writer.drain()
        return await answer
    finally:
        writer.transport.abort()


async def _first(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        return int(head.split()[1]), await reader.readexactly(int(length[1]) if length else 0)
    except (OSError, asyncio.IncompleteReadError):
        return CLOSED, b""


def fault_of(status: int, content: bytes, right: frozenset[int]) -> str:
    """What is wrong with an answer; empty where nothing is."""
    told = f"status {status}, {content[:200]!r}"
    if status not in right:
        return f"{told}; right were {sorted(right)}"
    if TELLING.search(content):
        return f"{told} tells of the machine"
    if status == CLOSED:
        return ""
    try:
        found = json.loads(content)
    except ValueError:
        return f"{told} is no JSON"
    if status != 200:
        return "" if isinstance(found.get("error"), str) and set(found) <= {"error", "hint"} else f"{told} has no error"
    scores = found.get("scores", [])
    return "" if all(isinstance(one, float) and math.isfinite(one) for one in scores) else f"{told} is no score"


async def attempt(port: int, one: Attack) -> str:
    """What is wrong with the answer to an attack; empty where nothing is."""
    try:
        status, content = await asyncio.wait_for(answer_of(port, one.parts), SECONDS)
    except TimeoutError:
        return f"not over after {SECONDS:g} s"
    return fault_of(status, content, one.statuses)

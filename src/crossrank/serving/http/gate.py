"""What every request passes: who may ask, what an answer may say, and a line in the log."""

from __future__ import annotations

import hmac
import time
import traceback
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crossrank.errors import CrossRankError
from crossrank.serving.http.batching import BusyError
from crossrank.serving.http.bodies import RefusedError
from crossrank.serving.http.journal import Journal
from crossrank.serving.http.metrics import Metrics
from crossrank.serving.http.settings import is_loopback

OPEN = ("/", "/v2/health/live", "/v2/health/ready")  # say nothing about the model
LONGEST_MESSAGE = 500
HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]


class Gate:
    """Lets requests through to an application.

    Args:
        app: what answers.
        metrics: where requests are counted.
        token: what ``Authorization: Bearer`` must say; empty for none, and then the host asked for must be this
            machine, so that no page of another host can ask through somebody's browser.
        admin_token: the same below ``/admin/``, where nothing is answered without one.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, *, token: str, admin_token: str) -> None:
        self.app, self.token, self.admin_token = app, token.encode(), admin_token.encode()
        self.journal = Journal(metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, path = time.perf_counter(), 0, scope["path"]

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        told: dict[str, str] = {}
        try:
            self.check(scope)
            await self.app(scope, receive, noted)
        except Exception as error:
            code, content, headers, told = describe(error)
            if not status:
                await answer(noted, code, content, headers)
        self.journal.add(scope["method"], path, status, time.perf_counter() - start, **told)
        self.journal.write()

    def check(self, scope: Scope) -> None:
        """RefusedError for who may not ask."""
        headers = dict(scope["headers"])
        path = scope["path"]
        if not self.token and not is_loopback(_host(headers.get(b"host", b"").decode("latin-1"))):
            raise RefusedError(421, "Without a token only this machine's own name may be asked for.")
        if path in OPEN:
            return
        admin = path.startswith("/admin/")
        wanted = self.admin_token if admin else self.token
        if admin and not wanted:
            raise RefusedError(403, "Admin calls need a server that was started with an admin token.")
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        right = hmac.compare_digest(given.strip(), wanted) and scheme.lower() == b"bearer"
        if wanted and not right:
            raise RefusedError(
                401, "The header Authorization must be 'Bearer' and the token.", WWW_Authenticate="Bearer"
            )


def _host(header: str) -> str:
    """The name in a Host header, without its port."""
    return header.partition("]")[0] if header.startswith("[") else header.partition(":")[0]


def describe(error: Exception) -> tuple[int, dict[str, str], dict[str, str], dict[str, str]]:
    """An error as status, content and headers of an answer, which say nothing of ours, and as facts for the log."""
    headers: dict[str, str] = {}
    if isinstance(error, RefusedError):
        status, message, hint, headers = error.status, str(error), "", error.headers
    elif isinstance(error, HTTPException):
        status, headers = error.status_code, dict(error.headers or {})
        message, hint = f"This path takes {headers.get('Allow', 'no such request')}.", ""
    elif isinstance(error, BusyError):
        status, message, hint = 503, "Too many rows are waiting.", "Send again a little later."
        headers = {"Retry-After": "1"}
    elif isinstance(error, TimeoutError):
        status, message, hint = 504, "The answer took too long.", "Send fewer rows at once."
    elif isinstance(error, CrossRankError):
        status, message, hint = 400, error.message, error.hint
    else:
        status, message, hint = 500, "Something went wrong here; the log knows more.", ""
    content = {"error": message[:LONGEST_MESSAGE]} | ({"hint": hint[:LONGEST_MESSAGE]} if hint else {})
    told = {"error": content["error"]}
    if status == 500:
        told["traceback"] = "".join(traceback.format_exception(error))
    return status, content, headers, told


async def answer(send: Send, status: int, content: dict[str, Any], headers: dict[str, str]) -> None:
    body = orjson.dumps(content)
    fields = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    pairs = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})

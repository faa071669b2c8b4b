"""A client of ``crossrank serve``, with nothing but the standard library."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from crossrank.errors import ConfigError, ServerError

Row = Mapping[str, Any]
LOST = (http.client.RemoteDisconnected, ConnectionError)  # a connection that the server had closed meanwhile


@dataclasses.dataclass(frozen=True)
class Ranked:
    """An item of a ranking.

    Attributes:
        score: its probability, or number where the label is one.
        id: its id, where items are those of a catalogue.
        index: its place among the items that were sent, where they were rows.
        reasons: what moved its logit most, where asked for.
    """

    score: float
    id: Any = None
    index: int | None = None
    reasons: dict[str, Any] | None = None


class Client:
    """Asks a server for scores and rankings over one connection that is kept; threads may share it, and take turns.

    Args:
        url: of the server.
        token: what ``--token-file`` holds there, where it has one.
        seconds: to wait for an answer.

    Raises:
        ServerError: where the server refuses a request, or cannot be reached.

    Example::

        with Client("http://127.0.0.1:8000") as client:
            client.score({"user": "u7", "country": "pt", "hour": 9})             # [0.083]
            client.rank({"user": "u7", "country": "pt", "hour": 9}, k=3)[0].id   # with a catalogue
    """

    def __init__(self, url: str = "http://127.0.0.1:8000", *, token: str = "", seconds: float = 10.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"url must begin with http:// or https:// and a host; got {url!r}.")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=seconds)
        self._prefix, self._turn = parts.path.rstrip("/"), threading.Lock()
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def score(self, rows: Row | Sequence[Row], *, version: str | None = None) -> list[Any]:
        """The probability of each row, or its number; of several classes or tasks, a list of probabilities.

        Args:
            rows: a value for each column of the model; one row, or several.
            version: of the model, where the server has two.
        """
        path = "/score" if version is None else f"/score?version={quote(version, safe='')}"
        content = {"rows": [rows] if isinstance(rows, Mapping) else list(rows)}
        scores: list[Any] = self._ask("POST", path, content)["scores"]
        return scores

    def rank(
        self,
        context: Row,
        items: Sequence[Any] | None = None,
        *,
        k: int = 20,
        exclude: Sequence[Any] = (),
        explain: bool = False,
    ) -> list[Ranked]:
        """The best k items for a context, best first.

        Args:
            context: a value for each column of the context.
            items: ids of the server's catalogue, or rows with the item's columns; the whole catalogue where left out.
            k: how many at most.
            exclude: ids that must not be among them.
            explain: tell what moved each score.
        """
        content: dict[str, Any] = {"context": context, "k": k, "exclude": list(exclude), "explain": explain}
        if items is not None:
            content["items"] = list(items)
        return [Ranked(**one) for one in self._ask("POST", "/rank", content)["items"]]

    def about(self) -> dict[str, Any]:
        """What the server answers with: the model's name, version, label and columns, and how many items."""
        about: dict[str, Any] = self._ask("GET", "/model")
        return about

    def is_ready(self) -> bool:
        """Whether the server answers."""
        try:
            self._ask("GET", "/v2/health/ready")
        except ServerError:
            return False
        return True

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: str, path: str, content: Any = None) -> Any:
        body = None if content is None else json.dumps(content, default=_plain).encode()
        with self._turn:
            try:
                status, answer = self._send(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                place = f"{self._connection.host}:{self._connection.port}"
                raise ServerError(f"The server at {place} must answer; got: {error or type(error).__name__}.") from None
        try:
            found = json.loads(answer) if answer else {}
        except ValueError:
            status, found = status if status >= 400 else 502, {"error": "something that is not JSON"}
        if status >= 400:
            told = found if isinstance(found, dict) else {}
            message = str(told.get("error", "no reason given"))
            raise ServerError(
                f"The server must take the request; got status {status}: {message}",
                hint=str(told.get("hint", "")),
                status=status,
            )
        return found

    def _send(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Ask once, and once more where the connection that was kept had been closed."""
        kept = self._connection.sock is not None
        with contextlib.suppress(*(LOST if kept else ())):
            return self._send_once(method, path, body)
        self._connection.close()
        return self._send_once(method, path, body)

    def _send_once(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        self._connection.request(method, self._prefix + path, body, self._headers)
        response = self._connection.getresponse()
        return response.status, response.read()


def _plain(value: Any) -> Any:
    """A number of numpy as Python's, and a date as text."""
    return value.item() if hasattr(value, "item") else str(value)

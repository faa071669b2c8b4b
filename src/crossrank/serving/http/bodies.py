"""Reading what was sent, at a bounded cost: so many bytes, so many rows, so much time, no value that is a surprise."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from starlette.types import Receive, Scope

from crossrank.data.picking import all_of
from crossrank.serving.http.served import Row, Served

IDS = frozenset({str, int})
SCALARS = frozenset({str, int, float, bool, type(None)})
MOST_OTHER_COLUMNS = 100  # which the model does not read
BYTES_IN_FLIGHT = 2**28
MOST_K, MOST_EXPLAINED = 10_000, 20


class RefusedError(Exception):
    """A request that is answered with an error: its status, and headers of the answer."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}


class BodyReader:
    """Reads bodies of up to ``largest`` bytes, each within ``seconds``, and not too many at once."""

    def __init__(self, largest: int, seconds: float) -> None:
        self.largest, self.seconds, self.in_flight = largest, seconds, 0

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        headers = dict(scope["headers"])
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise RefusedError(415, "A body must be sent as it is; got a compressed one.")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 15 or int(length) > self.largest:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedError(499, "The client has gone.")
                    part, more = message.get("body", b""), message.get("more_body", False)
                    size += len(part)
                    self.in_flight += len(part)
                    if size > self.largest:
                        raise self._too_large()
                    if self.in_flight > max(BYTES_IN_FLIGHT, self.largest):
                        raise RefusedError(503, "Too much is being sent at once.", Retry_After="1")
                    parts.append(part)
        except TimeoutError:
            raise RefusedError(408, f"A body must arrive within {self.seconds:g} s.", Connection="close") from None
        finally:
            self.in_flight -= size
        return b"".join(parts)

    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"A body must have at most {self.largest:,} bytes.", Connection="close")


def json_of(body: bytes | memoryview) -> dict[str, Any]:
    """The JSON object of a body; deep nesting, NaN and numbers beyond a double are refused by the parser."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusedError(400, f"The body must be JSON; {error}.") from None
    if not isinstance(content, dict):
        raise RefusedError(400, f"The body must be a JSON object; got {kind_of(content)}.")
    return content


def rows_of(content: Mapping[str, Any], model: Served, most: int) -> Sequence[Row]:
    """The rows of a body: those under "rows", or the one that the body is itself."""
    rows = content["rows"] if "rows" in content and "rows" not in model.inputs else [content]
    if not isinstance(rows, list):
        raise RefusedError(400, f"rows must be an array of objects; got {kind_of(rows)}.")
    if len(rows) > most:
        raise RefusedError(413, f"A request must have at most {most:,} rows; got {len(rows):,}.")
    for place, row in enumerate(rows):
        check_row(row, f"rows[{place}]", model)
    return rows


def ranking_of(
    content: Mapping[str, Any], model: Served, most: int
) -> tuple[Row, list[Any] | None, int, list[Any], bool]:
    """What a body asks to rank: context, items (None for the whole catalogue), how many, ids left out, with reasons."""
    context, items, k = content.get("context", {}), content.get("items"), content.get("k", 20)
    exclude, explain = content.get("exclude", []), content.get("explain", False)
    if model.schema.label.num_outputs > 1:
        raise RefusedError(400, "Ranking needs one score for each item; this model answers several classes or tasks.")
    if type(explain) is not bool:
        raise RefusedError(400, f"explain must be true or false; got {kind_of(explain)}.")
    largest = MOST_EXPLAINED if explain else MOST_K
    if type(k) is not int or not 1 <= k <= largest:
        raise RefusedError(400, f"k must be a whole number between 1 and {largest:,}{' with explain' * explain}.")
    check_row(context, "context", model)
    if not isinstance(items, list) and not (items is None and model.num_items is not None):
        raise RefusedError(400, f"items must be an array of objects or ids; got {kind_of(items)}.")
    if items is not None and len(items) > most:
        raise RefusedError(413, f"A request must have at most {most:,} items; got {len(items):,}.")
    rows = items is not None and len(items) > 0 and isinstance(items[0], dict)
    if items and rows:
        for place, item in enumerate(items):
            check_row(item, f"items[{place}]", model)
    elif items and not all_of(items, IDS):
        place, item = next((place, item) for place, item in enumerate(items) if type(item) not in IDS)
        raise RefusedError(400, f"items[{place}] must be an id, as the first is; got {kind_of(item)}.")
    if not isinstance(exclude, list) or (exclude and rows) or not all_of(exclude, IDS):
        raise RefusedError(400, "exclude must be an array of ids, and goes with items that have one.")
    return context, items, k, exclude, explain


def check_row(row: Any, where: str, model: Served) -> None:
    """Refuse what is no flat object of plain values, or is far larger than the model's row."""
    if not isinstance(row, dict):
        raise RefusedError(400, f"{where} must be an object; got {kind_of(row)}.")
    if len(row) > len(model.inputs) + MOST_OTHER_COLUMNS:
        raise RefusedError(400, f"{where} must have the model's {len(model.inputs)} columns; got {len(row):,}.")
    if all_of(row.values(), SCALARS):
        return
    for name in model.inputs:
        value = row.get(name)
        if type(value) in SCALARS:
            continue
        if name not in model.lists or not isinstance(value, list):
            raise RefusedError(400, f"{where}.{name} must be one value; got {kind_of(value)}.")
        if not all(type(one) in SCALARS for one in value):
            raise RefusedError(400, f"{where}.{name} must be an array of plain values.")


def kind_of(value: object) -> str:
    """What JSON calls it."""
    names = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")

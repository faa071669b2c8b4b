"""The log: one line of JSON for each event, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

import orjson


def log(event: str, **facts: Any) -> None:
    """Write a line."""
    log_all([{"time": round(time.time(), 3), "event": event, **facts}])


def log_all(events: Iterable[dict[str, Any]]) -> None:
    """Write lines that are complete, at once."""
    sys.stderr.buffer.write(b"".join([orjson.dumps(one, str, orjson.OPT_APPEND_NEWLINE) for one in events]))
    sys.stderr.buffer.flush()

"""The log: one line of JSON for each event, on standard error."""

from __future__ import annotations

import sys
import time
from typing import Any

import orjson


def log(event: str, **facts: Any) -> None:
    """Write a line."""
    line = orjson.dumps({"time": round(time.time(), 3), "event": event, **facts}, default=str)
    sys.stderr.buffer.write(line + b"\n")
    sys.stderr.buffer.flush()

"""The requests that were answered, in the log and in the metrics."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Any

from crossrank.serving.http.logs import log_all
from crossrank.serving.http.metrics import Metrics

PROBES = ("/v2/health/live", "/v2/health/ready")
PATHS = frozenset({"/score", "/rank", "/model", "/metrics", "/openapi.json", "/admin/reload", "/", *PROBES})


class Journal:
    """Writes down requests, those of a pass in one go."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._lines: list[dict[str, Any]] = []
        self._seconds: defaultdict[tuple[str, int], list[float]] = defaultdict(list)

    def add(self, method: str, path: str, status: int, seconds: float, **told: str) -> None:
        """Note a request, which is written as soon as the loop has nothing more urgent to do."""
        if not self._lines:
            asyncio.get_running_loop().call_soon(self.write)
        facts = {"method": method, "path": path[:200], "status": status, "ms": round(1000 * seconds, 3), **told}
        self._lines.append({"time": round(time.time(), 3), "event": "request", **facts})
        self._seconds[path, status].append(seconds)

    def write(self) -> None:
        """Write what was noted."""
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        for (path, status), seconds in self._seconds.items():
            place = path if path in PATHS else "/v2/…/infer" if path.endswith("/infer") else "other"
            self.metrics.answered(place, status, seconds)
        self._seconds.clear()
        log_all(lines)

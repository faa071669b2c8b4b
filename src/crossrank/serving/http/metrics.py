"""What Prometheus reads.

With several processes each keeps its numbers in files of a folder (``PROMETHEUS_MULTIPROC_DIR``, which the server
makes), and whichever is asked adds them up.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from crossrank.serving.http.served import Scores
from crossrank.serving.http.settings import METRICS_FOLDER

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
EDGES = np.array([0.01, 0.02, 0.05, *np.arange(1, 10) / 10, 0.95, 0.98, 0.99])
RANGES = [f"{a:g}-{b:g}" for a, b in zip([0, *EDGES], [*EDGES, 1], strict=True)]
DIFFERENCES = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


class Durations(Histogram):
    """A histogram to which many numbers are added at the cost of few."""

    def observe_all(self, amounts: Sequence[float]) -> None:
        self._sum.inc(sum(amounts))
        for place, count in Tally(bisect_left(self._upper_bounds, amount) for amount in amounts).items():
            self._buckets[place].inc(count)


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        # To look for one takes longer than to add.
        self._counters: dict[tuple[str, int], tuple[Counter, Durations]] = {}
        self.requests = Counter("crossrank_requests", "Requests answered.", ["path", "status"], **own)
        self.seconds = Durations("crossrank_request_seconds", "Time to answer.", ["path"], buckets=SECONDS, **own)
        self.waiting = Gauge("crossrank_queue_rows", "Rows that wait.", multiprocess_mode="livesum", **own)
        self.batches = Histogram("crossrank_batch_rows", "Rows scored in one pass.", buckets=ROWS, **own)
        self.rows = Counter("crossrank_rows", "Rows scored.", **own)
        self.unseen = Counter("crossrank_unseen", "Values that training had not seen.", ["column"], **own)
        self.scores = Counter("crossrank_scores", "Probabilities by their range.", ["range"], **own)
        self.score_sum = Gauge("crossrank_score_sum", "Sum of the scores.", multiprocess_mode="sum", **own)
        self.loaded = Gauge("crossrank_model", "Processes with it.", ["version"], multiprocess_mode="livesum", **own)
        self.reloads = Counter("crossrank_reloads", "Reloads, by outcome.", ["outcome"], **own)
        self.shadow = Histogram(
            "crossrank_shadow_difference", "Distance to the shadow's score.", buckets=DIFFERENCES, **own
        )

    def answered(self, path: str, status: int, seconds: Sequence[float]) -> None:
        """Count requests that took so long each."""
        if (path, status) not in self._counters:
            self._counters[path, status] = self.requests.labels(path, status), self.seconds.labels(path)
        requests, times = self._counters[path, status]
        requests.inc(len(seconds))
        times.observe_all(seconds)

    def passed(self, scores: Scores, unseen: Mapping[str, int], *, probabilities: bool) -> None:
        """Count a pass; of several classes or tasks the largest probability counts."""
        self.batches.observe(len(scores))
        self.rows.inc(len(scores))
        for column, count in unseen.items():
            self.unseen.labels(column).inc(count)
        if scores.ndim == 2:
            scores = scores.max(axis=1, initial=0)
        self.score_sum.inc(float(scores.sum(dtype=np.float64)))
        if probabilities:
            counts = np.bincount(np.searchsorted(EDGES, scores), minlength=len(RANGES)).tolist()
            for name, count in zip(RANGES, counts, strict=True):
                if count:
                    self.scores.labels(name).inc(count)

    def page(self) -> bytes:
        """Everything, as text."""
        registry = self.registry
        if METRICS_FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

"""What both libraries of trees need: the table with its categories and dates, and a search within a budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from table_job import Job

ROUNDS, PATIENCE = 2000, 50  # at most so many trees, fewer where the validation rows no longer get better


def read(job: Job) -> list[tuple[pd.DataFrame, np.ndarray]]:
    """Features and labels of each part; a date as weekday, day of the year, hour, and seconds since the first."""
    frame = pd.read_csv(job.table, dtype=dict.fromkeys(job.categories, "str"))
    labels = frame.pop(job.label).to_numpy()
    for name in job.dates:
        moments = pd.to_datetime(frame.pop(name))
        parts = {"weekday": moments.dt.weekday, "day": moments.dt.dayofyear, "hour": moments.dt.hour}
        seconds = (moments - moments.min()).dt.total_seconds()
        frame = frame.assign(**{f"{name} {part}": values for part, values in parts.items()}, **{name: seconds})
    for name in frame.columns.difference(job.categories):
        frame[name] = pd.to_numeric(frame[name], errors="coerce")  # "unknown" is missing
    ends = np.cumsum([0, *job.rows])
    return [(frame.iloc[start:stop].copy(), labels[start:stop]) for start, stop in pairwise(ends)]


def loss(job: Job, answers: np.ndarray, labels: np.ndarray) -> float:
    """What early stopping looks at: log loss, or mean squared error."""
    if job.real:
        return float(np.mean((answers - labels) ** 2))
    clipped = np.clip(answers, 1e-15, 1 - 1e-15)
    return float(-np.mean(np.where(labels == 1, np.log(clipped), np.log1p(-clipped))))


def search(
    job: Job,
    draw: Callable[[np.random.Generator], dict[str, Any]],
    measure: Callable[[dict[str, Any], float], float],
) -> dict[str, Any]:
    """The settings with the least loss on the validation rows among the defaults and random ones, within the budget."""
    chance, stop = np.random.default_rng(job.seed), time.perf_counter() + 60 * job.minutes
    best, least, settings = {}, math.inf, dict[str, Any]()
    while time.perf_counter() < stop:
        found = measure(settings, stop - time.perf_counter())
        if found < least:
            best, least = settings, found
        settings = draw(chance)
    return best

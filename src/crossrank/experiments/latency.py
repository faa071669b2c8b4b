"""How long models take to answer."""

from __future__ import annotations

import statistics
import time

import torch

from crossrank.models import Model
from crossrank.nn import Bag, Features

BATCHES = (1, 256)


@torch.inference_mode()
def measure_latency(models: list[Model], *, repeats: int = 50) -> list[dict[int, float]]:
    """Median milliseconds of a forward pass by batch size, the models taking turns."""
    found: list[dict[int, float]] = [{} for _ in models]
    for size in BATCHES:
        seconds: list[list[float]] = [[] for _ in models]
        for _ in range(5 + repeats):
            for model, times in zip(models, seconds, strict=True):
                rows = _blank(model, size)
                start = time.perf_counter()
                model(rows)
                times.append(time.perf_counter() - start)
        for answer, times in zip(found, seconds, strict=True):
            answer[size] = 1e3 * statistics.median(times[5:])  # the first ones warm up
    return found


def _blank(model: Model, num_rows: int) -> Features:
    """Rows of missing values."""
    of_kind = model.layout.of_kind
    bag = Bag(torch.zeros(num_rows, dtype=torch.int32), torch.arange(num_rows + 1))
    ids = torch.zeros(num_rows, len(of_kind("categorical")), dtype=torch.int32)
    return Features(ids, torch.zeros(num_rows, model.layout.num_numbers), (bag,) * len(of_kind("multivalent")))

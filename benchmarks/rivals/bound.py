"""The matrix products of a step alone: per layer one forward, one for its input's gradient, one for its weight's."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import torch
from job import Job


def main() -> None:
    job = Job.read()
    dtype = torch.bfloat16 if job.bfloat16 else torch.float32
    sizes = [(job.input_dim, job.input_dim)] * job.num_layers + list(pairwise([job.input_dim, *job.deep_sizes]))
    layers = [
        (torch.randn(job.batch_size, wide, dtype=dtype), torch.randn(out, wide, dtype=dtype)) for wide, out in sizes
    ]
    marks = [time.perf_counter()]
    for _ in range(1 + job.num_windows):
        for _ in range(job.window):
            for x, weight in layers:
                y = x @ weight.T
                _ = y @ weight, y.T @ x
        marks.append(time.perf_counter())
    rows = job.window * job.batch_size
    print(json.dumps([rows / (stop - start) for start, stop in pairwise(marks)][1:]))


if __name__ == "__main__":
    main()

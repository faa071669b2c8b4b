"""What every contender is asked to train, and the clock that times its own training loop.

A contender is a script that is started in its own environment with the path of a job as its argument. It trains for
the job's number of steps and prints, as its last line, the samples per second of each window after the warm-up.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Job:
    """A DCN-V2 of a given shape, the rows to train it on, and for how long."""

    folder: str  # of categorical.npy (N, F), numeric.npy (N, M), labels.npy (N,)
    vocab_sizes: list[int]
    embedding_dim: int
    num_layers: int
    deep_sizes: list[int]
    batch_size: int
    window: int  # steps
    num_windows: int  # after the first, which warms up
    bfloat16: bool = False
    processor_time: bool = False  # of one thread, for a machine that others keep busy

    @classmethod
    def read(cls) -> Job:
        job = cls(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
        if job.processor_time:
            time.perf_counter = time.process_time  # for crossrank's own clock too
        torch.set_num_threads(job.num_threads)
        torch.manual_seed(0)
        return job

    @property
    def num_threads(self) -> int:
        return 1 if self.processor_time else 2

    @property
    def steps(self) -> int:
        return self.window * (1 + self.num_windows)

    @property
    def input_dim(self) -> int:
        return len(self.vocab_sizes) * self.embedding_dim + self.array("numeric").shape[1]

    def array(self, name: str) -> np.ndarray:
        """The first rows of one array, as many as the steps take."""
        rows = np.load(Path(self.folder) / f"{name}.npy", mmap_mode="r")
        return np.array(rows[: self.steps * self.batch_size])

    def columns(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Categorical and numeric columns by name."""
        ids, numbers = self.array("categorical").astype(np.int64), self.array("numeric")
        return (
            {f"C{i + 1}": np.ascontiguousarray(column) for i, column in enumerate(ids.T)},
            {f"I{i + 1}": np.ascontiguousarray(column) for i, column in enumerate(numbers.T)},
        )


class Clock:
    """Notes when each step of an optimiser ends, whoever's loop calls it."""

    def __init__(self, job: Job, optimizer: torch.optim.Optimizer) -> None:
        self.job, self.ends = job, []
        optimizer.register_step_post_hook(self._note)

    def _note(self, *_: Any) -> None:
        self.ends.append(time.perf_counter())

    def report(self) -> None:
        if len(self.ends) != self.job.steps:
            raise SystemExit(f"{self.job.steps} steps were asked for; there were {len(self.ends)}.")
        marks = self.ends[self.job.window - 1 :: self.job.window]
        rows = self.job.window * self.job.batch_size
        print(json.dumps([rows / (stop - start) for start, stop in pairwise(marks)]))


def fused_adam(model: torch.nn.Module) -> torch.optim.Adam:
    """Dense Adam in its fastest form on a processor."""
    return torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

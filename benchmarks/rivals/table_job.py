"""What every contender of ``tables.py`` is asked: learn a table, score its test rows, say how long it took.

A contender is a script that is started in its own environment with the path of a job as its argument. It writes what it
answers to the test rows, and prints, as its last line, seconds and rows per second; or the settings it found.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Job:
    table: str  # a csv file: training rows first, then validation rows, then test rows
    rows: list[int]  # of each of the three
    label: str
    real: bool  # the label is a number, otherwise 0 or 1
    categories: list[str]  # for those who must be told
    dates: list[str]
    seed: int
    answers: str  # the file to write, of probabilities or numbers
    minutes: float = 0.0  # where not 0: look so long for settings on the validation rows, and tell them
    settings: dict[str, Any] | None = None  # found before; None for the defaults
    group: str = ""  # of a ranking: the column of the groups, by which each of the three parts is sorted

    @classmethod
    def read(cls) -> Job:
        return cls(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))

    def found(self, settings: dict[str, Any]) -> None:
        print(json.dumps({"settings": settings}))

    def finish(self, score: Callable[[], Any], *, seconds: float) -> None:
        """Time the scoring of all test rows, a second of it at least, and report."""
        answers, calls, started = np.asarray(score()), 0, time.perf_counter()
        while time.perf_counter() - started < 1:
            score()
            calls += 1
        speed = calls * len(answers) / (time.perf_counter() - started)
        np.save(self.answers, answers.astype(np.float64))
        print(json.dumps({"seconds": seconds, "rows_per_second": speed}))

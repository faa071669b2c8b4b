"""Long work lets go of what it has used; `benchmarks/memory.py --leaks` takes 10,000 steps and 100,000 requests."""

from __future__ import annotations

import gc
import itertools
import re
import sys
from pathlib import Path

import pytest

from crossrank.serving.http.served import Served
from crossrank.training import train
from crossrank.training.processor import ProcessorEngine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
# More than chance: a batch kept at each step, or a row at each request, makes thousands of objects. Memory is asked in
# each stretch, since an allocator takes its room once, at a time of its own.
OBJECTS, MB = 200, 8


def held() -> tuple[int, float]:
    """Objects that Python can reach, and MB that belong to this process alone."""
    gc.collect()
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return len(gc.get_objects()), int(found[1]) / 1024


def assert_steady(seen: list[tuple[int, float]]) -> None:
    assert len(seen) == 4
    assert seen[-1][0] - seen[0][0] < OBJECTS, seen
    assert min(after[1] - before[1] for before, after in itertools.pairwise(seen)) < MB, seen


def test_a_training_step_leaves_nothing_behind(dataset, tmp_path, monkeypatch) -> None:
    step, seen, steps = ProcessorEngine.step, [], itertools.count(1)

    def watched(self, batch):
        if next(steps) in (300, 600, 900, 1200):  # behind evaluations and checkpoints of each kind
            seen.append(held())
        return step(self, batch)

    monkeypatch.setattr(ProcessorEngine, "step", watched)
    training = {"batch_size": 64, "epochs": 100, "max_steps": 1200, "eval_every": 150, "patience": 0, "memory": "none"}
    config = {"model": {"embedding": {"dim": 4}, "deep": {"sizes": [8]}}, "training": training}
    train(dataset, into=tmp_path / "run", config=config)
    assert_steady(seen)


def test_a_request_leaves_nothing_behind(run, clicks) -> None:
    served, rows, seen = Served.open(run.path), clicks.drop("click").to_dicts(), []
    for number, row in enumerate(itertools.islice(itertools.cycle(rows), 8001)):
        if number in (2000, 4000, 6000, 8000):  # every row has been asked by then
            seen.append(held())
        served.score([row])
    assert_steady(seen)

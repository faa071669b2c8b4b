"""The loader alone, and its share of a training step, at Criteo's shape from a mapped dataset.

python benchmarks/loader.py --rows 2000000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from crossrank.data import EncodedDataset
from crossrank.data.generators.synthetic import synthesize
from crossrank.training import train
from crossrank.training.profile import StepClock

BATCH_SIZE = 4096
MODEL = {"embedding": {"dim": 39}, "cross": {"num_layers": 2}, "deep": {"sizes": [768, 768]}}


def rows_per_second(dataset: EncodedDataset, *, seed: int | None, epochs: int = 3) -> float:
    """The best of some epochs."""
    best = 0.0
    for epoch in range(epochs):
        start = time.perf_counter()
        rows = sum(len(batch) for batch in dataset.train.batches(BATCH_SIZE, seed=seed, epoch=epoch))
        best = max(best, rows / (time.perf_counter() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        synthesize(Path(folder) / "dataset", rows=arguments.rows, format="encoded")
        dataset = EncodedDataset.open(Path(folder) / "dataset")
        print(f"in order  {rows_per_second(dataset, seed=None):>14,.0f} rows/s")
        print(f"shuffled  {rows_per_second(dataset, seed=0):>14,.0f} rows/s")
        clock = StepClock()
        training = {"batch_size": BATCH_SIZE, "max_steps": arguments.steps}
        train(dataset, into=Path(folder) / "run", config={"model": MODEL, "training": training}, clock=clock)
        step = sum(seconds for part, seconds in clock.seconds.items() if part != "log")
        print(f"of a step {clock.seconds['load'] / step:>14.2%} waiting for the loader")


if __name__ == "__main__":
    main()

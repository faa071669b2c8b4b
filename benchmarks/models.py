"""Print how long a forward and a backward pass of every model takes: ``python benchmarks/models.py``."""

from __future__ import annotations

import argparse

from crossrank.experiments.bench import bench_models, bench_table

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=512, help="rows in a batch")
    parser.add_argument("--threads", type=int, default=2, help="threads that torch may use")
    parser.add_argument("--repeats", type=int, default=31, help="steps of each model, of which the median counts")
    options = parser.parse_args()
    print(bench_table(bench_models(batch_size=options.batch, num_threads=options.threads, repeats=options.repeats)))

"""crossrank on a table, as ``crossrank train --train A --valid B --test C --label …`` does it.

argv = a job of ``table_job.py``.
"""

import tempfile
import time
from pathlib import Path

import polars as pl
import torch
from table_job import Job

import crossrank as cr
from crossrank.data.drafting import draft_table
from crossrank.data.splits import SPLITS
from crossrank.data.table import open_splits
from crossrank.experiments.budget import find_settings

job = Job.read()
torch.set_num_threads(1)
with tempfile.TemporaryDirectory(dir=Path(job.answers).parent) as folder:
    text, first, files = pl.read_csv(job.table, infer_schema=False), 0, {}
    for name, rows in zip(SPLITS, job.rows, strict=True):
        files[name] = Path(folder) / f"{name}.csv"
        text.slice(first, rows).write_csv(files[name])
        first += rows
    run, start = Path(folder) / "run", time.perf_counter()
    table = open_splits(**files)
    schema = draft_table(table, label=job.label).schema
    config = job.settings or {}
    if job.minutes:
        found = find_settings(
            table, minutes=job.minutes, config=config, schema=schema, seed=job.seed, say=lambda line: None
        )
        job.found(found)
    else:
        trained = cr.train(table, into=run, config=config, schema=schema, seed=job.seed, progress=False)
        seconds = time.perf_counter() - start
        test = pl.read_csv(
            job.table, infer_schema_length=None, schema_overrides=dict.fromkeys(job.categories, pl.String)
        )
        test = test.slice(sum(job.rows[:2]))
        job.finish(lambda: trained.predict(test), seconds=seconds)

"""crossrank on a table, as ``crossrank train table.csv --label …`` does it: argv = a job of ``table_job.py``."""

import tempfile
import time
from pathlib import Path

import polars as pl
import torch
from table_job import Job

import crossrank as cr
from crossrank.data.drafting import draft_table
from crossrank.data.table import open_table
from crossrank.experiments.budget import find_settings

job = Job.read()
torch.set_num_threads(1)
total = sum(job.rows)
split = {"method": "time", "fractions": [rows / total for rows in job.rows]}  # by position: the file is in order
with tempfile.TemporaryDirectory(dir=Path(job.answers).parent) as folder:
    run, start = Path(folder) / "run", time.perf_counter()
    table = open_table(job.table)
    schema = draft_table(table, label=job.label).schema
    config = {**(job.settings or {}), "split": split}
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

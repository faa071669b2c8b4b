"""crossrank on rows in groups, with a loss and otherwise what it fills in: argv = a job of ``table_job.py``."""

import json
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
import torch
from table_job import Job

import crossrank as cr
from crossrank.schema import Categorical, Label, Numeric, Schema

job = Job.read()
torch.set_num_threads(1)
start = time.perf_counter()
names = [name for name in pl.scan_csv(job.table).collect_schema().names() if name != job.label]
columns = [
    Categorical(name=name) if name in job.categories else Numeric(name=name, encoding="scalar")
    for name in names
    if name != job.group or name in job.categories
]
schema = Schema(columns, Label(name=job.label, kind="grade"), group=job.group)
split = {
    "method": "time",
    "fractions": [rows / sum(job.rows) for rows in job.rows],
}  # by position
training = {"monitor": "ndcg@10", **job.settings["training"]}
with tempfile.TemporaryDirectory(dir=Path(job.answers).parent) as folder:
    config = {"split": split, "training": training}
    run = cr.train(job.table, into=Path(folder) / "run", config=config, schema=schema, seed=job.seed, progress=False)
    test = pl.read_csv(job.table, infer_schema=False).tail(job.rows[2])
    np.save(job.answers, run.predict(test).astype(np.float64))
print(json.dumps({"seconds": time.perf_counter() - start}))

"""Make the golden folders of the present formats: `python tests/golden/make.py tests/golden/NAME`.

They are made once for each format and never again: later versions must open them, with the same answers.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import polars as pl

import crossrank as cr
from crossrank.data.prepare import prepare
from crossrank.schema import Categorical, Label, Multivalent, Numeric, Schema

COLUMNS = [Categorical(name="user"), Multivalent(name="tags", separator="|"), Numeric(name="age", encoding="scalar")]
CONFIG = {
    "model": {"name": "dcn-v2", "embedding": {"dim": 2}, "cross": {"num_layers": 1}, "deep": {"sizes": [2]}},
    "training": {"batch_size": 32, "max_steps": 4, "learning_rate": 0.05, "device": "cpu"},
}
ROWS = [{"user": "u1", "tags": "a|b", "age": 30}, {"user": "never seen", "tags": None, "age": None}]


def main(folder: Path) -> None:
    draw = np.random.default_rng(0)
    user = draw.integers(0, 4, 90)
    rows = {"user": [f"u{i}" for i in user], "tags": draw.choice(["a", "a|b", "b|c"], 90), "age": 20 + 3 * user}
    table = pl.DataFrame({**rows, "label": (draw.random(90) < 0.2 + 0.2 * user).astype(int)})
    dataset = prepare(table, Schema(COLUMNS, Label(name="label")), folder / "dataset", progress=False)
    run = cr.train(dataset, into=folder / "run", config=CONFIG, progress=False)
    shutil.rmtree(run.path / "checkpoint")  # which is promised to no later version
    cr.export(run, folder / "bundle")
    about = {"rows": ROWS, "scores": run.predict(ROWS).tolist(), "labels": np.asarray(dataset.train.labels).tolist()}
    (folder / "expected.json").write_text(json.dumps(about) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

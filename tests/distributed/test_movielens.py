"""Real ratings, where they are: the number of processes does not change what is learned."""

from __future__ import annotations

import subprocess
import sys

import pytest
from torchrun import ENVIRONMENT, NEEDS

from crossrank.data.prepare import prepare
from crossrank.data.sources import open_source
from crossrank.runs import Run

pytestmark = NEEDS


def test_one_and_two_processes_end_with_one_test_log_loss_on_movielens(real_data, tmp_path):
    table, schema, split = open_source("movielens-1m", [real_data / "ml-1m.zip"])
    prepare(table, schema, tmp_path / "dataset", split=split, progress=False)
    found = []
    for workers in ("1", "2"):
        into = tmp_path / workers
        words = ["train", str(tmp_path / "dataset"), "--into", str(into), "--workers", workers]
        for setting in ("batch_size=8192", "max_steps=72", "eval_every=72", "learning_rate=0.005"):  # of 72, an epoch
            words += ["--set", f"training.{setting}"]
        subprocess.run([sys.executable, "-m", "crossrank", *words], env=ENVIRONMENT, check=True, capture_output=True)
        found.append(Run.open(into).report["test"]["logloss"])
    assert found[0] < 0.55  # of the base rate alone: 0.6
    assert found[1] == pytest.approx(found[0], abs=0.0005)

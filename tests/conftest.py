"""Small things that many tests need, made once."""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run on a processor; Triton asks when it first sees them

from crossrank.data.generators.demo import click_log, schema
from crossrank.data.prepare import prepare
from crossrank.training import train

SMALL = {
    "model": {"embedding": {"dim": 4}, "deep": {"sizes": [8]}},
    "training": {"batch_size": 128, "epochs": 2, "log_every": 5, "learning_rate": 0.01},
}


@pytest.fixture(scope="session")
def clicks():
    """Two thousand rows of the demo's click log, as a data frame."""
    return click_log(2000, seed=3).frame


@pytest.fixture(scope="session")
def dataset(clicks, tmp_path_factory):
    """The same rows, encoded."""
    return prepare(clicks, schema(), tmp_path_factory.mktemp("clicks") / "dataset")


@pytest.fixture(scope="session")
def run(dataset, tmp_path_factory):
    """A small DCN-V2 trained on them."""
    return train(dataset, into=tmp_path_factory.mktemp("runs") / "small", config=SMALL)


@pytest.fixture
def kill_at_step(monkeypatch):
    """A function that lets training stop at a step, counted over all trainings, and returns the steps as they come."""
    from crossrank.training.processor import ProcessorEngine

    def kill(number: int) -> list:
        step, calls = ProcessorEngine.step, []

        def killed(self, batch):
            calls.append(batch)
            if len(calls) == number:
                raise KeyboardInterrupt
            return step(self, batch)

        monkeypatch.setattr(ProcessorEngine, "step", killed)
        return calls

    return kill


@pytest.fixture
def held(monkeypatch) -> dict:
    """Where the model of a training can be found as it is before it is saved."""
    module, kept = sys.modules["crossrank.training.finish"], {}
    original = module.write_run

    def keep(folder, *, model, **parts):
        kept["model"] = copy.deepcopy(model)
        original(folder, model=model, **parts)

    monkeypatch.setattr(module, "write_run", keep)
    return kept


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with MovieLens-1M and the samples of Criteo and Avazu."""
    folder = os.environ.get("CROSSRANK_DATA")
    if not folder:
        pytest.skip("CROSSRANK_DATA is not set: the real data is not here")
    return Path(folder)

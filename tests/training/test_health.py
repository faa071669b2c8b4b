"""Numbers at their limits: what stays finite, and what is said of what does not."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch

from crossrank.data.prepare import prepare
from crossrank.errors import ConfigError, DataError
from crossrank.evaluation.metrics import measure
from crossrank.schema import Categorical, Label, Numeric, Schema
from crossrank.training import train
from crossrank.training.processor import ProcessorEngine

SMALL = {"model": {"embedding": {"dim": 2}, "deep": {"sizes": [4]}}, "training": {"batch_size": 16, "device": "cpu"}}


def table(rows: int = 200, *, columns: int = 1) -> pl.DataFrame:
    random = np.random.default_rng(0)
    numbers = {f"x{i}": random.normal(size=rows) for i in range(columns)}
    return pl.DataFrame({"y": np.arange(rows) % 2, "c": random.integers(0, 5, rows).astype(str), **numbers})


def dataset_of(frame, folder):
    features = [Categorical(name="c"), *(Numeric(name=name) for name in frame.columns if name.startswith("x"))]
    return prepare(frame, Schema(features, Label(name="y")), folder, progress=False)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_with_its_step_and_batch(tmp_path, monkeypatch, bad):
    dataset, steps, step = dataset_of(table(), tmp_path / "data"), [], ProcessorEngine.step
    per_epoch = dataset.train.num_batches(16)

    def spoiled(self, batch):
        steps.append(batch)
        return step(self, batch) * (bad if len(steps) == per_epoch + 3 else 1)

    monkeypatch.setattr(ProcessorEngine, "step", spoiled)
    with pytest.raises(ConfigError, match=f"at step {per_epoch + 3}, batch 3 of epoch 2") as caught:
        config = {**SMALL, "training": {**SMALL["training"], "eval_every": per_epoch}}
        train(dataset, into=tmp_path / "run", config=config, progress=False)
    assert "learning_rate" in caught.value.hint
    assert f"What was good at step {per_epoch} is kept in {tmp_path / 'run.partial'}" in caught.value.hint
    assert (tmp_path / "run.partial" / "checkpoint").is_dir()


def test_gradients_that_are_not_finite_stop_the_training(tmp_path, monkeypatch):
    dataset, step = dataset_of(table(), tmp_path / "data"), ProcessorEngine.step

    def spoiled(self, batch):
        losses = step(self, batch)
        next(self.model.parameters()).data.fill_(float("nan"))  # as a step along such a gradient does
        return losses

    monkeypatch.setattr(ProcessorEngine, "step", spoiled)
    with pytest.raises(ConfigError, match="must stay finite"):
        train(dataset, into=tmp_path / "run", config=SMALL, progress=False)


def test_a_number_that_is_none_in_a_dataset_is_refused(tmp_path):
    dataset = dataset_of(table(), tmp_path / "data")
    array = np.load(tmp_path / "data" / "train" / "numeric.npy", mmap_mode="r+")
    array[3, 0] = np.nan
    array.flush()
    with pytest.raises(DataError, match=r"numeric\.npy"):
        type(dataset).open(tmp_path / "data").split("train")


def test_extreme_logits_have_finite_metrics():
    logits = np.array([-1e30, 1e30, -700.0, 700.0, 0.0], np.float64)
    found = measure(np.array([0.0, 1.0, 1.0, 0.0, 1.0]), logits)
    assert np.isfinite(found["logloss"])
    assert found["logloss"] == pytest.approx((0 + 0 + 700 + 700 + np.log(2)) / 5)


def test_columns_that_tell_nothing_and_batches_larger_than_the_data_train(tmp_path):
    frame = table(60).with_columns(x0=pl.lit(3.0), c=pl.lit(None, pl.String))
    config = {**SMALL, "training": {"batch_size": 10**6, "epochs": 2, "device": "cpu"}}
    run = train(dataset_of(frame, tmp_path / "data"), into=tmp_path / "run", config=config, progress=False)
    assert torch.isfinite(torch.tensor(run.predict([{"c": None, "x0": 3.0}, {"c": "new", "x0": 1e30}]))).all()


def test_one_row_is_refused_and_splits_of_one_row_are_not(tmp_path):
    schema = Schema([Categorical(name="c")], Label(name="y"))
    with pytest.raises(DataError, match="must differ between training rows"):
        train(pl.DataFrame({"y": [1], "c": ["a"]}), into=tmp_path / "one", schema=schema, config=SMALL, progress=False)
    split = ["train", "train", "valid", "test"]
    frame = pl.DataFrame({"y": [1, 0, 0, 1], "c": ["a", "b", "b", "a"], "split": split})
    config = SMALL | {"split": {"method": "column", "column": "split"}}
    run = train(frame, into=tmp_path / "four", schema=schema, config=config, progress=False)
    assert np.isfinite(run.report["test"]["logloss"])


@pytest.mark.slow
def test_a_thousand_features_train(tmp_path):
    config = {"model": {"name": "dnn", "deep": {"sizes": [4]}}, "training": {"max_steps": 2, "device": "cpu"}}
    dataset = dataset_of(table(100, columns=1000), tmp_path / "data")
    run = train(dataset, into=tmp_path / "run", config=config, progress=False)
    assert len(run.encoder.features) == 1001

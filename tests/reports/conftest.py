"""Runs with everything that a report shows."""

from __future__ import annotations

import shutil

import numpy as np
import polars as pl
import pytest
import torch

from crossrank.data.prepare import prepare
from crossrank.evaluation.findings import write_findings
from crossrank.evaluation.spectrum import measure_spectra
from crossrank.models import build_model, parse_model_settings
from crossrank.runs import Run
from crossrank.schema import Categorical, Label, Numeric, Schema


def complete(run, dataset, folder):
    """A copy of a run with crosses, spectra and curves."""
    shutil.copytree(run.path, folder)
    torch.manual_seed(run.info["seed"])
    model = build_model(parse_model_settings(run.config["model"]), run.encoder.features)
    write_findings(folder, run.model, dataset, initial=measure_spectra(model, dataset.valid))
    return Run.open(folder)


@pytest.fixture(scope="session")
def crossed(run, dataset, tmp_path_factory):
    """The small DCN-V2, alone in its folder."""
    return complete(run, dataset, tmp_path_factory.mktemp("report") / "small")


@pytest.fixture(scope="session")
def numbers(tmp_path_factory):
    """A model of a number, from one feature of either kind."""
    from crossrank.training import train

    folder = tmp_path_factory.mktemp("numbers")
    random = np.random.default_rng(0)
    frame = pl.DataFrame({"kind": random.integers(0, 3, 300).astype(str), "size": random.normal(size=300)})
    frame = frame.with_columns(price=2 * pl.col("size") + pl.col("kind").cast(float))
    schema = Schema([Categorical(name="kind"), Numeric(name="size")], Label(name="price", kind="real"))
    dataset = prepare(frame, schema, folder / "dataset")
    config = {"model": {"embedding": {"dim": 2}, "deep": {"sizes": [4]}}, "training": {"epochs": 2}}
    return complete(train(dataset, into=folder / "made" / "run", config=config), dataset, folder / "run")


@pytest.fixture(scope="session")
def trio(run, dataset, tmp_path_factory):
    """DCN-V2 twice with other seeds, and a DNN; runs of one dataset in one folder."""
    from crossrank.training import train

    folder = tmp_path_factory.mktemp("trio")
    config = {key: dict(value) for key, value in run.config.items()}
    config["training"]["epochs"] = 1
    for seed in (0, 1):
        made = train(dataset, into=folder / f"made-{seed}", config=config, seed=seed)
        complete(made, dataset, folder / f"seed-{seed}")
        shutil.rmtree(made.path)
    made = train(dataset, into=folder / "made", config={"model": {"name": "dnn"}, "training": {"max_steps": 3}})
    complete(made, dataset, folder / "dnn")
    shutil.rmtree(made.path)
    return [Run.open(folder / name) for name in ("seed-0", "seed-1", "dnn")]

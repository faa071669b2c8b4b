"""Runs with everything that a report shows."""

from __future__ import annotations

import json
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

LEVELS = np.linspace(0.1, 0.9, 9)


def curves_of(kind: str) -> dict:
    """Made-up curves in the form that evaluation writes, beside those that every run has."""
    random = np.random.default_rng(0)
    if kind == "real":
        actual = random.normal(2, 3, 200)
        predicted = actual + random.normal(0, 1, 200)
        return {
            "intervals": {"rmse": [0.9, 1.1], "r2": [0.85, 0.92]},
            "predicted_actual": {"predicted": predicted.tolist(), "actual": actual.tolist()},
            "residuals": {"edges": [-3.0, -1.0, 1.0, 3.0], "residuals": [0.25, 0.5, 0.25]},
        }
    return {
        "intervals": {"logloss": [0.4123, 0.5321], "auc": [0.6, 0.7]},
        "precision_recall": {"recall": [0.0, *LEVELS, 1.0], "precision": [1.0, *(1 - 0.8 * LEVELS), 0.2]},
        "lift": {"share": [*LEVELS, 1.0], "lift": [*(3 - 2 * LEVELS), 1.0]},
        "thresholds": [
            {"threshold": t, "share": 1 - t, "precision": t, "recall": 1 - t, "f1": 2 * t * (1 - t)} for t in LEVELS
        ],
    }


def importance_of(names, metric: str = "logloss") -> dict:
    """The content of importance.json for these features, strongest first; every second one is a number."""
    features = [
        {"feature": name, "importance": 0.1 / 2**place - 1e-5, "deviation": 0.001} for place, name in enumerate(names)
    ]
    numbers = [{"value": value, "share": 0.2, "mean": 0.2 + 0.05 * value} for value in range(5)]
    texts = [{"value": f"value {i} of many", "share": 0.5 / (i + 1), "mean": 0.2 + 0.03 * i} for i in range(4)]
    dependence = [
        {
            "feature": name,
            **({"kind": "numeric", "points": numbers} if i % 2 else {"kind": "categorical", "points": texts}),
        }
        for i, name in enumerate(names[:4])
    ]
    about = {"split": "test", "metric": metric, "rows": 200, "repeats": 5, "base": 0.4567}
    return {**about, "features": features, "dependence": dependence}


def add_findings(run) -> None:
    """Write them into the folder of a run."""
    kind = run.schema.label.kind
    file = run.path / "curves.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **curves_of(kind)}))
    found = importance_of(run.encoder.schema.names, "rmse" if kind == "real" else "logloss")
    (run.path / "importance.json").write_text(json.dumps(found))


def as_before(folder) -> None:
    """Leave of a run's findings those that every version wrote, and of its checksums, so that tests may edit them."""
    info = json.loads((folder / "run.json").read_text())
    older = {key: value for key, value in info.items() if key not in ("checksum", "records")}
    (folder / "run.json").write_text(json.dumps(older))
    (folder / "importance.json").unlink(missing_ok=True)
    curves = json.loads((folder / "curves.json").read_text())
    kept = ("split", "rows", "kind", "calibration", "scores", "roc", "groups")
    (folder / "curves.json").write_text(json.dumps({key: curves[key] for key in kept if key in curves}))


def complete(run, dataset, folder):
    """A copy of a run with crosses, spectra and curves, and without what later versions measure."""
    shutil.copytree(run.path, folder)
    torch.manual_seed(run.info["seed"])
    model = build_model(parse_model_settings(run.config["model"]), run.encoder.features)
    write_findings(folder, run.model, dataset, initial=measure_spectra(model, dataset.valid))
    as_before(folder)
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
def measured(crossed, numbers, tmp_path_factory):
    """Copies of a classification and of a regression in one folder, with everything that evaluation may measure."""
    folder = tmp_path_factory.mktemp("measured")
    for run, name in ((crossed, "clicks"), (numbers, "prices")):
        shutil.copytree(run.path, folder / name)
        add_findings(Run.open(folder / name))
    return [Run.open(folder / name) for name in ("clicks", "prices")]


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


@pytest.fixture(scope="session")
def make_run():
    """A function that trains a step on many features, of given names."""
    from crossrank.training import train

    def make(count: int, folder, *, name: str = "feature {}"):
        random = np.random.default_rng(0)
        columns = {name.format(i): random.integers(0, 4, 300).astype(str) for i in range(count)}
        frame = pl.DataFrame({**columns, "click": random.integers(0, 2, 300)})
        schema = Schema([Categorical(name=key) for key in columns], Label(name="click"))
        dataset = prepare(frame, schema, folder / "data")
        config = {"model": {"embedding": {"dim": 2}, "cross": {"num_layers": 3}}, "training": {"max_steps": 1}}
        run = train(dataset, into=folder / "run", config=config)
        as_before(run.path)
        return Run.open(run.path)

    return make

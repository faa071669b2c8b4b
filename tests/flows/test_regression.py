"""A label that is a number, from a table to predictions in its units."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from commands import crossrank

import crossrank as cr
from crossrank.evaluation import explain_row
from crossrank.runs import Run
from crossrank.schema import Schema
from crossrank.training import train

QUICK = {"model": {"embedding": {"dim": 4}, "deep": {"sizes": [16]}}, "training": {"max_steps": 300}}


@pytest.fixture(scope="module")
def rents() -> pl.DataFrame:
    """Rents in the thousands with heavy tails: one house in a hundred has an area that nobody would believe."""
    draw = np.random.default_rng(0)
    area, age = draw.lognormal(4, 0.5, 2000), draw.uniform(0, 100, 2000)
    area[::100] *= 1e4
    city = draw.choice(["porto", "lisboa", "faro"], 2000)
    rent = 2000 + 800 * np.log(area.clip(max=500)) + 900 * (city == "lisboa") - 5 * age + draw.normal(0, 100, 2000)
    return pl.DataFrame({"city": city, "area": area, "age": age, "rent": rent})


@pytest.fixture(scope="module")
def rent_run(rents, tmp_path_factory) -> Run:
    schema = Schema.infer(rents, label="rent")
    return train(rents, into=tmp_path_factory.mktemp("rents") / "run", config=QUICK, schema=schema)


def test_outliers_do_not_explode(rent_run) -> None:
    assert rent_run.report["test"]["r2"] > 0.7


def test_everything_is_told_in_units_of_the_label(rent_run, rents) -> None:
    predicted = rent_run.predict(rents)
    assert np.corrcoef(predicted, rents["rent"])[0, 1] > 0.8
    assert abs(predicted.mean() - rents["rent"].mean()) < 300
    lines = [math.sqrt(line["loss"]) for line in rent_run.metrics if "loss" in line]
    assert 50 < lines[-1] < 3 * rents["rent"].std()
    row = rents.row(3, named=True)
    found = explain_row(rent_run, row)
    assert found.logit == pytest.approx(predicted[3], rel=1e-5)
    assert abs(found.base - rents["rent"].mean()) < 2 * rents["rent"].std()
    strongest = cr.explain(rent_run, selves=True)[0].strength
    assert strongest > 1  # of thousands


@pytest.mark.parametrize("area", [1e12, -1e12, 1e30, 0.0])
def test_a_row_far_outside_the_training_range_gets_a_sensible_answer(rent_run, rents, area) -> None:
    (answer,) = rent_run.predict([{"city": "porto", "area": area, "age": 30.0}])
    spread = rents["rent"].max() - rents["rent"].min()
    assert rents["rent"].min() - spread < answer < rents["rent"].max() + spread


def test_a_training_that_is_worse_than_the_mean_says_so(rents, tmp_path) -> None:
    rents.write_csv(tmp_path / "rents.csv")
    wild = ["--set", "training.learning_rate=3.0", "--set", "training.max_steps=5", "--set", "training.average_decay=0"]
    _, talk = crossrank("train", "rents.csv", "--label", "rent", "--into", "run", *wild, cwd=tmp_path)
    assert "warning: On the validation rows the model does worse than their mean would" in talk
    assert "R²" in Run.open(tmp_path / "run").report["training"]["warning"]


@pytest.mark.slow
def test_california_housing_is_learned_by_default(real_data, tmp_path) -> None:
    houses = pl.read_csv(real_data / "california_housing.csv.gz")
    houses.write_csv(tmp_path / "housing.csv")
    crossrank("train", "housing.csv", "--label", "MedHouseVal", "--into", "run", cwd=tmp_path)
    assert Run.open(tmp_path / "run").report["test"]["r2"] >= 0.80


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pandas", "numpy"])
def test_california_housing_is_learned_through_scikit_learn(kind, real_data) -> None:
    import pandas as pd
    from sklearn.model_selection import train_test_split

    from crossrank.sklearn import CrossRankRegressor

    houses = pd.read_csv(real_data / "california_housing.csv.gz")
    values, prices = houses.drop(columns="MedHouseVal"), houses["MedHouseVal"]
    if kind == "numpy":
        values, prices = values.to_numpy(), prices.to_numpy()
    parts = train_test_split(values, prices, test_size=0.2, random_state=0)
    model = CrossRankRegressor(random_state=0).fit(parts[0], parts[2])
    assert model.score(parts[1], parts[3]) >= 0.80

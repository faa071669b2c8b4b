"""Class weights and sampled negatives leave probabilities calibrated."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy.optimize import minimize_scalar

import crossrank as cr
from crossrank.data.prepare import prepare
from crossrank.errors import ConfigError, SchemaError
from crossrank.schema import Categorical, Label, Schema
from crossrank.training import Config
from crossrank.training.prior import prior_shift

CONFIG = {
    "model": {"name": "logistic-regression"},
    "training": {"learning_rate": 0.05, "epochs": 8, "average_decay": 0.98, "device": "cpu"},
}


def clicks(rows: int, seed: int) -> pl.DataFrame:
    """Each of ten values has a rate of its own, from 1% to 19%."""
    source = np.random.default_rng(seed)
    x = source.integers(0, 10, rows)
    return pl.DataFrame({"x": [f"v{i}" for i in x], "y": (source.random(rows) < 0.01 + 0.02 * x).astype(int)})


def schema(**label) -> Schema:
    return Schema([Categorical(name="x")], Label(name="y", **label))


def trained(table: pl.DataFrame, folder, *, label=(), **training) -> cr.Run:
    config = CONFIG | {"training": CONFIG["training"] | training}
    return cr.train(table, into=folder, schema=schema(**dict(label)), config=Config.parse(config), progress=False)


@pytest.mark.parametrize("weight", [0.5, 1.0, 20.0])
@pytest.mark.parametrize("kept", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("rate", [0.02, 0.6])
def test_the_shift_leads_from_the_least_weighted_sampled_loss_to_the_true_logit(rate, kept, weight) -> None:
    def loss(z: float) -> float:  # of the rows that training sees, by definition
        return rate * weight * np.logaddexp(0, -z) + (1 - rate) * kept * np.logaddexp(0, z)

    learned = minimize_scalar(loss, bounds=(-30, 30), method="bounded", options={"xatol": 1e-10}).x
    shift = prior_shift(positive_weight=weight, negatives_kept=kept)
    assert learned + shift == pytest.approx(np.log(rate / (1 - rate)), abs=1e-5)


@pytest.mark.parametrize("weight", [1.0, 10.0])
def test_no_answer_is_surer_than_so_many_rows_can_teach(weight, tmp_path) -> None:
    table = pl.DataFrame({"x": ["a", "b"] * 500, "y": [0, 1] * 500})
    dataset = prepare(table, schema(), tmp_path / "data", progress=False)
    training = CONFIG["training"] | {"learning_rate": 10.0, "positive_weight": weight}
    run = cr.train(dataset, into=tmp_path / "run", config=CONFIG | {"training": training}, progress=False)
    odds = 2 * len(dataset.train) + 1
    no, yes = run.predict(table.head(2)).astype(np.float64)
    assert yes / (1 - yes) == pytest.approx(odds / weight, rel=1e-3)
    assert (1 - no) / no == pytest.approx(odds * weight, rel=1e-3)


def test_class_weights_move_what_is_learned_and_not_what_is_answered(tmp_path) -> None:
    table, later = clicks(20_000, 0), clicks(20_000, 1)
    plain, weighed = trained(table, tmp_path / "plain"), trained(table, tmp_path / "weighed", positive_weight=10.0)
    balanced = trained(table, tmp_path / "balanced", positive_weight="balanced")
    assert weighed.model.label_mean.item() == pytest.approx(-np.log(10))
    share = plain.report["valid"]["positive_rate"]
    assert balanced.model.label_mean.item() == pytest.approx(-np.log((1 - share) / share), abs=0.15)
    for run in (weighed, balanced):
        found = cr.evaluate(run, later)
        assert found["calibration"] == pytest.approx(1, abs=0.06)
        assert found["logloss"] == pytest.approx(cr.evaluate(plain, later)["logloss"], abs=0.002)
        np.testing.assert_allclose(run.predict(later.head(50)), plain.predict(later.head(50)), atol=0.03)


def test_with_sampled_negatives_probabilities_are_those_of_the_whole_table(tmp_path) -> None:
    whole, later = clicks(60_000, 0), clicks(20_000, 1)
    kept = 0.1
    drawn = whole.filter((pl.col("y") == 1) | pl.Series(np.random.default_rng(2).random(len(whole)) < kept))
    run = trained(drawn, tmp_path / "run", label={"negatives_kept": kept})
    found = cr.evaluate(run, later)
    assert found["calibration"] == pytest.approx(1, abs=0.06) and found["ece"] < 0.01
    reported = run.report["test"]
    assert reported["positive_rate"] == pytest.approx(whole["y"].mean(), rel=0.1)  # a negative stands for ten
    assert reported["calibration"] == pytest.approx(1, abs=0.15)
    assert reported["logloss"] == pytest.approx(found["logloss"], abs=0.02)


def test_the_rows_that_learn_keep_their_weights_and_those_that_are_measured_stand_for_more(tmp_path) -> None:
    dataset = prepare(clicks(500, 0), schema(negatives_kept=0.25), tmp_path / "d", progress=False)
    assert dataset.train.weights is None
    assert np.array_equal(dataset.valid.weights, np.where(dataset.valid.labels == 0, 4, 1))
    assert Schema.from_dict(dataset.schema.to_dict()).label.negatives_kept == 0.25


def test_weights_without_a_binary_log_loss_are_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"weighs the log loss of a binary label; got .* the real label 'y'"):
        trained(clicks(500, 0), tmp_path / "x", label={"kind": "real"}, positive_weight=2.0)
    with pytest.raises(ConfigError, match="positive_weight must be positive; got 0"):
        trained(clicks(500, 0), tmp_path / "x", positive_weight=0.0)
    with pytest.raises(SchemaError, match="above 0 and at most 1, and the label binary; got 2"):
        schema(negatives_kept=2.0)

"""Importance and partial dependence, against a loop over raw rows."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import log_loss

import crossrank.evaluation.importance as module
from crossrank.data import Split
from crossrank.data.prepare import prepare
from crossrank.evaluation.evaluate import score_split
from crossrank.evaluation.importance import measure_importance
from crossrank.models import build_model, parse_model_settings
from crossrank.schema import Label, Numeric, Schema

KINDS = {"country": "categorical", "tags": "categorical", "price": "numeric"}


@pytest.fixture(scope="module")
def found(run, dataset):
    return measure_importance(run.model, dataset.test, dataset.encoder)


@pytest.fixture(scope="module")
def raw(dataset):
    """The test rows, decoded."""
    columns = dataset.encoder.decode(dataset.test.rows.encoded)
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def probabilities(run, rows):
    return run.model.predict_logits([run.encoder.encode_rows(rows).features()]).sigmoid().double().numpy()


@pytest.mark.parametrize("feature", KINDS)
def test_importance_is_the_rise_of_the_loss_when_cells_are_shuffled(run, dataset, found, raw, feature) -> None:
    labels, random = dataset.test.labels, np.random.default_rng(0)
    base = log_loss(labels, probabilities(run, raw))
    rises = []
    for _ in range(found["repeats"]):
        order = random.permutation(len(raw))
        shuffled = [row | {feature: raw[other][feature]} for row, other in zip(raw, order, strict=True)]
        rises.append(log_loss(labels, probabilities(run, shuffled)) - base)
    (got,) = (one for one in found["features"] if one["feature"] == feature)
    assert (found["metric"], found["rows"]) == ("logloss", len(raw))
    assert found["base"] == pytest.approx(base, rel=1e-5)
    assert got["importance"] == pytest.approx(np.mean(rises), abs=1e-5)
    assert got["deviation"] == pytest.approx(np.std(rises, ddof=1), abs=1e-5)


def test_features_come_once_and_strongest_first(dataset, found) -> None:
    names = [one["feature"] for one in found["features"]]
    assert sorted(names) == sorted(dataset.schema.names)
    sizes = [one["importance"] for one in found["features"]]
    assert sizes == sorted(sizes, reverse=True)
    assert [one["feature"] for one in found["dependence"]] == names[:6]


@pytest.mark.parametrize("feature", KINDS)
def test_dependence_is_the_mean_answer_with_one_value_for_all(run, dataset, raw, feature, monkeypatch) -> None:
    monkeypatch.setattr(module, "TOP_FEATURES", 99)
    dependence = measure_importance(run.model, dataset.test, dataset.encoder)["dependence"]
    (got,) = (one for one in dependence if one["feature"] == feature)
    assert got["kind"] == KINDS[feature]
    assert len(got["points"]) == {"country": 12, "tags": 12, "price": 20}[feature]
    texts = {"<missing>": None, "<unseen>": "never seen", "<empty>": "|"}
    for point in got["points"]:
        value = texts.get(point["value"], point["value"])
        mean = probabilities(run, [row | {feature: value} for row in raw]).mean()
        assert point["mean"] == pytest.approx(mean, rel=1e-4)
    if feature == "country":
        shares = {point["value"]: point["share"] for point in got["points"]}
        assert shares["BR"] == np.mean([row["country"] == "BR" for row in raw])
    if feature == "price":
        values = [point["value"] for point in got["points"]]
        assert values == sorted(values)


def linear(tmp_path, weights, **columns):
    """y = 3 a + b, and a model that knows it."""
    random = np.random.default_rng(0)
    frame = pl.DataFrame({name: random.normal(size=len(weights)) for name in "abc"} | {"weight": weights} | columns)
    frame = frame.with_columns(y=3 * pl.col("a") + pl.col("b"))
    features = [Numeric(name=name, standardize=False, encoding="scalar") for name in "abc"]
    dataset = prepare(frame, Schema(features, Label(name="y", kind="real"), weight="weight"), tmp_path / "dataset")
    model = build_model(parse_model_settings({"name": "logistic-regression"}), dataset.features)
    with torch.no_grad():
        model.output.weight.copy_(torch.tensor([[3.0, 1.0, 0.0]]))
        model.output.bias.zero_()
    return model, dataset


def test_a_number_is_judged_by_its_rmse(tmp_path) -> None:
    model, dataset = linear(tmp_path, np.ones(4000))
    found = measure_importance(model, dataset.test, dataset.encoder)
    values = {one["feature"]: one["importance"] for one in found["features"]}
    a, b, _ = dataset.test.numeric.std(axis=0)
    assert (found["metric"], found["base"]) == ("rmse", pytest.approx(0, abs=1e-6))
    assert list(values) == ["a", "b", "c"]
    assert values["a"] == pytest.approx(3 * math.sqrt(2) * a, rel=0.1)  # two independent draws differ by √2 deviations
    assert values["b"] == pytest.approx(math.sqrt(2) * b, rel=0.1)
    assert values["c"] == 0
    for point in found["dependence"][0]["points"]:
        assert point["mean"] == pytest.approx(3 * point["value"] + dataset.test.numeric[:, 1].mean(), abs=1e-2)


def test_rows_count_by_their_weight(tmp_path) -> None:
    random = np.random.default_rng(1)
    weights = np.where(random.random(4000) < 0.5, 0.0, 1.0)
    model, dataset = linear(tmp_path, weights)
    kept = dataset.test.weights > 0
    alone = Split(dataset.test.rows.take(np.flatnonzero(kept)))
    assert measure_importance(model, dataset.test, dataset.encoder) == measure_importance(model, alone, dataset.encoder)
    heavy = dataclasses.replace(alone.rows, weights=np.where(alone.labels > 0, 9.0, 0.1).astype(np.float32))
    found = measure_importance(model, Split(heavy), dataset.encoder)
    assert found["features"][0]["importance"] != pytest.approx(3 * math.sqrt(2), rel=1e-3)
    nothing = dataclasses.replace(alone.rows, weights=np.zeros(len(alone), np.float32))
    assert measure_importance(model, Split(nothing), dataset.encoder) == {}


def test_it_is_the_same_each_time_and_leaves_the_caller_as_it_was(run, dataset, found) -> None:
    before = torch.random.get_rng_state()
    assert measure_importance(run.model, dataset.test, dataset.encoder) == found
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_work_is_bounded(run, dataset, monkeypatch) -> None:
    seen = []
    predict = run.model.predict_logits

    def counted(batches):
        logits = predict(batches)
        seen.append(len(logits))
        return logits

    monkeypatch.setattr(run.model, "predict_logits", counted)
    monkeypatch.setattr(module, "WORK", 0.0)
    monkeypatch.setattr(module, "DEPENDENCE_WORK", 0.0)
    found = measure_importance(run.model, dataset.test, dataset.encoder)
    assert found["rows"] == 40
    num_features = len(dataset.schema.names)
    assert sum(seen) <= 40 * (1 + 1 + 3 * num_features + 6 * 20)
    assert len(seen) < 10  # several changes go through the model at once


@pytest.mark.parametrize("count", [1, 2])
def test_hardly_any_rows_are_enough(run, dataset, count) -> None:
    rows = Split(dataset.test.rows.take(np.arange(count)))
    found = measure_importance(run.model, rows, dataset.encoder)
    assert found["rows"] == count
    json.dumps(found, allow_nan=False)


def test_an_answer_that_overflows_is_still_a_number(tmp_path) -> None:
    model, dataset = linear(tmp_path, np.ones(400))
    with torch.no_grad():
        model.output.weight.fill_(3e38)
    assert not np.isfinite(score_split(model, dataset.test)).all()
    json.dumps(measure_importance(model, dataset.test, dataset.encoder), allow_nan=False)


def test_the_change_of_many_rows_is_that_of_few(run, dataset, found, monkeypatch) -> None:
    monkeypatch.setattr(module, "SCORING_ROWS", 64)
    again = measure_importance(run.model, dataset.test, dataset.encoder)
    for one, other in zip(again["features"], found["features"], strict=True):
        assert one["importance"] == pytest.approx(other["importance"], abs=1e-5)


def test_a_run_keeps_its_importance(run) -> None:
    stored = json.loads((run.path / "importance.json").read_text())
    assert list(stored) == ["split", "metric", "rows", "repeats", "base", "features", "dependence"]
    assert stored["split"] == "test"
    assert run.importance == stored["features"]

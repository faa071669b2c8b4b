"""A label that is a number: learned at its own scale, answered in its own units."""

import dataclasses

import numpy as np
import polars as pl
import pytest
import torch

import crossrank as cr
from crossrank.data.prepare import prepare
from crossrank.evaluation import explain_row
from crossrank.evaluation.evaluate import worse_than_constant
from crossrank.models.build import MODELS, build_model, parse_model_settings
from crossrank.runs import Run
from crossrank.schema import Categorical, Label, Numeric, Schema
from crossrank.training import Config
from crossrank.training.cuda.engine import CapturedEngine
from crossrank.training.loss import SquaredError
from crossrank.training.regression import as_learned, start_at_mean
from crossrank.training.rule import UpdateRule

SCHEMA = Schema(
    [Categorical(name="town"), Numeric(name="size"), Numeric(name="rate")], Label(name="price", kind="real")
)


def houses(rows: int, *, unit: float = 1.0, seed: int = 0) -> pl.DataFrame:
    """Prices that cross two numbers, one of which has a tail that no power of it bounds."""
    random = np.random.default_rng(seed)
    size, rate, town = random.standard_cauchy(rows), random.normal(size=rows), random.integers(0, 3, rows)
    price = 5 + np.tanh(size) * rate + 0.5 * town + 0.1 * random.normal(size=rows)
    return pl.DataFrame({"town": town.astype(str), "size": size, "rate": rate, "price": unit * price})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return prepare(houses(3000, unit=1e5), SCHEMA, tmp_path_factory.mktemp("houses") / "data")


@pytest.fixture(scope="module")
def run(dataset, tmp_path_factory):
    steps = {"training": {"max_steps": 300}}
    return cr.train(dataset, into=tmp_path_factory.mktemp("runs") / "run", config=steps, progress=False)


def test_heavy_tails_and_large_units_do_not_keep_a_number_from_being_learned(run) -> None:
    assert run.report["test"]["r2"] > 0.9
    assert "warning" not in run.report["training"]


def test_answers_are_in_units_of_the_label(run, dataset) -> None:
    rows = houses(200, unit=1e5, seed=1)
    answers = run.predict(rows)
    assert np.corrcoef(answers, rows["price"])[0, 1] > 0.95
    assert answers.mean() == pytest.approx(rows["price"].mean(), rel=0.1)
    logits = torch.cat([run.model(features) for features in run.encode(rows)])
    assert abs(logits.mean()) < 0.5  # inside, all is at the scale of 1
    labels = np.asarray(dataset.train.labels, np.float64)
    assert run.model.label_mean.item() == pytest.approx(labels.mean())
    assert run.model.label_deviation.item() == pytest.approx(labels.std())


@pytest.mark.parametrize("size", [1e12, -1e12, 1e38])
def test_far_outside_the_training_rows_the_answer_is_one_that_training_could_have_seen(run, dataset, size) -> None:
    answer = run.predict([{"town": "0", "size": size, "rate": 0.3}])[0]
    labels = np.asarray(dataset.train.labels)
    assert labels.min() <= answer <= labels.max()
    assert answer != run.predict([{"town": "0", "size": -size, "rate": 0.3}])[0]


def test_a_row_is_explained_in_units_of_the_label(run) -> None:
    row = {"town": "1", "size": 2.0, "rate": 1.0}
    assert explain_row(run, row).logit == pytest.approx(run.predict([row])[0], rel=1e-5)


def test_contributions_of_a_polynomial_add_up_to_the_number(dataset, tmp_path) -> None:
    config = {"model": {"name": "cross-net"}, "training": {"max_steps": 20}}
    run = cr.train(dataset, into=tmp_path / "run", config=config, progress=False)
    found = explain_row(run, {"town": "1", "size": 2.0, "rate": 1.0})
    parts = [part["contribution"] for part in (*found.alone, *found.pairs)]
    assert found.base + sum(parts) == pytest.approx(found.logit, rel=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_begins_near_the_mean(name, dataset) -> None:
    model = build_model(parse_model_settings({"name": name}), dataset.features)
    start_at_mean(model, dataset)
    logits = model(dataset.train.take(np.arange(500)).features)
    assert logits.abs().max() < 3
    assert SquaredError()(logits, torch.zeros(500)) < 1


def test_labels_are_learned_with_mean_zero_and_deviation_one_and_measured_as_they_are(dataset) -> None:
    model = build_model(parse_model_settings({}), dataset.features)
    start_at_mean(model, dataset)
    learned = as_learned(dataset, model)
    assert (learned.train.labels.mean(), learned.train.labels.std()) == pytest.approx((0, 1), abs=1e-5)
    assert learned.valid.labels is dataset.valid.labels or (learned.valid.labels == dataset.valid.labels).all()
    assert dataset.train.labels.mean() > 1e5


def test_steps_of_a_device_learn_the_same_labels(dataset) -> None:
    settings = dataclasses.replace(Config.parse({}).training, tables="lazy", batch_size=len(dataset.train))
    model = build_model(parse_model_settings({}), dataset.features)
    start_at_mean(model, dataset)
    rows, rule = as_learned(dataset, model).train, UpdateRule(settings)
    steps = CapturedEngine(model, rows, settings, loss=SquaredError(), rule=rule, seed=0, device=torch.device("cpu"))
    loss = steps.step(next(steps.batches(0, 0)))
    assert loss.item() == pytest.approx(1, rel=1e-4)  # every answer is the mean, so the loss is the variance


def test_weights_count_for_the_mean_of_the_label(tmp_path) -> None:
    table = pl.DataFrame({"x": [0.0, 1.0] * 50, "y": [0.0, 10.0] * 50, "w": [3.0, 1.0] * 50})
    schema = Schema([Numeric(name="x")], Label(name="y", kind="real"), weight="w")
    dataset = prepare(
        table, schema, tmp_path / "data", split=dataclasses.replace(Config.parse({}).split, fractions=(1.0,))
    )
    model = build_model(parse_model_settings({}), dataset.features)
    start_at_mean(model, dataset)
    assert model.label_mean.item() == pytest.approx(2.5)
    assert model.label_deviation.item() == pytest.approx(np.sqrt(18.75))


def test_weights_saved_without_units_are_read_as_answers_in_units(run) -> None:
    model = build_model(parse_model_settings(run.config["model"]), run.encoder.features)
    old = {name: value for name, value in run.model.state_dict().items() if not name.startswith("label_")}
    model.load_state_dict(old)
    assert (model.label_mean, model.label_deviation) == (0, 1)
    assert (model.label_low, model.label_high) == (-np.inf, np.inf)


def test_settings_that_were_given_stay(dataset, tmp_path) -> None:
    given = {"learning_rate": 0.001, "epochs": 1, "patience": 0, "batch_size": 512}
    run = cr.train(dataset, into=tmp_path / "run", config={"training": given}, progress=False)
    assert {key: run.config["training"][key] for key in given} == given


def test_a_model_worse_than_a_constant_says_so(dataset, tmp_path) -> None:
    steps = {"learning_rate": 3.0, "max_steps": 3, "clip_norm": 0.0, "average_decay": 0.0}
    run = cr.train(dataset, into=tmp_path / "run", config={"training": steps}, progress=False)
    assert run.report["training"]["warning"].startswith(
        "On the validation rows the model does worse than their mean would: its R² is -"
    )


@pytest.mark.parametrize(
    ("measured", "kind", "said"),
    [
        ({"rows": 100, "r2": -0.5}, "real", "than their mean would: its R² is -0.5."),
        ({"rows": 100, "normalized_entropy": 1.25}, "binary", "share of ones would: its normalized entropy is 1.25."),
        ({"rows": 100, "r2": 0.1}, "real", None),
        ({"rows": 99, "r2": -0.5}, "real", None),
        ({"rows": 100, "r2": None}, "real", None),
        ({"rows": 100, "normalized_entropy": None}, "binary", None),
    ],
)
def test_only_what_is_worse_than_a_constant_on_enough_rows_is_told(measured, kind, said) -> None:
    found = worse_than_constant(measured, kind)
    assert found is None if said is None else found.endswith(said)


def test_a_run_of_a_number_opens_again_with_the_same_answers(run) -> None:
    rows = houses(50, unit=1e5, seed=2)
    assert (Run.open(run.path).predict(rows) == run.predict(rows)).all()

"""Promoting: where cells carry what a network cannot hold, where there is nothing, and where no cell comes twice."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

import crossrank as cr
from crossrank.cli import app
from crossrank.data.crossing import add_crosses
from crossrank.data.prepare import prepare
from crossrank.errors import ConfigError, RunError
from crossrank.experiments.promote import find_missed, logits_before_learning
from crossrank.models import build_model, parse_model_settings
from crossrank.models.widen import widen
from crossrank.reports import write_report
from crossrank.schema import Categorical, Cross, Label, Numeric, Schema
from crossrank.training import Config

CONFIG = {
    "model": {"embedding": {"dim": 4}, "cross": {"num_layers": 1}, "deep": {"sizes": [8]}},
    "training": {"batch_size": 256, "epochs": 4, "learning_rate": 0.01, "device": "cpu"},
}
COLUMNS = [*(Categorical(name=name) for name in ("user", "item", "hour")), Numeric(name="age", encoding="scalar")]
MODELS = {
    "stacked": {},
    "parallel": {"structure": "parallel"},
    "cross-only": {"structure": "cross-only", "cross": {"num_layers": 2}},
    "low rank": {"cross": {"layer": "low_rank", "rank": 3}},
    "mixture": {"name": "dcn-mix", "cross": {"rank": 2, "activation": "tanh"}},
    "gated": {"name": "gdcn", "cross": {"heads": 2, "inner": "tanh"}},
    "two networks": {"cross": {"num_networks": 2}},
    "dnn": {"name": "dnn"},
    "dcn": {"name": "dcn"},
}


def table(kind: str, *, num_rows: int = 16_000, size: int = 20) -> tuple[pl.DataFrame, float]:
    """Rows, and the log loss of the odds that they were drawn from."""
    draw = np.random.default_rng(0)
    user, item, hour = (draw.integers(0, count, num_rows) for count in (size, size, 6))
    odds = 2 * draw.normal(size=(size, size))[user, item]  # of full rank: a number of its own for each cell
    odds = odds if kind == "planted" else np.full(num_rows, -0.5)
    labels = (draw.random(num_rows) < 1 / (1 + np.exp(-odds))).astype(int)
    if kind == "once":
        user, item, hour = np.arange(num_rows) // 200, np.arange(num_rows) % 200, np.arange(num_rows)
    values = {"user": user, "item": item, "hour": hour, "age": draw.integers(20, 60, num_rows)}
    frame = pl.DataFrame({**values, "label": labels}).with_columns(pl.col("user", "item", "hour").cast(pl.String))
    return frame, float(np.mean(np.logaddexp(0, odds) - labels * odds))


def dataset_of(kind: str, into, **options):
    frame, optimum = table(kind, **options)
    return prepare(frame, Schema(COLUMNS, Label(name="label")), into, progress=False), optimum


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    dataset, optimum = dataset_of("planted", folder / "data")
    return cr.train(dataset, into=folder / "run", config=CONFIG, progress=False), dataset, optimum


@pytest.mark.parametrize("name", MODELS)
def test_a_widened_model_gives_the_same_answers_and_learns_what_is_new(tmp_path, name) -> None:
    dataset, _ = dataset_of("planted", tmp_path / "data", num_rows=2000)
    wide = add_crosses(dataset, [Cross(of=("user", "item"), min_count=2)], tmp_path / "wide")
    settings = parse_model_settings({"embedding": {"dim": 4}, **MODELS[name]})
    torch.manual_seed(0)
    old, new = build_model(settings, dataset.features), build_model(settings, wide.features)
    widen(old, new)
    rows = np.arange(500)
    before, after = old.eval()(dataset.train.take(rows).features), new.eval()(wide.train.take(rows).features)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)
    after.square().sum().backward()
    ids = [slot.name for slot in new.layout.embedded].index("user x item")
    gradient = torch.autograd.grad(new(wide.train.take(rows).features).sum(), new.embedding.weight)[0]
    new.embedding.weight.data = gradient  # to find the table's part of it
    assert new.embedding.table(ids).abs().max() > 0


def test_a_model_that_does_not_read_x0_alone_is_refused(tmp_path) -> None:
    dataset, _ = dataset_of("planted", tmp_path / "data", num_rows=500)
    wide = add_crosses(dataset, [Cross(of=("user", "item"), width=4)], tmp_path / "wide")
    settings = parse_model_settings({"name": "pnn", "embedding": {"dim": 4}})
    with pytest.raises(ConfigError, match="must read them from x0; PNN does not"):
        widen(build_model(settings, dataset.features), build_model(settings, wide.features))


def test_a_model_whose_answers_would_change_is_refused(tmp_path) -> None:
    dataset, _ = dataset_of("planted", tmp_path / "data", num_rows=4000)
    config = {**CONFIG, "model": {"name": "deep-crossing", "embedding": {"dim": 4}, "deep": {"sizes": [8]}}}
    run = cr.train(dataset, into=tmp_path / "run", config=config, progress=False)
    with pytest.raises(ConfigError, match="begin with the answers it had; DeepCrossing does not"):
        cr.promote(run, dataset, into=tmp_path / "second", seeds=1, progress=False)


def test_promote_knows_labels_that_are_numbers(tmp_path) -> None:
    frame, _ = table("planted", num_rows=6000, size=10)
    cells = np.random.default_rng(1).normal(100, 20, (10, 10))
    truth = cells[frame["user"].cast(int).to_numpy(), frame["item"].cast(int).to_numpy()]
    frame = frame.with_columns(label=pl.Series(truth + np.random.default_rng(2).normal(size=6000)))
    schema = Schema(COLUMNS, Label(name="label", kind="real"))
    dataset = prepare(frame, schema, tmp_path / "data", progress=False)
    config = {**CONFIG, "training": {**CONFIG["training"], "epochs": 2}}
    run = cr.train(dataset, into=tmp_path / "run", config=config, progress=False)
    found = cr.promote(run, dataset, into=tmp_path / "second", seeds=1, most=1, progress=False)
    assert found.missed[0].columns == ("user", "item")
    assert found.run.report["test"]["rmse"] < run.report["test"]["rmse"] / 2


def test_logits_are_taken_before_their_rows_are_learned(planted) -> None:
    _, dataset, _ = planted
    config = Config.parse(CONFIG)
    rows, before = logits_before_learning(config, dataset, seed=0)
    assert sorted(rows.tolist()) == list(range(len(dataset.train)))
    for place in (0, 300, len(rows) - 1):
        labels = np.array(dataset.train.labels)
        other = type(dataset)(dataset.path, dataset.manifest, dataset.encoder)
        labels[rows[place]] = 1 - labels[rows[place]]
        object.__setattr__(other.train.rows, "labels", labels)
        after = logits_before_learning(config, other, seed=0)[1]
        assert after[place] == before[place]
        assert np.array_equal(after[: place + 1], before[: place + 1])


def test_answers_stay_probabilities_where_positive_rows_are_weighed(planted) -> None:
    _, dataset, _ = planted
    config = Config.parse({**CONFIG, "training": {**CONFIG["training"], "positive_weight": 8.0}})
    rows, logits = logits_before_learning(config, dataset, seed=0)
    late = slice(len(rows) // 2, None)
    answered = 1 / (1 + np.exp(-logits[late]))
    assert answered.mean() == pytest.approx(dataset.train.labels[rows[late]].mean(), abs=0.05)


def test_promote_comes_near_the_best_there_is_where_a_network_cannot(planted, tmp_path) -> None:
    run, dataset, optimum = planted
    found = cr.promote(run, dataset, into=tmp_path / "second", seeds=2, progress=False)
    before, after = (one.report["test"]["logloss"] - optimum for one in (run, found.run))
    assert found.missed[0].columns == found.tried[0].columns == ("user", "item")
    assert after < before / 3
    assert found.tried[0].gain == pytest.approx(before - after, abs=0.03)
    assert found.tried[0].expected > 0.03
    assert [one.columns for one in found.tried if one.pays] == [("user", "item")]
    assert [cross.of for cross in found.run.schema.crosses] == [("user", "item")]
    answers = found.run.predict([{"user": "1", "item": "2", "hour": "3", "age": 30}, dict.fromkeys(run.schema.names)])
    assert np.isfinite(answers).all()
    assert {one["feature"] for one in found.run.importance} >= {"user", "user x item"}
    page = write_report(found.run, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Promoted pairs" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "second"]
    frame, _ = table("planted")
    assert cr.evaluate(found.run, frame)["logloss"] < run.report["test"]["logloss"]


def test_where_labels_are_noise_nothing_is_added(tmp_path) -> None:
    dataset, _ = dataset_of("noise", tmp_path / "data")
    run = cr.train(dataset, into=tmp_path / "run", config=CONFIG, progress=False)
    found = cr.promote(run, dataset, into=tmp_path / "second", seeds=1, progress=False)
    assert found.run is None
    assert not any(one.pays for one in found.tried)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "run"]


def test_where_each_cell_comes_once_no_gain_is_expected(tmp_path) -> None:
    dataset, _ = dataset_of("once", tmp_path / "data", num_rows=4000)
    missed = {one.columns: one for one in find_missed(Config.parse(CONFIG), dataset, seed=0)}
    assert missed["user", "item"].repeated == 0
    assert all(one.gain <= 0 for one in missed.values())


def test_promote_refuses_other_data_and_a_name_that_is_taken(planted, tmp_path) -> None:
    run, dataset, _ = planted
    other, _ = dataset_of("noise", tmp_path / "other", num_rows=500)
    with pytest.raises(ConfigError, match=r"must be what the run .* was trained on"):
        cr.promote(run, other, into=tmp_path / "second")
    with pytest.raises(RunError, match="must not exist yet"):
        cr.promote(run, dataset, into=run.path)
    assert not (tmp_path / "second.partial").exists()


def test_a_run_is_promoted_from_the_table_that_it_was_trained_on_and_an_ensemble_is_not(tmp_path) -> None:
    """Also where what was decided about its numbers is not what the schema of the run would decide."""
    frame = table("noise", num_rows=4000)[0].with_columns(x=pl.Series(np.random.default_rng(1).normal(size=4000)))
    training, columns = {"max_steps": 20, "memory": "none"}, [*COLUMNS[:3], Numeric(name="x"), Numeric(name="age")]
    how = {"schema": Schema(columns, Label(name="label")), "progress": False}
    config = {"model": {**CONFIG["model"], "ensemble": 1}, "training": {**CONFIG["training"], **training}}
    run = cr.train(frame, into=tmp_path / "run", config=config, **how)
    assert (
        run.encoder.values["x (value)"].size - 2 == 6
    )  # bins of 500 rows, where a schema that asks for values has 256
    assert cr.promote(run, frame, into=tmp_path / "more", seeds=1, most=1, progress=False).missed
    with pytest.raises(ConfigError, match="must be what the run"):
        cr.promote(run, frame.with_columns(pl.col("x") + 1), into=tmp_path / "more", progress=False)
    config["model"]["ensemble"] = 2
    several = cr.train(frame, into=tmp_path / "several", config=config, **how)
    with pytest.raises(ConfigError, match="one model; got an ensemble of 2"):
        cr.promote(several, frame, into=tmp_path / "more", progress=False)


def test_the_command_prints_expected_beside_realised_gains(planted, tmp_path) -> None:
    run, dataset, _ = planted
    words = ["promote", str(run.path), str(dataset.path), "--into", str(tmp_path / "second"), "--seeds", "1"]
    result = CliRunner().invoke(app, [*words, "--most", "1"])
    assert result.exit_code == 0, result.output
    assert "user x item" in result.output and "kept" in result.output
    report = json.loads((tmp_path / "second" / "report.json").read_text())
    assert report["promotion"]["tried"][0]["pays"]

"""Memories of pairs that nobody asked for: found where they pay, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import crossrank as cr
from crossrank.data import EncodedDataset
from crossrank.data.prepare import prepare
from crossrank.data.splits import SplitSettings
from crossrank.reports import write_report
from crossrank.schema import Categorical, Label, Schema
from crossrank.training import train_seeds, tries
from crossrank.training.settings import TrainingSettings
from crossrank.training.tries import regress, try_all, worthwhile

FAST: dict[str, Any] = {
    "model": {"embedding": {"dim": 4}, "deep": {"sizes": [8]}},
    "training": {"epochs": 2, "batch_size": 512, "eval_every": 20, "memory": "auto"},
}
SCHEMA = Schema([Categorical(name=name) for name in ("user", "item", "hour")], Label(name="label"))


def table(*, pairs: float, rows: int = 8000) -> pl.DataFrame:
    """Users, items and hours of which each has a chance; and each pair of user and item one of its own."""
    draw = np.random.default_rng(0)
    user, item, hour = (draw.integers(0, size, rows) for size in (30, 30, 8))
    odds = draw.normal(size=30)[user] + pairs * draw.normal(size=(30, 30))[user, item]
    label = (draw.random(rows) < 1 / (1 + np.exp(-odds))).astype(int)
    frame = pl.DataFrame({"user": user, "item": item, "hour": hour, "label": label})
    return frame.with_columns(pl.format("u{}", "user"), pl.format("i{}", "item"), pl.format("h{}", "hour"))


@pytest.fixture(scope="module")
def repeating(tmp_path_factory: pytest.TempPathFactory) -> EncodedDataset:
    return prepare(table(pairs=2.0), SCHEMA, tmp_path_factory.mktemp("data") / "pairs", progress=False)


@pytest.fixture(scope="module")
def trained(repeating: EncodedDataset, tmp_path_factory: pytest.TempPathFactory) -> cr.Run:
    return cr.train(repeating, into=tmp_path_factory.mktemp("runs") / "run", config=FAST, progress=False)


def test_the_pair_that_decides_is_found_first(repeating: EncodedDataset) -> None:
    several, single = worthwhile(repeating)
    assert several[0].of == ("user", "item")
    assert [one.of for one in single] == [("user",), ("item",)]  # eight hours are learned well enough by themselves


def test_without_a_pair_to_remember_none_is_tried(tmp_path: Path) -> None:
    dataset = prepare(table(pairs=0.0), SCHEMA, tmp_path / "data", progress=False)
    assert worthwhile(dataset)[0] == []
    assert (
        try_all(dataset, FAST, TrainingSettings(memory="auto"), tmp_path, schema=None, seed=0, progress=False) is None
    )
    run = cr.train(dataset, into=tmp_path / "run", config=FAST, progress=False)
    assert not run.schema.crosses
    assert "memory" not in run.report


def test_what_pays_on_the_validation_rows_is_kept_and_told(trained: cr.Run) -> None:
    tried = trained.report["memory"]
    assert tried[0]["pays"]
    assert tried[0]["gain"] > 0.05
    assert ("user", "item") in [one.of for one in trained.schema.crosses]
    assert trained.config["training"]["memory"] == "none"  # the schema has it now
    assert "<h3>Memory</h3>" in write_report(trained).read_text(encoding="utf-8")


def test_a_raw_table_tries_it_by_itself(tmp_path: Path) -> None:
    training = {key: value for key, value in FAST["training"].items() if key != "memory"}
    run = cr.train(
        table(pairs=2.0), into=tmp_path / "run", config={**FAST, "training": training}, schema=SCHEMA, progress=False
    )
    assert run.report["memory"][0]["pays"]
    assert len(run.report["training"]["members"]) == run.config["model"]["ensemble"] == 4


def test_a_training_that_was_tried_is_the_first_member_of_the_ensemble(
    repeating: EncodedDataset, tmp_path: Path
) -> None:
    trainings: list[int] = []
    config = {**FAST, "model": {**FAST["model"], "ensemble": 3}}

    def look(step: int, _: dict[str, Any]) -> None:
        trainings.extend([step] * (step == 20))  # the first look

    run = cr.train(repeating, into=tmp_path / "run", config=config, seed=5, progress=False, on_evaluation=look)
    assert [one["seed"] for one in run.report["training"]["members"]] == [15, 16, 17]
    assert len(trainings) == 1 + len(run.report["memory"]) + 2


@pytest.mark.parametrize("gain", [1.0, 0.29, -1.0])
def test_with_all_statistics_more_dropout_of_vectors_is_tried(
    repeating: EncodedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gain: float
) -> None:
    gains = iter([1.0, -1.0, gain])  # of pairs, single columns too, and more dropout
    monkeypatch.setattr(tries, "mean_and_error", lambda *_: (next(gains), 0.1))
    run = cr.train(repeating, into=tmp_path / "run", config=FAST, progress=False)
    pairs, both, dropped = run.report["memory"]
    kept, dropout = (dropped, tries.DROPPED) if gain > 0.3 else (pairs, 0.2)
    assert both["of"] == dropped["of"] and dropped["dropout"] == tries.DROPPED
    assert [list(one.of) for one in run.schema.crosses] == kept["of"]
    assert run.config["model"]["embedding"]["dropout"] == dropout
    assert run.config["model"]["embedding"]["dim"] == 4  # what was written stays
    assert f"embedding dropout {tries.DROPPED}" in write_report(run).read_text(encoding="utf-8")


def test_a_dropout_that_was_written_stays(repeating: EncodedDataset, tmp_path: Path) -> None:
    config = {**FAST, "model": {**FAST["model"], "embedding": {"dim": 4, "dropout": 0.1}}}
    run = cr.train(repeating, into=tmp_path / "run", config=config, progress=False)
    assert run.schema.crosses and not any("dropout" in one for one in run.report["memory"])
    assert run.config["model"]["embedding"]["dropout"] == 0.1


def test_it_can_be_left_out(repeating: EncodedDataset, tmp_path: Path) -> None:
    config = {**FAST, "training": {**FAST["training"], "memory": "none"}}
    assert not cr.train(repeating, into=tmp_path / "run", config=config, progress=False).schema.crosses


def test_a_run_with_memory_scores_raw_rows_and_the_dataset_without_it_alike(
    trained: cr.Run, repeating: EncodedDataset
) -> None:
    rows = table(pairs=2.0).head(50)
    assert np.isfinite(trained.predict(rows)).all()
    measured = cr.evaluate(trained, repeating, split="test")
    assert measured["logloss"] == pytest.approx(trained.report["test"]["logloss"], abs=1e-6)


def test_an_interrupted_try_is_gone_on_with(repeating: EncodedDataset, tmp_path: Path, trained: cr.Run) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    seen = 0

    def stop(step: int, metrics: dict[str, Any]) -> None:
        nonlocal seen
        seen += 1
        if seen == 3:
            raise Stop

    with pytest.raises(Stop):
        cr.train(repeating, into=tmp_path / "run", config=FAST, progress=False, on_evaluation=stop)
    run = cr.train(repeating, into=tmp_path / "run", config=FAST, progress=False, resume=True)
    assert run.fingerprint == trained.fingerprint


def test_seeds_and_ensembles_are_trained_with_what_pays(repeating: EncodedDataset, tmp_path: Path) -> None:
    train_seeds(repeating, into=tmp_path / "seeds", seeds=2, config=FAST, progress=False)
    both = [cr.Run.open(tmp_path / "seeds" / f"seed-{seed}") for seed in range(2)]
    assert all(run.schema.crosses for run in both)
    assert sorted(path.name for path in (tmp_path / "seeds").iterdir()) == ["seed-0", "seed-1", "seeds.json"]
    config = {**FAST, "model": {**FAST["model"], "ensemble": 2}}
    run = cr.train(repeating, into=tmp_path / "ensemble", config=config, progress=False)
    assert run.schema.crosses
    assert run.report["memory"][0]["pays"]


def test_rows_divided_by_time_are_walked_in_their_order(tmp_path: Path) -> None:
    split = SplitSettings(method="time")
    dataset = prepare(table(pairs=2.0), SCHEMA, tmp_path / "data", split=split, progress=False)
    assert worthwhile(dataset)[0][0].of == ("user", "item")


@pytest.mark.parametrize("kind", ["binary", "real"])
def test_the_regression_is_where_its_gradient_is_zero(kind: Any) -> None:
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(500, 3)), (draw.random(500) < 0.3).astype(float)
    z = regress(x, y, kind)
    answers = 1 / (1 + np.exp(-z)) if kind == "binary" else z
    columns = np.column_stack([np.ones(500), (x - x.mean(0)) / x.std(0)])
    weights = np.linalg.lstsq(columns, z, rcond=None)[0]
    gradient = columns.T @ (y - answers) - 10 * weights
    assert np.abs(gradient).max() < 1e-5

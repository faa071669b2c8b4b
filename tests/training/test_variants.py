"""Variants that nobody asked for: each is trained, and the best on the validation rows is the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import crossrank as cr
from crossrank.data.narrowing import with_one_bin
from crossrank.data.prepare import prepare
from crossrank.data.vocabulary import FIRST_ID, MISSING_ID
from crossrank.errors import DataError
from crossrank.reports import write_report
from crossrank.schema import Categorical, Label, Numeric, Schema
from crossrank.training import train_seeds, tries

SMALL: dict[str, Any] = {"model": {"embedding": {"dim": 4}, "deep": {"sizes": [8]}}, "training": {"epochs": 2}}
VARIANTS = ["numbers in one bin", "stacked", "numbers in one bin, stacked"]


def table(rows: int = 3200) -> pl.DataFrame:
    """Numbers that hardly repeat, of which one is missing now and then, and a label that follows from their product."""
    draw = np.random.default_rng(0)
    left, right = draw.normal(size=(2, rows))
    label = (left * right + 0.3 * draw.normal(size=rows) > 0).astype(int)
    frame = pl.DataFrame({"left": left, "right": right, "kind": draw.integers(0, 4, rows), "label": label})
    return frame.with_columns(pl.when(pl.col("left") < -2).then(None).otherwise("left").alias("left"))


def schema(encoding: str = "auto") -> Schema:
    numbers = [Numeric(name="left"), Numeric(name="right", encoding=encoding)]
    return Schema([*numbers, Categorical(name="kind")], Label(name="label"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> cr.Run:
    return cr.train(
        table(), into=tmp_path_factory.mktemp("runs") / "run", config=SMALL, schema=schema(), progress=False
    )


def test_one_bin_tells_nothing_but_whether_there_is_a_number(tmp_path: Path) -> None:
    dataset = prepare(table(), schema(), tmp_path / "data", progress=False)
    made = with_one_bin(dataset, ["left"], tmp_path / "one-bin")
    names = [one.name for one in made.features if one.kind == "categorical"]
    left, right = (names.index(f"{name} (value)") for name in ("left", "right"))
    for split in made.num_rows:
        before, after = (np.asarray(one.split(split).categorical) for one in (dataset, made))
        absent = before[:, left] == MISSING_ID
        assert np.array_equal(after[:, left], np.where(absent, MISSING_ID, FIRST_ID))
        assert np.array_equal(after[:, right], before[:, right]) and len(np.unique(before[:, right])) > 3
        own, other = made.split(split), dataset.split(split)
        assert np.array_equal(own.numeric, other.numeric) and np.array_equal(own.labels, other.labels)
    assert made.train.categorical[:, left].min() == MISSING_ID
    encoded = made.encoder.encode(table())  # raw rows have the same ids from now on
    assert set(np.unique(encoded.categorical[:, left])) == {MISSING_ID, FIRST_ID}
    assert np.array_equal(encoded.numeric, dataset.encoder.encode(table()).numeric)


def test_all_are_tried_and_the_best_is_the_run(trained: cr.Run) -> None:
    tried = trained.report["variants"]
    assert [one["what"] for one in tried] == VARIANTS
    kept = [one["what"] for one in tried if one["pays"]]
    assert all(one["pays"] == (one["gain"] > one["error"]) for one in tried)
    best = kept[-1] if kept else ""
    bins = trained.encoder.values["left (value)"].size - FIRST_ID
    assert (bins == 1) == ("one bin" in best)
    assert trained.config["model"]["structure"] == ("stacked" if "stacked" in best else "parallel")
    assert trained.config["training"]["variants"] == "none"  # the run is one of them, from several seeds
    assert trained.config["model"]["ensemble"] == len(trained.report["training"]["members"]) == 4
    assert "<h3>Variants</h3>" in write_report(trained).read_text(encoding="utf-8")


def test_a_run_of_the_last_variant_scores_rows_as_it_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tries, "mean_and_error", lambda *_: (1.0, 0.0))  # each gains something
    run = cr.train(table(), into=tmp_path / "run", config=SMALL, schema=schema(), progress=False)
    assert run.config["model"]["structure"] == "stacked"
    assert {one.size for one in run.encoder.values.values()} == {FIRST_ID + 1}
    dataset = prepare(table(), schema(), tmp_path / "data", progress=False)
    with pytest.raises(DataError, match="its encoder is another"):
        cr.evaluate(run, dataset, split="test")
    narrow = with_one_bin(dataset, ["left", "right"], tmp_path / "one-bin")
    assert cr.evaluate(run, narrow, split="test")["logloss"] == run.report["test"]["logloss"]


def test_what_was_said_is_not_tried(tmp_path: Path) -> None:
    said = {**SMALL, "model": {**SMALL["model"], "structure": "parallel"}}
    run = cr.train(table(), into=tmp_path / "said", config=said, schema=schema("scalar+values"), progress=False)
    assert [one["what"] for one in run.report["variants"]] == VARIANTS[:1]
    assert run.config["model"]["structure"] == "parallel"
    assert run.encoder.values["right (value)"].size > FIRST_ID + 1
    none = {**SMALL, "training": {**SMALL["training"], "variants": "none"}}
    assert "variants" not in cr.train(table(), into=tmp_path / "none", config=none, progress=False).report


def test_short_tables_and_prepared_ones_are_trained_once(tmp_path: Path) -> None:
    short = cr.train(table(1500), into=tmp_path / "short", config=SMALL, schema=schema(), progress=False)
    assert "variants" not in short.report
    dataset = prepare(table(), schema(), tmp_path / "data", progress=False)
    assert "variants" not in cr.train(dataset, into=tmp_path / "run", config=SMALL, progress=False).report


def test_seeds_have_what_the_first_one_chose(trained: cr.Run, tmp_path: Path) -> None:
    train_seeds(table(), into=tmp_path / "seeds", seeds=2, config=SMALL, schema=schema(), progress=False)
    runs = [cr.Run.open(tmp_path / "seeds" / f"seed-{seed}") for seed in range(2)]
    for run in runs:
        assert run.config["model"]["structure"] == trained.config["model"]["structure"]
        assert run.encoder.values["left (value)"].size == trained.encoder.values["left (value)"].size
    assert runs[0].fingerprint == trained.fingerprint  # the same seed on the same rows
    assert not list((tmp_path / "seeds").glob("*.partial"))

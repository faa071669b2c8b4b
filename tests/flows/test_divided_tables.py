"""Tables that are divided already: by files, by a column, by time."""

from __future__ import annotations

import json

import polars as pl
import pytest
from commands import SMALL, crossrank

import crossrank as cr
from crossrank.data import open_splits
from crossrank.schema import Schema

QUICK = [*SMALL, "--set", "training.max_steps=3", "--json"]


@pytest.fixture(scope="module")
def divided(clicks, tmp_path_factory):
    """A folder with a table whose column says each row's split, and with one table for each."""
    folder = tmp_path_factory.mktemp("divided")
    said = pl.Series(["train"] * 700 + ["valid"] * 100 + ["test"] * 200)
    table = clicks.head(1000).with_columns(split=said.sample(1000, shuffle=True, seed=0), t=pl.int_range(1000))
    table.write_csv(folder / "all.csv")
    for name in ("train", "valid", "test"):
        (folder / name).mkdir()
        table.filter(split=name).drop("split").write_csv(folder / name / "rows.csv")
    return folder


def test_a_column_called_split_is_found_said_and_no_feature(divided) -> None:
    output, talk = crossrank("train", "all.csv", "--into", "runs/column", *QUICK, cwd=divided)
    assert json.loads(output)["rows"] == 200
    assert "the split is by 'split', which says train, valid or test" in talk and "split (names the split)" in talk
    run = cr.Run.open(divided / "runs/column")
    assert run.info["rows"] == {"train": 700, "valid": 100, "test": 200} and "split" not in run.schema.names


def test_tables_of_each_split_are_one_dataset(divided) -> None:
    words, one = ["--train", "train", "--valid", "valid/rows.csv", "--test", "test"], ["--ensemble", 1]
    _, talk = crossrank("prepare", *words, "--into", "dataset", cwd=divided)
    assert "dataset: dataset (train 700, valid 100, test 200 rows)" in talk
    output, _ = crossrank("train", *words, "--into", "runs/files", *one, *QUICK, cwd=divided)
    again, _ = crossrank("train", "dataset", "--into", "runs/dataset", *QUICK, cwd=divided)
    assert output == again
    table = open_splits(train=divided / "train", valid=divided / "valid", test=divided / "test")
    run = cr.train(table, into=divided / "runs/python", config=cr.Run.open(divided / "runs/files").config)
    assert run.report["test"] == json.loads(output)


def test_without_test_rows_the_validation_rows_are_shown_and_said_to_be_so(divided) -> None:
    words = ["--train", "train", "--valid", "valid", "--into", "runs/untested"]
    output, talk = crossrank("train", *words, *QUICK, cwd=divided)
    assert json.loads(output)["rows"] == 100 and "note: there are no test rows" in talk
    _, problem = crossrank("train", "--valid", "valid", "--into", "x", cwd=divided, code=2)
    assert "from one table, or from --train, --valid and --test; got --valid" in problem


def test_a_time_column_in_the_schema_is_split_by_and_the_reason_is_said(divided) -> None:
    schema = Schema.infer(pl.read_csv(divided / "all.csv"))
    Schema(schema.features, schema.label, time="t").save(divided / "timed.json")
    assert Schema.load(divided / "timed.json").time == "t"
    words = ["all.csv", "--schema", "timed.json", "--into", "by-time"]
    _, talk = crossrank("prepare", *words, cwd=divided)
    assert "the split is by 't', the time column" in talk and "(train 800, valid 100, test 100 rows)" in talk

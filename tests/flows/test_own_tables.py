"""What the commands say of tables as people have them, before anything is trained."""

from __future__ import annotations

import json
import random
from unittest import mock

import pytest
from typer.testing import CliRunner

from crossrank.cli import app
from crossrank.cli.app import out, talk

ROWS = 300
SMALL = ["--set", "model.embedding.dim=2", "--set", "model.deep.sizes=[4]", "--set", "training.max_steps=2"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    source = random.Random(0)
    lines = ["customer_reference_number,a_rather_long_column_name,price_in_euro,refund_amount,target"]
    for i in range(ROWS):
        label = source.choice(["TRUE", "FALSE"])
        price = "NA" if i % 9 == 4 else round(source.uniform(1, 50), 2)
        place = source.choice(["a value of so many words that three of them would fill a line", "another value", "x"])
        lines.append(f"c{i},{place},{price},{9.5 if label == 'TRUE' else source.uniform(0, 9)},{label}")
    path = tmp_path_factory.mktemp("own") / "own.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def crossrank(*words, columns=80):
    """A command's standard output and error."""
    with mock.patch.multiple(out, _width=columns), mock.patch.multiple(talk, _width=columns):
        done = CliRunner().invoke(app, list(map(str, words)), env={"NO_COLOR": "1"})
    assert done.exception is None, done.exception
    return done.stdout, done.stderr


def test_train_and_describe_say_the_same_of_a_table(table, tmp_path):
    output, trained = crossrank("train", table, "--into", tmp_path / "run", *SMALL, "--json")
    assert json.loads(output)["rows"] > 0
    _, described = crossrank("data", "describe", table)
    assert "numeric: price_in_euro (missing: 'NA'), refund_amount" in trained
    assert "left out: customer_reference_number (never repeats)" in trained
    assert "left out: 'customer_reference_number' (never repeats)" in described
    (leak,) = (line for line in described.splitlines() if line.startswith("warning:"))
    assert leak.startswith("warning: 'refund_amount' nearly determines the label alone")
    assert leak in trained.splitlines()


def test_columns_that_cannot_help_are_warned_of_where_a_schema_has_them(table, tmp_path):
    features = [{"kind": "categorical", "name": name} for name in ("customer_reference_number", "still")]
    label = {"name": "target", "kind": "binary"}
    (tmp_path / "schema.json").write_text(json.dumps({"label": label, "features": features}))
    header, *lines = table.read_text().splitlines()
    text = "\n".join([f"{header},still", *(f"{line},x" for line in lines)])
    (tmp_path / "more.csv").write_text(text + "\n")
    into = ("--into", tmp_path / "dataset", "--schema", tmp_path / "schema.json")
    _, talk = crossrank("prepare", tmp_path / "more.csv", *into)
    assert "'customer_reference_number' has 300 different values in 300 rows, like an id" in talk
    assert "'still' is the same in all 300 rows" in talk


@pytest.mark.parametrize("columns", [80, 120])
def test_a_description_fits_the_terminal_and_shows_every_column_whole(table, columns):
    output, _ = crossrank("data", "describe", table, columns=columns)
    assert max(map(len, output.splitlines())) <= columns
    first = "".join(line.split("│")[1].strip() for line in output.splitlines() if line.startswith("│"))
    names = table.read_text().splitlines()[0].split(",")[:-1]
    assert first == "".join(names)
    assert ("most frequent" in output) == (columns == 120)
    assert "categorical" in output and "left out" in output and "…" not in output.split("most")[0]


def test_a_table_without_a_label_is_described(table, tmp_path):
    path = tmp_path / "unnamed.csv"
    path.write_text(table.read_text().replace("target", "bought", 1))
    output, talk = crossrank("data", "describe", path)
    assert "unnamed.csv: 300 rows" in output and "bought" in output
    assert "note: there is no label, so no signal" in talk and "--label NAME" in talk
    told = json.loads(crossrank("data", "describe", path, "--json")[0])
    assert told["label"] is None and len(told["columns"]) == 5

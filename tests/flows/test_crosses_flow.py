"""A schema with a cross, from the command line to a page, a score and the explanation of a row."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import crossrank as cr
from crossrank.cli import app
from crossrank.evaluation import explain_row


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crosses")
    draw = np.random.default_rng(0)
    user, item = draw.integers(0, 12, 3000), draw.integers(0, 12, 3000)
    labels = draw.random(3000) < 1 / (1 + np.exp(-2 * draw.normal(size=(12, 12))[user, item]))
    frame = pl.DataFrame({"user": user, "item": item, "age": draw.integers(20, 60, 3000), "label": labels.astype(int)})
    frame.with_columns(pl.format("u{}", "user"), pl.format("i{}", "item")).write_csv(folder / "table.csv")
    features = [
        {"kind": "categorical", "name": "user"},
        {"kind": "categorical", "name": "item"},
        {"kind": "numeric", "name": "age"},
        {"kind": "cross", "of": ["user", "item"], "min_count": 3},
        {"kind": "cross", "of": ["user"]},
    ]
    (folder / "schema.json").write_text(json.dumps({"label": {"name": "label"}, "features": features}))
    words = ["train", str(folder / "table.csv"), "--schema", str(folder / "schema.json"), "--into", str(folder / "run")]
    result = CliRunner().invoke(app, [*words, "--set", "training.epochs=2", "--set", "model.deep.sizes=[8]"])
    assert result.exit_code == 0, result.output
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "run", "table.csv"],
        ["predict", "run", "table.csv", "--into", "scores.csv"],
        ["explain", "run"],
        ["explain", "run", "--features"],
        ["report", "run"],
        ["data", "describe", "table.csv", "--schema", "schema.json"],
        ["prepare", "table.csv", "--schema", "schema.json", "--into", "data"],
        ["data", "describe", "data"],
        ["cost", "data"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_every_command_knows_crosses(folder, words, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("words", [[], ["--spectrum"]])
def test_layers_of_several_networks_are_told_apart(folder, words) -> None:
    into = str(folder / "fcn")
    train = ["train", str(folder / "table.csv"), "--schema", str(folder / "schema.json"), "--into", into, "--overwrite"]
    for setting in ("model.name=fcn", "model.embedding.dim=4", "training.max_steps=5"):
        train += ["--set", setting]
    assert CliRunner().invoke(app, train).exit_code == 0
    shown = CliRunner().invoke(app, ["explain", into, "--top", "100", *words]).output
    assert all(f"{network}.1 " in shown for network in (1, 2))


def test_a_row_is_explained_with_the_values_of_its_cell(folder) -> None:
    found = explain_row(cr.Run.open(folder / "run"), {"user": "u1", "item": "i2", "age": 30})
    values = {one["feature"]: one["value"] for one in found.alone}
    assert values["user x item"] == values["user x item (statistics)"] == "u1 x i2"
    assert values["user (statistics)"] == "u1"


def test_cells_are_named_by_their_values(folder) -> None:
    from crossrank.evaluation.values import namer

    encoder = cr.Run.open(folder / "run").encoder
    rows = encoder.encode_rows([{"user": "u1", "item": "i2", "age": 30}])
    place = [feature.name for feature in encoder.features].index("user x item")  # all before it are categorical
    assert namer(encoder, "user x item")(rows.categorical[0, place]) == "u1 x i2"
    assert namer(encoder, "user x item")(1) == "<unseen>"


def test_the_vectors_of_cells_start_at_zero_in_a_new_model(folder) -> None:
    from crossrank.data.prepare import prepare
    from crossrank.schema import Schema
    from crossrank.training import Config
    from crossrank.training.finish import seeded_model

    dataset = prepare(folder / "table.csv", Schema.load(folder / "schema.json"), folder / "again", progress=False)
    model = seeded_model(Config.parse({}), dataset, 0)
    places = {slot.name: i for i, slot in enumerate(model.layout.embedded)}
    assert model.embedding.table(places["user x item"]).abs().max() == 0
    assert model.layout["user x item"].width == 4
    assert model.embedding.table(places["user"]).abs().max() > 0

"""Crosses from a table to batches: the numbers of the definition, and no way from a row's label to its inputs."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
import torch

from crossrank.data import EncodedDataset, Encoder, SplitSettings, crossing
from crossrank.data.cell_codes import CellCodes
from crossrank.data.crossing import NUM_ORDERS, add_crosses
from crossrank.data.ordered import FIRST_FORM, Form
from crossrank.data.prepare import prepare
from crossrank.errors import SchemaError
from crossrank.schema import Categorical, Cross, Label, Multivalent, Numeric, Schema
from crossrank.training.cuda.data import ResidentRows

PAIR, SINGLE = Cross(of=("user", "item"), min_count=3), Cross(of=("user",))
COLUMNS = [Categorical(name="user"), Categorical(name="item"), Numeric(name="age", encoding="scalar")]
TIME = SplitSettings(method="time", column="day")


def frame(num_rows: int = 80, *, real: bool = False, seed: int = 0) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "user": [("ann", "bob", "cid", None)[i] for i in draw.integers(0, 4, num_rows)],
            "item": draw.choice(["x", "y"], num_rows),
            "age": draw.integers(20, 60, num_rows),
            "day": draw.integers(0, 12, num_rows),
            "label": draw.normal(5, 2, num_rows) if real else draw.integers(0, 2, num_rows),
        }
    )


def schema(*crosses: Cross, real: bool = False) -> Schema:
    return Schema([*COLUMNS, *crosses], Label(name="label", kind="real" if real else "binary"))


def prepared(table: pl.DataFrame, into, *, split: SplitSettings | None = None, real: bool = False) -> EncodedDataset:
    return prepare(table, schema(PAIR, SINGLE, real=real), into, split=split, progress=False, overwrite=True)


def inputs(dataset: EncodedDataset) -> np.ndarray:
    """Everything that a model may read of the training rows, in any epoch: (N, …)."""
    rows = dataset.train.rows.encoded
    orders = np.empty((len(rows), 0)) if rows.orders is None else rows.orders.reshape(len(rows), -1)
    return np.concatenate([rows.categorical, rows.numeric, orders], axis=1)


@pytest.mark.parametrize("split", [None, TIME], ids=["random", "time"])
@pytest.mark.parametrize("real", [False, True])
def test_another_label_changes_no_input_of_its_row_whatever_the_order(tmp_path, split, real) -> None:
    table = frame(40, real=real)
    before = prepared(table, tmp_path / "a", split=split, real=real)
    places = {row: place for place, row in enumerate(training_rows(table, before))}
    moved = 0
    for row, place in places.items():
        labels = table["label"].to_numpy().copy()
        labels[row] = labels[row] + 1.5 if real else 1 - labels[row]
        after = prepared(table.with_columns(label=pl.Series(labels)), tmp_path / "b", split=split, real=real)
        np.testing.assert_array_equal(inputs(after)[place], inputs(before)[place])
        moved += not np.array_equal(inputs(after), inputs(before))
    assert moved > len(places) / 2  # the rows after it do see it


def training_rows(table: pl.DataFrame, dataset: EncodedDataset) -> list[int]:
    """Which rows of the table train, told by their ages and labels, which differ enough; in the stored order."""
    marked = table.with_columns(age=pl.Series(np.arange(len(table))))
    split = SplitSettings(**dataset.manifest["split"])
    plain = prepare(marked, schema(real=dataset.schema.label.kind == "real"), dataset.path.parent / "marked",
                    split=split, progress=False, overwrite=True)  # fmt: skip
    return [round(age) for age in plain.encoder.raw_numbers(plain.train.rows.encoded)[:, 0]]


@pytest.mark.parametrize("real", [False, True])
def test_rows_that_do_not_train_see_all_training_rows(tmp_path, real) -> None:
    dataset = prepared(frame(200, real=real), tmp_path / "data", real=real)
    train, valid = dataset.train, dataset.valid
    labels = np.asarray(train.labels, np.float64)
    prior = labels.mean() if real else (labels.sum() + 0.5) / (len(labels) + 1)
    for row in range(len(valid)):
        same = (train.categorical[:, :2] == valid.categorical[row, :2]).all(axis=1)
        n, smoothed = same.sum(), (labels[same].sum() + 5 * prior) / (same.sum() + 5)
        odds = (
            math.log(smoothed / (1 - smoothed) * (1 - prior) / prior) if not real else (smoothed - prior) / labels.std()
        )
        np.testing.assert_allclose(
            valid.numeric[row, 1:3], [math.log1p(n) / 10, odds if n else 0.0], rtol=1e-4, atol=1e-5
        )


def test_the_first_rows_of_an_order_know_nothing_and_later_ones_count_those_before(tmp_path) -> None:
    dataset = prepared(frame(), tmp_path / "data", split=TIME)
    train = dataset.train
    assert train.rows.encoded.orders is None  # there is only one time
    for row in range(len(train)):
        earlier = (train.rows.times < train.rows.times[row]) & (train.categorical[:, 0] == train.categorical[row, 0])
        assert train.numeric[row, 3] == pytest.approx(math.log1p(earlier.sum()) / 10)


def test_rows_in_order_of_time_are_walked_through_as_they_are_stored(tmp_path) -> None:
    train = prepared(frame(), tmp_path / "data", split=SplitSettings(method="time")).train
    for row in range(len(train)):
        assert train.numeric[row, 3] == pytest.approx(
            math.log1p((train.categorical[:row, 0] == train.categorical[row, 0]).sum()) / 10
        )


@pytest.mark.parametrize("split", [None, TIME], ids=["random", "time"])
def test_a_dataset_is_the_same_however_it_is_cut_and_whenever_crosses_are_added(tmp_path, split, monkeypatch) -> None:
    whole = prepared(frame(), tmp_path / "whole", split=split)
    monkeypatch.setattr(crossing, "PART_ROWS", 7)
    assert prepared(frame(), tmp_path / "parts", split=split).fingerprint == whole.fingerprint
    base = prepare(frame(), schema(), tmp_path / "base", split=split, progress=False)
    one = add_crosses(base, [PAIR], tmp_path / "one")
    assert add_crosses(one, [SINGLE], tmp_path / "two").fingerprint == whole.fingerprint
    assert not [path for path in (tmp_path / "whole").iterdir() if path.name in ("base", "statistics")]


def test_an_encoder_with_crosses_is_saved_and_gives_one_row_what_a_table_gets(tmp_path) -> None:
    dataset, table = prepared(frame(), tmp_path / "data"), frame(20, seed=1)
    dataset.encoder.save(tmp_path / "encoder")
    encoder = Encoder.load(tmp_path / "encoder")
    assert encoder.fingerprint == dataset.encoder.fingerprint
    assert [feature.name for feature in encoder.features] == [
        "user", "item", "user x item", "age", "user x item (statistics)", "user (statistics)"
    ]  # fmt: skip
    together = encoder.encode(table)
    for place, row in enumerate(table.iter_rows(named=True)):
        alone = encoder.encode_rows([row])
        np.testing.assert_array_equal(alone.categorical[0], together.categorical[place])
        np.testing.assert_array_equal(alone.numeric[0], together.numeric[place])
    new = encoder.encode_rows([{"user": "nobody", "item": "x", "age": 30}])
    assert new.categorical[0, 2] == 1
    assert new.numeric[0, 1:].tolist() == [0, 0, 0, 0]


def test_crosses_of_a_folder_that_does_not_tell_their_form_keep_the_first_one(tmp_path) -> None:
    dataset = prepared(frame(), tmp_path / "data")
    codes = next(one for one in dataset.encoder.crosses.values() if one.cross == SINGLE)
    tensors = codes.tensors()
    old = CellCodes.load(codes.cross, dataset.encoder.with_crosses([]).features, "binary",
                         {**tensors, "prior": tensors["prior"][:2]})  # fmt: skip
    known = np.asarray(dataset.train.categorical)
    assert old.form == FIRST_FORM
    np.testing.assert_allclose(old.encode(known)[1][:, 0], 10 * codes.encode(known)[1][:, 0], rtol=1e-6)
    like = dataset.encoder.with_crosses([old])
    again = prepare(frame(), schema(SINGLE), tmp_path / "again", progress=False, like=like)
    crossed = add_crosses(again, [PAIR], tmp_path / "crossed")
    assert [one.form for one in crossed.encoder.crosses.values()] == [FIRST_FORM, Form()]


def test_cells_have_ids_from_their_min_count_on_and_the_most_frequent_comes_first(tmp_path) -> None:
    dataset = prepared(frame(), tmp_path / "data")
    train, counts = dataset.train, dataset.encoder.counts("user x item")
    cells = {}
    for user, item, cell in train.categorical[:, :3].tolist():
        cells.setdefault((user, item), []).append(cell)
    assert all(len(set(ids)) == 1 and (ids[0] >= 2) == (len(ids) >= PAIR.min_count) for ids in cells.values())
    assert counts.sum() == len(train)
    assert np.array_equal(np.bincount(train.categorical[:, 2], minlength=len(counts)), counts)
    assert (np.diff(counts[2:]) <= 0).all()


def test_epochs_take_turns_with_the_orders_here_and_where_rows_are_resident(tmp_path) -> None:
    split = prepared(frame(), tmp_path / "data").train
    device, size = torch.device("cpu"), len(split)
    orders = [split.rows.encoded.numeric[:, 1:], *np.moveaxis(split.rows.encoded.orders, 1, 0)]
    assert len(orders) == NUM_ORDERS
    resident = ResidentRows(split, size, seed=3, device=device)
    many = ResidentRows(split, size, seed=[3, 4], device=device)
    for epoch in range(NUM_ORDERS + 1):
        expected = orders[epoch % NUM_ORDERS][split.order(3, epoch).rows(0, size)]
        (batch,) = split.batches(size, seed=3, epoch=epoch)
        np.testing.assert_array_equal(batch.features.numeric[:, 1:], expected)
        for rows in (resident, many):
            for _ in rows.batches(epoch, 0):
                numeric = rows.take().numeric
                np.testing.assert_array_equal(numeric.reshape(-1, size, 5)[0, :, 1:], expected)
    resident.close()
    many.close()


def test_a_single_column_has_no_cells_to_give_ids_to() -> None:
    assert not SINGLE.ids
    with pytest.raises(SchemaError, match="ids or statistics"):
        Cross(of=("user",), statistics=False)


def test_a_schema_with_crosses_is_written_as_json(tmp_path) -> None:
    written = schema(PAIR, SINGLE)
    written.save(tmp_path / "schema.json")
    assert Schema.load(tmp_path / "schema.json") == written
    assert written.to_dict()["features"][-2] == {
        "kind": "cross", "of": ["user", "item"], "ids": True, "statistics": True, "min_count": 3, "width": 4
    }  # fmt: skip
    assert written.names == ("user", "item", "age")


def test_a_cross_is_of_columns_that_have_one_value_with_an_id(tmp_path) -> None:
    with pytest.raises(SchemaError, match=r"got 'usr'.*Did you mean 'user'"):
        schema(Cross(of=("usr", "item")))
    with pytest.raises(SchemaError, match="got 'tags'"):
        Schema([Multivalent(name="tags"), Categorical(name="user"), Cross(of=("tags", "user"))], Label(name="label"))
    with pytest.raises(SchemaError, match=r"whose values have ids.*got 'age'.*its encoding has values"):
        prepare(frame(), schema(Cross(of=("age", "user"))), tmp_path / "data", progress=False)
    with pytest.raises(SchemaError, match="without labels"):
        Encoder.fit(frame(), schema(PAIR))


def test_a_number_can_be_crossed_by_its_values(tmp_path) -> None:
    columns = [Categorical(name="user"), Numeric(name="day", encoding="values")]
    crossed = Schema([*columns, Cross(of=("day", "user"))], Label(name="label"))
    dataset = prepare(frame(), crossed, tmp_path / "data", progress=False)
    assert dataset.train.numeric[:, -2].max() > 0


def test_a_split_by_time_keeps_the_rank_of_each_row(tmp_path) -> None:
    table = frame().with_columns(pl.format("2026-01-{}", pl.col("day").cast(pl.String).str.zfill(2)).alias("day"))
    dataset = prepare(table, schema(), tmp_path / "data", split=TIME, progress=False)
    ranks = np.concatenate([dataset.split(name).rows.times for name in dataset.num_rows])
    assert np.array_equal(np.bincount(ranks), table["day"].value_counts().sort("day")["count"].to_numpy())

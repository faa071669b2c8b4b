"""Texts that count as missing numbers, on every way from a cell to a number; and labels of two values."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from crossrank.data.encoder import Encoder
from crossrank.data.labels import labels_of_chunk
from crossrank.data.prepare import encode_table, prepare
from crossrank.data.splits import SplitSettings
from crossrank.data.table import open_table
from crossrank.errors import DataError
from crossrank.schema import Categorical, Label, Numeric, Schema

SCHEMA = Schema([Numeric(name="age", missing=("NA", "?"))], Label(name="click"))
ALL = SplitSettings(fractions=(1.0,))


def table_of(*, long: str = "", rows: int = 40) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A table with markers, and the same with empty cells; long numbers do not fit into words."""
    ages = [("NA", " na", "?", f"{i}{long}")[i % 4] for i in range(rows)]
    click = [i // 4 % 2 for i in range(rows)]
    marked = pl.DataFrame({"click": click, "age": ages})
    empty = [age if age[-1].isdigit() else None for age in ages]
    return marked, pl.DataFrame({"click": click, "age": empty})


@pytest.mark.parametrize("long", ["", ".123456789"])
@pytest.mark.parametrize("kind", ["csv", "parquet", "frame", "skip"])
def test_markers_are_prepared_as_empty_cells_are(tmp_path, long, kind):
    marked, empty = table_of(long=long)
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        marked.write_parquet(path)
    elif kind != "frame":
        marked.write_csv(path)
    how = {"on_error": "skip"} if kind == "skip" else {}
    one = prepare(marked if kind == "frame" else path, SCHEMA, tmp_path / "one", split=ALL, progress=False, **how)
    other = prepare(empty, SCHEMA, tmp_path / "other", split=ALL, progress=False)
    assert one.manifest["source"]["skipped"] == {}
    assert one.encoder.statistics == other.encoder.statistics
    assert one.encoder.statistics["age"].missing == 30
    assert np.array_equal(one.train.numeric, other.train.numeric)


def test_markers_are_encoded_as_empty_cells_are():
    marked, empty = table_of()
    encoder = Encoder.fit(marked, SCHEMA)
    expected = encoder.encode(empty).numeric
    assert np.array_equal(encoder.encode(marked).numeric, expected)
    assert np.array_equal(encoder.encode_rows(marked.to_dicts()).numeric, expected)
    assert np.array_equal(encode_table(encoder, marked).numeric, expected)


def test_other_texts_are_refused_with_their_place_and_a_way_out(tmp_path):
    (tmp_path / "a.csv").write_text("click,age\n0,3\n1,NA\n0,none\n")
    with pytest.raises(DataError, match="got 'none' in line 4 of") as caught:
        prepare(tmp_path / "a.csv", SCHEMA, tmp_path / "one", progress=False)
    assert 'under "missing"' in caught.value.hint
    with pytest.raises(DataError, match="got 'none' in row 2"):
        Encoder.fit(table_of()[0], SCHEMA).encode_rows([{"age": "NA"}, {"age": "none"}])


def labels_of(values, label) -> list[float]:
    (chunk,) = open_table({"y": values}).chunks()
    return labels_of_chunk(chunk, label).tolist()


@pytest.mark.parametrize("values", [["TRUE", "FALSE", "TRUE"], ["true", "False", " True"], [True, False, True]])
def test_true_and_false_are_labels_in_any_case(values):
    assert labels_of(values, Label(name="y")) == [1, 0, 1]


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([2, 1, 2], ("1", "2")),
        (["2.0", "1", " 2"], ("1", "2")),
        ([1.0, -1.0, 1.0], ("-1", "1")),
        (["yes ", "no", "YES"], ("no", "yes")),
        (["A", "a", "A"], ("a", "A")),
        (["no", "yes", "no"], ("yes", "no")),
    ],
)
def test_the_second_class_counts_as_one(values, classes):
    assert labels_of(values, Label(name="y", classes=classes)) == [1, 0, 1]


@pytest.mark.parametrize(
    ("values", "classes", "message"),
    [
        ([1, 2, 3], ("1", "2"), "must be 1 or 2; got 3 in row 3"),
        (["yes", "ja"], ("no", "yes"), "must be no or yes; got ja in row 2"),
        (["a", "B"], ("a", "A"), "must be a or A; got B in row 2"),
        (["yes", None], ("no", "yes"), "must be no or yes; got nothing in row 2"),
        ([1, None], ("1", "2"), "must be 1 or 2; got nothing in row 2"),
    ],
)
def test_a_label_of_neither_class_is_refused_with_its_place(values, classes, message):
    with pytest.raises(DataError, match=message):
        labels_of(values, Label(name="y", classes=classes))


@pytest.mark.parametrize(
    ("label", "values", "message"),
    [
        (Label(name="y"), ["1"] * 60, "Label 'y' must differ between training rows; got 1 in all 60"),
        (Label(name="y", kind="real"), ["2.5"] * 60, "got 2.5 in all 60"),
        (Label(name="y", classes=("no", "yes")), ["no"] * 60, "got no in all 60"),
    ],
)
def test_a_label_of_one_value_is_refused_before_training(tmp_path, label, values, message):
    frame = pl.DataFrame({"y": values, "a": ["u", "v", "w"] * 20})
    with pytest.raises(DataError, match=message):
        prepare(frame, Schema([Categorical(name="a")], label), tmp_path / "one", split=ALL, progress=False)
    assert not (tmp_path / "one").exists()

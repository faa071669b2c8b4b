"""Cells as people have them: numbers written for people, markers of missing values, a column used in two ways."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from crossrank.data.encoder import Encoder
from crossrank.data.prepare import encode_table, prepare
from crossrank.data.splits import SplitSettings
from crossrank.errors import DataError
from crossrank.schema import Categorical, Label, Multivalent, Numeric, Schema
from crossrank.schema.cells import plain_number

ALL = SplitSettings(fractions=(1.0,))
CLICK = Label(name="click")


@pytest.mark.parametrize(
    ("text", "decimal", "number"),
    [
        ("1.234,5", ",", 1234.5),
        ("1.234", ",", 1234),
        ("1,234", ".", 1234),
        ("1,234", ",", 1.234),
        ("-0,5", ",", -0.5),
        (",5", ",", 0.5),
        ("$1,234.50", ".", 1234.5),
        ("-$5", ".", -5),
        ("$-5", ".", -5),
        ("(5.00)", ".", -5),
        ("−3", ".", -3),
        ("1 234 €", ",", 1234),
        ("1\u00a0234\u202f567,25 €", ",", 1234567.25),
        ("EUR 12", ".", 12),
        ("12.5%", ".", 12.5),
        ("12,5 %", ",", 12.5),
        ("1'234'567.5", ".", 1234567.5),
        ("12", ".", 12),
        ("12,34", ".", None),
        ("1.5", ",", None),
        ("1,23,456", ".", None),
        ("5)", ".", None),
        ("(5", ".", None),
        ("--5", ".", None),
        ("$", ".", None),
        ("1e5", ".", None),
        ("five", ".", None),
        ("", ".", None),
    ],
)
def test_numbers_are_read_as_people_write_them(text, decimal, number):
    found = plain_number(text, decimal)
    assert (None if found is None else float(found)) == number


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("kind", ["csv", "parquet", "frame", "skip"])
def test_written_numbers_are_prepared_and_encoded_as_plain_ones(tmp_path, kind, long):
    numbers = [None if i % 7 == 3 else (1_000_000 * long + 10 * i) + i / 8 for i in range(40)]
    cells = [
        ["n.a.", "?", ""][i % 3] if n is None else f"{n:,.3f}".translate(str.maketrans(",.", ".,")) + " €"
        for i, n in enumerate(numbers)
    ]
    click = [i % 2 for i in range(40)]
    schema = Schema([Numeric(name="price", decimal=",", missing=("n.a.", "?"))], CLICK)
    marked = pl.DataFrame({"click": click, "price": cells})
    plain = pl.DataFrame({"click": click, "price": numbers})
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        marked.write_parquet(path)
    elif kind != "frame":
        marked.write_csv(path, separator=";")
    how = {"on_error": "skip"} if kind == "skip" else {}
    one = prepare(marked if kind == "frame" else path, schema, tmp_path / "one", split=ALL, progress=False, **how)
    other = prepare(plain, Schema([Numeric(name="price")], CLICK), tmp_path / "other", split=ALL, progress=False)
    assert one.manifest["source"]["skipped"] == {}
    assert one.encoder.statistics == other.encoder.statistics
    assert np.array_equal(one.train.numeric, other.train.numeric)
    for rows in (
        one.encoder.encode(marked),
        one.encoder.encode_rows(marked.to_dicts()),
        encode_table(one.encoder, marked),
    ):
        assert np.array_equal(rows.numeric, other.train.numeric)


def test_a_number_with_another_decimal_mark_is_refused_with_its_place(tmp_path):
    schema = Schema([Numeric(name="price", decimal=",")], CLICK)
    (tmp_path / "a.csv").write_text("click;price\n0;1,5\n1;1.5\n")
    with pytest.raises(DataError, match=r"must hold finite numbers; got '1\.5' in line 3 of"):
        prepare(tmp_path / "a.csv", schema, tmp_path / "one", progress=False)
    encoder = Encoder.fit(pl.DataFrame({"price": ["1,5", "2"]}), schema)
    with pytest.raises(DataError, match=r"got '1\.5' in row 2"):
        encoder.encode_rows([{"price": "1,5"}, {"price": "1.5"}])
    assert np.array_equal(
        encoder.encode_rows([{"price": 1.5}]).numeric, encoder.encode_rows([{"price": "1,5"}]).numeric
    )


@pytest.mark.parametrize("hash_size", [None, 50])
@pytest.mark.parametrize("kind", ["csv", "parquet", "frame", "skip"])
def test_markers_of_categories_and_sets_are_encoded_as_empty_cells(tmp_path, kind, hash_size):
    jobs = [("?", " n/a", None, "clerk", "a baker of bread")[i % 5] for i in range(40)]
    tags = [("?", "a|b", "N/A", None)[i % 4] for i in range(40)]
    how = {"missing": ("?", "N/A"), "hash_size": hash_size}
    schema = Schema([Categorical(name="job", **how), Multivalent(name="tags", **how)], CLICK)
    marked = pl.DataFrame({"click": [i % 2 for i in range(40)], "job": jobs, "tags": tags})
    empty = marked.with_columns(pl.col("job", "tags").replace({"?": None, " n/a": None, "N/A": None}))
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        marked.write_parquet(path)
    elif kind != "frame":
        marked.write_csv(path)
    more = {"on_error": "skip"} if kind == "skip" else {}
    one = prepare(marked if kind == "frame" else path, schema, tmp_path / "one", split=ALL, progress=False, **more)
    other = prepare(empty, schema, tmp_path / "other", split=ALL, progress=False)
    assert one.encoder.fingerprint == other.encoder.fingerprint
    assert one.encoder.counts("job")[0] == 24
    expected = other.train.rows.encoded
    for rows in (one.train.rows.encoded, one.encoder.encode(marked), one.encoder.encode_rows(marked.to_dicts())):
        assert np.array_equal(rows.categorical, expected.categorical)
        for (ids, offsets), (other_ids, other_offsets) in zip(rows.bags, expected.bags, strict=True):
            assert np.array_equal(ids, other_ids) and np.array_equal(offsets, other_offsets)


def test_lists_are_left_as_they_are_by_markers():
    schema = Schema([Multivalent(name="tags", missing=("?",))], CLICK)
    frame = pl.DataFrame({"tags": [["a", "?"], None, ["b"]]})
    encoder = Encoder.fit(frame, schema)
    assert encoder.decode(encoder.encode(frame))["tags"] == [["a", "?"], None, ["b"]]
    assert encoder.decode(encoder.encode_rows(frame.to_dicts()))["tags"] == [["a", "?"], None, ["b"]]


@pytest.mark.parametrize("kind", ["csv", "frame"])
def test_a_column_used_in_two_ways_is_encoded_as_two_columns_are(tmp_path, kind):
    ages = [18 + i * 7 % 50 for i in range(60)]
    frame = pl.DataFrame({"click": [i % 2 for i in range(60)], "age": ages})
    twice = Schema([Numeric(name="age"), Categorical(name="age group", source="age", missing=("18",))], CLICK)
    copied = frame.with_columns(pl.col("age").replace(18, None).alias("age group"))
    frame.write_csv(tmp_path / "a.csv")
    source = tmp_path / "a.csv" if kind == "csv" else frame
    one = prepare(source, twice, tmp_path / "one", split=ALL, progress=False)
    plain = Schema([Numeric(name="age"), Categorical(name="age group")], CLICK)
    other = prepare(copied, plain, tmp_path / "other", split=ALL, progress=False)
    for rows in (one.train.rows.encoded, one.encoder.encode(frame), one.encoder.encode_rows(frame.to_dicts())):
        assert np.array_equal(rows.categorical, other.train.categorical)
        assert np.array_equal(rows.numeric, other.train.numeric)
    assert np.array_equal(one.train.labels, other.train.labels)


def test_a_feature_may_have_the_name_of_another_column_of_the_table(tmp_path):
    frame = pl.DataFrame({"click": [0, 1] * 20, "a": ["x", "y"] * 20, "b": ["u", "v", "w", "u"] * 10})
    schema = Schema([Categorical(name="a", source="b"), Categorical(name="b", source="a")], CLICK)
    encoder = Encoder.fit(frame, schema)
    decoded = encoder.decode(encoder.encode(frame))
    assert decoded == {"a": frame["b"].to_list(), "b": frame["a"].to_list()}
    assert encoder.decode(encoder.encode_rows(frame.to_dicts())) == decoded
    frame.write_csv(tmp_path / "a.csv")
    made = prepare(tmp_path / "a.csv", schema, tmp_path / "one", split=ALL, progress=False)
    assert made.encoder.decode(made.train.rows.encoded) == decoded

from __future__ import annotations

import datetime
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossrank.data.text import splitmix64, stable_hash, stable_hashes, text_of_series, text_of_value
from crossrank.errors import DataError

CASES = {
    "text": (["a b", " x", "", None, "é"], pl.String, ["a b", " x", None, None, "é"]),
    "integers": ([12, -3, 2**62, None], pl.Int64, ["12", "-3", str(2**62), None]),
    "whole floats": ([12.0, -0.0, None, math.nan], pl.Float64, ["12", "0", None, None]),
    "floats": ([0.1, 1e20, 1.5e-7, 2.0, math.inf], pl.Float64, ["0.1", "1" + "0" * 20, "1.5e-07", "2", "inf"]),
    "booleans": ([True, False, None], pl.Boolean, ["true", "false", None]),
    "dates": ([datetime.date(2026, 1, 2), None], pl.Date, ["2026-01-02", None]),
    "times": ([datetime.datetime(2026, 1, 2, 3, 4, 5)], pl.Datetime("us"), ["2026-01-02T03:04:05"]),
    "enums": (["b", "a", None], pl.Enum(["a", "b"]), ["b", "a", None]),
    "bytes": ([b"ab", b"\xff", None], pl.Binary, ["ab", "\\xff", None]),
    "nothing": ([None, None], pl.Null, [None, None]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_text_of_a_value_is_the_same_alone_and_in_a_column(name):
    values, dtype, expected = CASES[name]
    assert text_of_series(pl.Series("c", values, dtype=dtype)).to_list() == expected
    assert [text_of_value(value) for value in values] == expected


@settings(deadline=None, max_examples=60)
@given(st.lists(st.none() | st.floats(allow_nan=True) | st.integers(-(10**6), 10**6).map(float), max_size=8))
def test_any_double_has_one_text(values):
    assert text_of_series(pl.Series("c", values, dtype=pl.Float64)).to_list() == [text_of_value(v) for v in values]


def test_numpy_values_read_like_python_values():
    values = [np.int32(7), np.float64(7.0), np.bool_(True), np.str_("x"), np.float32("nan")]
    assert [text_of_value(value) for value in values] == ["7", "7", "true", "x", None]


def test_a_list_where_one_value_belongs_is_refused_by_name():
    with pytest.raises(DataError, match="Column 'tags' must hold one value in each row"):
        text_of_series(pl.Series("tags", [["a"]]))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=40), max_size=8))
def test_the_stable_hash_of_a_column_is_that_of_its_texts(texts):
    assert stable_hashes(pl.Series(texts, dtype=pl.String)).tolist() == [stable_hash(text) for text in texts]


def test_the_stable_hash_never_changes():
    # These numbers are part of the file format: hashed columns and group splits depend on them.
    assert [stable_hash(text) for text in ("", "a", "deadbeef", "a longer text, über 16 bytes")] == [
        0,
        7075883509774426401,
        14107083721433147389,
        14344833890602058125,
    ]


def test_the_mixing_function_is_that_of_the_splitmix_generator():
    # The first outputs of Vigna's splitmix64.c for seed 1234567, whose state grows by the golden gamma.
    state = 1234567 + np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert splitmix64(state).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]

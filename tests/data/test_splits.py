from __future__ import annotations

import dataclasses
import datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossrank.config import parse
from crossrank.data import SplitSettings, open_splits, open_table
from crossrank.data.prepare import prepare
from crossrank.errors import ConfigError, DataError, SchemaError
from crossrank.schema import Categorical, Label, Schema


def assign(values, chunk_rows=1000, **options):
    """Each row's split, read in chunks."""
    table = open_table(values if isinstance(values, pl.DataFrame) else pl.DataFrame(values))
    by_chunk = SplitSettings(**options).assigner(table)
    return np.concatenate([by_chunk(chunk) for chunk in table.chunks(rows=chunk_rows)])


def shares(parts):
    return np.bincount(parts, minlength=3) / len(parts)


def test_random_splits_have_the_asked_shares():
    parts = assign({"x": np.zeros(20_000)}, fractions=(0.7, 0.2, 0.1))
    np.testing.assert_allclose(shares(parts), [0.7, 0.2, 0.1], atol=0.015)


def test_a_random_split_is_a_function_of_seed_and_position():
    rows = {"x": np.arange(3000)}
    first = assign(rows)
    assert np.array_equal(first, assign({"x": np.zeros(3000)}, chunk_rows=7))
    assert np.array_equal(first[:1000], assign({"x": np.arange(1000)}))
    assert not np.array_equal(first, assign(rows, seed=1))


def test_a_share_of_zero_gets_no_rows():
    assert set(assign({"x": np.zeros(5000)}, fractions=(0.7, 0.3, 0.0))) == {0, 1}
    assert set(assign({"x": np.zeros(50)}, fractions=(1.0,))) == {0}


@settings(deadline=None, max_examples=25)
@given(st.lists(st.none() | st.integers(0, 30), min_size=1, max_size=60), st.integers(0, 5))
def test_a_group_is_never_divided(groups, seed):
    parts = assign({"g": groups}, chunk_rows=9, method="group", column="g", seed=seed)
    of_group = {}
    assert all(of_group.setdefault(group, part) == part for group, part in zip(groups, parts, strict=True))


def test_groups_are_compared_by_text_and_shared_out_as_asked():
    groups = np.repeat(np.arange(4000), 3)
    numbers = assign({"g": groups}, method="group", column="g")
    texts = assign({"g": groups.astype(str)}, method="group", column="g")
    assert np.array_equal(numbers, texts)
    np.testing.assert_allclose(shares(numbers), [0.8, 0.1, 0.1], atol=0.02)


TIMES = {
    "numbers": list(range(95, 195)),
    "numbers as text": [str(number) for number in range(95, 195)],
    "iso text": [f"2026-{month:02}-{day:02}" for month in range(1, 11) for day in range(1, 11)],
    "dates": [datetime.date(2026, 1, 1) + datetime.timedelta(days=day) for day in range(100)],
    "floats": [float(number) / 7 for number in range(100)],
}


@pytest.mark.parametrize("name", TIMES)
def test_the_earliest_rows_train_and_the_latest_test(name):
    order = np.random.default_rng(0).permutation(100)
    times = [TIMES[name][position] for position in order]
    parts = assign({"t": times}, chunk_rows=13, method="time", column="t")
    assert np.array_equal(parts[np.argsort(order)], np.repeat([0, 1, 2], [80, 10, 10]))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_rows_of_one_time_stay_together_and_in_order(times):
    parts = assign({"t": times}, chunk_rows=7, method="time", column="t")
    assert (np.diff(parts[np.argsort(times, kind="stable")].astype(int)) >= 0).all()
    assert len({(time, part) for time, part in zip(times, parts.tolist(), strict=True)}) == len(set(times))
    assert parts[int(np.argmin(times))] == 0


def test_text_that_would_not_sort_as_time_is_refused():
    for wrong in ("31/01/2026", "1.2.2026", "01-31-2026 10:30"):
        with pytest.raises(DataError, match=f"texts with the year first; got '{wrong}'"):
            assign({"t": [wrong] * 9}, method="time", column="t")


def test_many_distinct_times_are_counted_in_parts(monkeypatch):
    monkeypatch.setattr("crossrank.data.time_split.COMPACT_ROWS", 10)
    parts = assign({"t": np.arange(5000)[::-1] // 2}, chunk_rows=100, method="time", column="t")
    assert np.array_equal(parts, np.repeat([2, 1, 0], [500, 500, 4000]))


def test_without_a_column_the_position_is_the_time():
    parts = assign({"x": np.zeros(50)}, chunk_rows=7, method="time", fractions=(0.5, 0.3, 0.2))
    assert np.array_equal(parts, np.repeat([0, 1, 2], [25, 15, 10]))


def test_a_row_without_time_is_refused_with_its_place():
    for times in ([1.0, None], [1.0, float("nan")]):
        with pytest.raises(DataError, match="must have a time in every row; it is missing in row 2"):
            assign({"t": times}, method="time", column="t")


def test_an_unknown_split_column_is_named_with_a_suggestion():
    with pytest.raises(SchemaError, match=r"Column 'uesr'.*Did you mean 'user'\?"):
        assign({"user": [1]}, method="group", column="uesr")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fractions": (0.5, 0.6)}, "must add up to 1; got 0.5, 0.6"),
        ({"fractions": (1.5, -0.5)}, "must add up to 1"),
        ({"fractions": ()}, "has 1 to 3 fractions"),
        ({"fractions": (0.4, 0.2, 0.2, 0.2)}, "has 1 to 3 fractions"),
        ({"fractions": (0.0, 1.0)}, "must be above 0"),
        ({"method": "group"}, "needs a column"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        SplitSettings(**options)


def test_settings_are_read_from_a_config():
    values = {"method": "time", "column": "hour", "fractions": [0.9, 0.1]}
    assert parse(SplitSettings, values) == SplitSettings(method="time", column="hour", fractions=(0.9, 0.1))


SCHEMA = Schema([Categorical(name="x")], Label(name="y"))


def test_a_column_names_the_split_in_the_usual_spellings():
    said = ["train", " Training", "VAL", "validation", "dev", "valid", "test", "Testing"]
    assert assign({"part": said}, column="part").tolist() == [0, 0, 1, 1, 1, 1, 2, 2]


def test_names_of_splits_that_are_not_known_are_named():
    with pytest.raises(DataError, match=r"got 'later', 'nothing' in 3 rows\..* split\.method"):
        assign({"part": ["train", "later", None, "later"]}, column="part")
    with pytest.raises(DataError, match="must say train in some rows; got 'test'"):
        assign({"part": ["test", "test"]}, column="part")


def test_valid_rows_are_drawn_from_the_training_rows_where_a_column_has_none():
    said = np.array(["train"] * 9000 + ["test"] * 1000)
    parts = assign({"part": said}, column="part", chunk_rows=700)
    assert np.array_equal(parts == 2, said == "test")
    assert np.mean(parts[:9000] == 1) == pytest.approx(1 / 9, abs=0.01)


@pytest.mark.parametrize(
    ("cells", "schema", "asked", "method"),
    [
        (["train", "test"], SCHEMA, {}, "column"),
        (["train", "other"], SCHEMA, {}, "random"),
        (["train", "test"], SCHEMA, {"method": "random"}, "random"),
        (["train", "test"], dataclasses.replace(SCHEMA, time="t"), {}, "time"),
        (["train", "test"], dataclasses.replace(SCHEMA, time="t"), {"column": "split"}, "column"),
        (["train", "test"], dataclasses.replace(SCHEMA, features=[Categorical(name="split")]), {}, "random"),
    ],
)
def test_the_split_is_what_the_table_and_its_schema_suggest(cells, schema, asked, method):
    table = open_table({"x": ["a", "b"], "y": [0, 1], "t": [1, 2], "split": cells})
    decided, why = SplitSettings(**asked).decided(table, schema)
    assert decided.method == method
    assert bool(why) == (not asked and method != "random")


def test_a_feature_cannot_name_the_split():
    table = open_table({"x": ["train", "test"], "y": [0, 1]})
    with pytest.raises(SchemaError, match="must have no other meaning; 'x' is in the schema"):
        SplitSettings(column="x").decided(table, SCHEMA)


def test_rows_of_files_keep_their_splits_and_the_encoder_learns_from_the_training_file_alone(tmp_path):
    files = {"train": ["a", "b", "a"], "valid": ["v", "a"], "test": ["t", "t", "a"]}
    for name, texts in files.items():
        pl.DataFrame({"x": texts, "y": [0, 1, 0][: len(texts)]}).write_csv(tmp_path / f"{name}.csv")
    table = open_splits(**{name: tmp_path / f"{name}.csv" for name in files})
    dataset = prepare(table, SCHEMA, tmp_path / "d", progress=False)
    assert dataset.num_rows == {"train": 3, "valid": 2, "test": 3}
    assert dataset.manifest["split"]["method"] == "files"
    assert [dataset.encoder.vocabularies["x"].text_of(i) for i in (2, 3)] == ["a", "b"]
    assert dataset.encoder.features[0].vocab_size == 4
    with pytest.raises(ConfigError, match=r"divided by their files; got split\.method=time"):
        SplitSettings(method="time").decided(table, SCHEMA)

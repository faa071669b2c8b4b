"""Schemas: what they refuse, and that they survive being written, edited and read."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossrank.errors import SchemaError
from crossrank.schema import Categorical, Date, Label, Multivalent, Numeric, Schema

FEATURES = [
    Categorical(name="user", min_count=2, max_size=1000),
    Categorical(name="device", hash_size=64),
    Multivalent(name="tags", separator=";"),
    Numeric(name="price", log_shift=1.0),
    Numeric(name="age", standardize=False),
]
SCHEMA = Schema(FEATURES, Label(name="click"), weight="importance", group="query")


def test_a_schema_survives_a_file(tmp_path):
    SCHEMA.save(tmp_path / "schema.json")
    assert Schema.load(tmp_path / "schema.json") == SCHEMA
    assert Schema.load(str(tmp_path / "schema.json")) == SCHEMA


names = st.text(min_size=1, max_size=5)
counts = st.integers(1, 10**9)
features = st.one_of(
    st.builds(Categorical, name=names, min_count=counts, max_size=st.none() | counts),
    st.builds(Multivalent, name=names, separator=names, hash_size=st.none() | counts),
    st.builds(
        Date, name=names, parts=st.just(("hour", "age")), reference=st.just("2026-01-31"), source=st.just("when")
    ),
    st.builds(Categorical, name=names, source=st.just("when"), missing=st.just(("?",))),
    st.builds(
        Numeric,
        name=names,
        decimal=st.sampled_from([None, ".", ","]),
        log_shift=st.none() | st.floats(-10, 10),
        standardize=st.booleans(),
    ),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(features, min_size=1, max_size=6, unique_by=lambda column: column.name),
    st.sampled_from(["binary", "real"]),
)
def test_any_schema_survives_json(columns, kind):
    schema = Schema(columns, Label(name="the label", kind=kind))
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


def test_columns_are_found_by_kind_in_the_order_given():
    assert SCHEMA.names == ("user", "device", "tags", "price", "age")
    assert [column.name for column in SCHEMA.categorical] == ["user", "device"]
    assert [column.name for column in SCHEMA.multivalent] == ["tags"]
    assert [column.name for column in SCHEMA.numeric] == ["price", "age"]
    assert list(SCHEMA.required) == ["user", "device", "tags", "price", "age", "click", "importance", "query"]


def test_a_group_may_also_be_a_feature_and_is_then_required_once():
    schema = Schema([Categorical(name="user")], Label(name="click"), group="user")
    assert list(schema.required) == ["user", "click"]


def test_a_person_may_write_the_least_by_hand():
    written = {"label": {"name": "click"}, "features": [{"kind": "numeric", "name": "age"}]}
    assert Schema.from_dict(written) == Schema([Numeric(name="age")], Label(name="click"))


def edited(change):
    values = json.loads(json.dumps(SCHEMA.to_dict()))
    change(values)
    return values


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.update(format_version=2), "the schema must have format version 1; got 2"),
        (lambda v: v.update(lable={}), "unknown key 'lable'. Did you mean 'label'"),
        (lambda v: v.pop("label"), "needs a 'label' object and a 'features' list"),
        (lambda v: v.update(features={}), "needs a 'label' object and a 'features' list"),
        (lambda v: v.update(features=[]), "at least one feature"),
        (lambda v: v.update(weight=3), "'weight' of the schema must be the name of a column or null; got 3"),
        (lambda v: v.update(group=["q"]), r"'group' of the schema must be the name of a column or null; got \['q'\]"),
        (
            lambda v: v["label"].update(kind="binry"),
            "must be one of 'binary', 'real', 'classes', 'grade', 'tasks'; got 'binry'. Did you mean 'binary'",
        ),
        (lambda v: v["label"].pop("name"), "'label.name' must be given"),
        (lambda v: v["features"].append("age"), "needs a 'name' and a 'kind' out of .*; got 'age'"),
        (lambda v: v["features"][0].update(kind="category"), "'kind' out of 'categorical', 'multivalent', 'numeric'"),
        (lambda v: v["features"][0].update(kind=["categorical"]), "needs a 'name' and a 'kind'"),
        (lambda v: v["features"][0].pop("name"), "needs a 'name' and a 'kind'"),
        (lambda v: v["features"][0].update(name=7), "'features.7.name' must be text; got 7"),
        (lambda v: v["features"][0].update(min_cuont=3), "'features.user.min_cuont' .* Did you mean 'min_count'"),
        (lambda v: v["features"][0].update(min_count="3"), "'features.user.min_count' must be a whole number; got '3'"),
        (lambda v: v["features"][0].update(min_count=0), "min_count of column 'user' must be at least 1; got 0"),
        (lambda v: v["features"][1].update(max_size=9), "Column 'device' is hashed"),
        (lambda v: v["features"][2].update(separator=""), "separator of column 'tags' must not be empty"),
        (lambda v: v["features"][3].update(log_shift=math.inf), "'features.price.log_shift' must be"),
        (lambda v: v["features"][4].update(name="price"), "'price' has 2"),
        (lambda v: v["features"][4].update(name="click"), "'click' has 2"),
        (lambda v: v["features"][4].update(name="importance"), "'importance' has 2"),
        (lambda v: v.update(group="click"), "'click' has 2"),
        (lambda v: v.update(group="importance"), "'importance' has 2"),
    ],
)
def test_a_slip_in_an_edited_schema_is_named(change, message):
    with pytest.raises(SchemaError, match=message):
        Schema.from_dict(edited(change))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"parts": ["hour", "hour"]}, "parts of column 'when' must be some different ones"),
        ({"parts": ["year"]}, "must be one of 'hour', 'minute', 'weekday', 'month', 'day_of_year', 'age'; got 'year'"),
        ({"format": "dd/mm/yyyy"}, "letters of strptime; got 'dd/mm/yyyy'. 31/01/2026 10:30 is %d/%m/%Y %H:%M"),
        ({"parts": ["age"]}, "An age needs a time up to which it is counted"),
        ({"parts": ["age"], "reference": "soon"}, "must be a time in ISO 8601; got 'soon'"),
        ({}, "'when.hour' has 2"),
        ({"encodings": {"hour": "scalar"}}, "must be those of 'minute', 'age'; got 'hour'"),
        ({"parts": ["minute"], "encodings": {"minute": "pieces+x"}}, "encoding of column 'when.minute' must be"),
        ({"source": "click", "parts": ["age"], "reference": "2026-01-31"}, "'click' has 2"),
    ],
)
def test_a_slip_in_a_date_is_named(fields, message):
    features = [{"kind": "date", "name": "when", **fields}, {"kind": "categorical", "name": "when.hour"}]
    with pytest.raises(SchemaError, match=message):
        Schema.from_dict({"label": {"name": "click"}, "features": features})


def test_a_column_may_be_used_in_two_ways_and_is_read_once():
    schema = Schema([Numeric(name="age"), Categorical(name="age group", source="age")], Label(name="click"))
    assert schema.names == ("age", "age group") and schema.inputs == ("age",)
    assert list(schema.required) == ["age", "click"]
    assert Schema.from_dict(schema.to_dict()) == schema


def test_a_column_made_in_python_is_checked_too():
    with pytest.raises(SchemaError, match="log_shift of column 'a' must be a finite number; got nan"):
        Numeric(name="a", log_shift=math.nan)
    with pytest.raises(SchemaError, match="hash_size of column 'a' must be at least 1; got 0"):
        Multivalent(name="a", hash_size=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("{", "must be readable JSON"),
        ("[]", r"the whole must be an object; got \[\]"),
        ("\udcff", "JSON"),
    ],
)
def test_a_file_that_is_no_schema_is_named(tmp_path, content, message):
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(SchemaError, match=message) as caught:
        Schema.load(path)
    assert str(path) in str(caught.value)

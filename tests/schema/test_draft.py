"""What a drafted schema makes of labels, weights and groups, and what it says of its own decisions."""

from __future__ import annotations

import pytest

from crossrank.errors import SchemaError
from crossrank.schema import Categorical, Label, Numeric, Schema
from crossrank.schema.draft import draft_features, draft_schema

ROWS = 400


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0, 1, 0], "binary"),
        (["0", "1", None], "binary"),
        ([True, False, True], "binary"),
        (["true", "False", "true"], "binary"),
        (["TRUE", "FALSE", " TRUE"], "binary"),
        (["1", "NA", "0"], "binary"),
        (["1.5", "NA", "3.5"], "real"),
        ([1.0, 0.0, 1.0], "binary"),
        ([0, 0, 0], "binary"),
        ([1, 2, 5], "real"),
        (["0.5", "3", "-1"], "real"),
    ],
)
def test_the_labels_kind_follows_its_values(values, kind):
    table = {"Click": values, "a": ["x", "y", "x"]}
    assert draft_schema(table).label == Label(name="Click", kind=kind)


@pytest.mark.parametrize("values", [["a", "b", "c"], ["no", "no"], [5, 5, 5], [None, None, None], [[1], [0], [1]]])
def test_a_label_of_neither_kind_is_refused(values):
    with pytest.raises(SchemaError, match="Label 'y' must be 0 or 1") as caught:
        draft_schema({"y": values, "a": ["x", "y", "x"]})
    assert "Map it" in caught.value.hint


def test_the_given_label_wins_over_usual_names_and_the_first_usual_name_over_others():
    table = {"target": [1, 0, 1], "label": [0, 1, 1], "bought": [1, 1, 0], "a": ["x", "y", "x"]}
    assert draft_schema(table).label.name == "label"
    draft = draft_schema(table, label="bought")
    assert draft.label.name == "bought"
    assert draft.schema.names == ("target", "label", "a")


def test_weight_and_group_are_recognised_and_are_no_features():
    table = {
        "Query_ID": ["q1", "q1", "q2"],
        "session_id": ["s1", "s1", "s2"],
        "sample_weight": ["1", "0.5", "2"],
        "a": ["x", "y", "x"],
        "click": [0, 1, 0],
    }
    schema = draft_schema(table).schema
    assert (schema.weight, schema.group) == ("sample_weight", "Query_ID")
    assert schema.names == ("session_id", "a")


def test_a_weight_must_weigh_and_a_group_must_group():
    table = {"sample_weight": ["light", "heavy", "light"], "request_id": ["r1", "r2", "r3"], "click": [0, 1, 0]}
    schema = draft_schema(table).schema
    assert schema.weight is None and schema.group is None
    assert schema.names == ("sample_weight", "request_id")
    for weights in ([-1, -2, 1], [None, None, 1]):
        assert draft_schema({"sample_weight": weights, "click": [0, 1, 0]}).weight is None


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([1, 2, 1, 2], ("1", "2")),
        (["2.0", "1.0", "1"], ("1", "2")),
        ([-1, 1, 1], ("-1", "1")),
        (["paid ", "free", "paid"], ("free", "paid")),
        (["M", "B", "NA"], ("B", "M")),
    ],
)
def test_a_label_of_two_values_is_binary_and_says_which_counts_as_one(values, classes):
    draft = draft_schema({"y": values, "a": ["x", "y", "x", "x"][: len(values)]})
    assert draft.label == Label(name="y", classes=classes)
    assert f"'{classes[1]}' counts as 1" in draft.notes[0]


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["yes", "no", "Yes", "NO"], ("no", "yes")),
        (["clicked", "not clicked"], ("not clicked", "clicked")),
        (["churn", "no churn"], ("no churn", "churn")),
        (["N", "Y", "Y"], ("N", "Y")),
        (["on", "off"], ("off", "on")),
    ],
)
def test_the_positive_one_of_yes_and_no_needs_no_note(values, classes):
    draft = draft_schema({"y": values, "a": ["x", "y", "x", "x"][: len(values)]})
    assert draft.label == Label(name="y", classes=classes)
    assert draft.notes == []


@pytest.mark.parametrize(
    ("values", "positive", "classes"),
    [
        (["free", "paid"], "Free", ("paid", "free")),
        ([0, 1], "0", ("1", "0")),
        (["1.0", "2.0"], "1", ("2", "1")),
        (["yes", "no"], "no", ("yes", "no")),
    ],
)
def test_the_positive_value_may_be_named(values, positive, classes):
    draft = draft_schema({"y": values, "a": ["x", "y"]}, positive=positive)
    assert draft.label == Label(name="y", classes=classes) and draft.notes == []


@pytest.mark.parametrize("values", [["free", "paid"], [0.5, 1.5, 2.5], [0, 1]])
def test_a_positive_value_that_the_label_lacks_is_refused(values):
    with pytest.raises(SchemaError, match="one of the two values of label 'y'; got 'maybe'"):
        draft_schema({"y": values, "a": ["x", "y", "x"][: len(values)]}, positive="maybe")


def test_a_number_that_may_be_a_class_is_noted():
    ratings = [1 + i % 5 for i in range(ROWS)]
    draft = draft_schema({"y": ratings, "a": ["x", "y"] * (ROWS // 2)})
    assert draft.label == Label(name="y", kind="real")
    assert "the 5 values 1, 2, 3, 4, 5" in draft.notes[0]
    for numbers in ([i / 7 for i in range(ROWS)], list(range(ROWS))):
        assert draft_schema({"y": numbers, "a": ["x", "y"] * (ROWS // 2)}).notes == []


@pytest.mark.parametrize("bad", [-1, None, "nan", "unknown"])
def test_a_weight_stays_one_where_a_few_rows_have_none(bad):
    weights = [bad if i == 5 else 1.5 for i in range(ROWS)]
    table = {"sample_weight": weights, "a": ["x", "y"] * 200, "click": [0, 1] * 200}
    assert draft_schema(table).weight == "sample_weight"


def test_the_weight_of_a_person_is_a_feature_and_what_to_do_if_it_is_not_one_is_said() -> None:
    kilograms = [50 + i % 37 + 0.5 for i in range(ROWS)]
    draft = draft_schema({"Weight": kilograms, "a": ["x", "y"] * 200, "click": [0, 1] * 200})
    assert draft.weight is None and draft.schema.names == ("Weight", "a")
    assert len(draft.notes) == 1 and "call it sample_weight, or write" in draft.notes[0]


@pytest.mark.parametrize(
    ("cell", "kind", "remedy"),
    [
        (lambda i: f"{1 + i % 9},{100 + i % 90}", "categorical", '"decimal": "." or ","'),
        (lambda i: f"{i % 90},{i % 10}" if i % 3 != 1 else f"{1 + i % 7},100.5", "categorical", "Write them as 1234.5"),
        (lambda i: "no idea" if i == 16 else f"{i % 97}", "categorical", "'no idea' under \"missing\""),
        (lambda i: "no idea" if i == 16 else f"{i / 7}", "left out", "'no idea' under \"missing\""),
    ],
)
def test_numbers_that_are_written_otherwise_are_noted_with_a_cell_and_a_remedy(cell, kind, remedy):
    cells = [cell(i) for i in range(ROWS)]
    (note,) = draft_features({"thing": cells, "a": ["x", "y"] * 200}).notes
    assert note.startswith(f"'thing' is {kind}, though")
    row = 17 if "no idea" in cells else 1
    assert f"{cells[row - 1]!r} in row {row}" in note
    assert remedy in note


@pytest.mark.parametrize(
    ("cell", "decimal"),
    [
        (lambda i: f"{i % 90},{i % 10}", ","),
        (lambda i: f"{i % 90},{i % 10}" if i % 3 != 1 else str(i % 7), ","),
        (lambda i: f"1.{100 + i},5 €", ","),
        (lambda i: f"${1 + i},{100 + i % 300}.00", "."),
        (lambda i: f"1 {100 + i}.25", "."),
        (lambda i: f"{i % 97}%", "."),
        (lambda i: "n/a" if i == 3 else f"£{i / 4}", "."),
    ],
)
def test_numbers_as_people_write_them_are_drafted_with_their_decimal_mark(cell, decimal):
    draft = draft_features({"thing": [cell(i) for i in range(ROWS)], "a": ["x", "y"] * 200})
    assert isinstance(draft.features[0], Numeric) and draft.features[0].decimal == decimal and not draft.notes
    assert draft.features[0].missing == (("n/a",) if cell(3) == "n/a" else ())
    assert f"decimal mark '{decimal}'" in "\n".join(draft.lines())


def test_dates_whose_day_and_month_cannot_be_told_apart_are_asked_for():
    draft = draft_features({"when": [f"0{1 + i % 9}/0{1 + i % 5}/2026" for i in range(90)], "a": ["x", "y"] * 45})
    (note,) = draft.notes
    assert draft.left_out == {"when": "dates whose day and month cannot be told apart"}
    assert '{"kind": "date", "name": "when", "format": "%d/%m/%Y"} (day first) or "%m/%d/%Y" (month first)' in note
    assert "'01/01/2026'" in note


@pytest.mark.parametrize(
    "cell",
    [
        lambda i: "unknown" if i % 7 == 3 else str(i % 4),
        lambda i: f"{i % 12}a" if i % 3 else str(i % 12),
        lambda i: f"{i % 5}|{i % 3}" if i % 4 == 0 else str(i % 5),
        lambda i: f"{i % 250}.{i % 3}.0.1",
        lambda i: f"{i * 7919 % 65536:04x}",
        lambda i: f"{i % 97}",
    ],
)
def test_codes_sets_and_plain_numbers_need_no_note(cell):
    assert draft_features({"thing": [cell(i) for i in range(ROWS)], "a": ["x", "y"] * 200}).notes == []


def test_a_draft_tells_its_columns_what_is_missing_what_is_left_out_and_why():
    table = {
        "user": [f"u{i % 9}" for i in range(ROWS)],
        "price": ["NA" if i == 3 else f"{i % 97}.5" for i in range(ROWS)],
        "sample_weight": [1.0] * ROWS,
        "key": [f"k{i}" for i in range(ROWS)],
        "still": ["x"] * ROWS,
        "y": ["free", "paid"] * (ROWS // 2),
    }
    *lines, note = draft_schema(table).lines()
    assert lines == [
        "  categorical: user",
        "  numeric: price (missing: 'NA')",
        "  weight of each row: sample_weight",
        "  left out: key (never repeats), still (one value only)",
    ]
    assert note.startswith("note: label 'y' has the two values")


def test_in_python_notes_are_warnings():
    table = {"a": ["x", "y"] * 200, "click": [1, 2] * 200}
    with pytest.warns(UserWarning, match="the two values '1' and '2'"):
        assert Schema.infer(table).label.classes == ("1", "2")


@pytest.mark.parametrize(
    ("table", "label", "message"),
    [
        ({}, None, "got none, and the columns none"),
        ({"click": [], "a": []}, None, "got none, and the columns 'click', 'a'"),
        ({"a": [1, 2], "b": [1, 2]}, None, "got the columns 'a', 'b'"),
        ({"clicked": [1, 0], "b": [1, 2]}, "clicks", "Did you mean 'clicked'"),
        ({"click": [0, 1], "b": [3, 3]}, None, r"'b' \(one value only\)"),
        ({"click": [0, 1]}, None, "got no others"),
        ({"click": [0, 1], 3: [1, 2]}, None, "got 3"),
        ([1, 2], None, "got list"),
    ],
)
def test_a_table_without_a_schema_is_refused_with_what_it_has(table, label, message):
    with pytest.raises(SchemaError, match=message):
        draft_schema(table, label=label)


def test_texts_for_missing_numbers_and_classes_are_written_only_where_there_are_some():
    plain = Schema([Numeric(name="a"), Categorical(name="b")], Label(name="y")).to_dict()
    assert plain["label"] == {"name": "y", "kind": "binary"}
    assert plain["features"][0] == {"kind": "numeric", "name": "a", "standardize": True, "encoding": "auto"}
    schema = Schema([Numeric(name="a", missing=("NA", "?"))], Label(name="y", classes=("no", "yes")))
    assert Schema.from_dict(schema.to_dict()) == schema


@pytest.mark.parametrize("text", ["-999", "1e3", " 0 "])
def test_a_number_cannot_count_as_missing(text):
    with pytest.raises(SchemaError, match="must not be numbers; column 'a' has"):
        Numeric(name="a", missing=("NA", text))


@pytest.mark.parametrize(
    "label",
    [{"classes": ("a",)}, {"classes": ("a", "a")}, {"classes": ("a", "b", "c")}, {"kind": "real", "classes": "ab"}],
)
def test_classes_are_two_and_those_of_a_binary_label(label):
    with pytest.raises(SchemaError, match="must be two different values of a binary label"):
        Label(name="y", **label)


def test_a_label_of_written_numbers_asks_for_plain_ones():
    with pytest.raises(SchemaError, match=r"got the 1,200 values .* Write them as 1234\.5"):
        draft_schema({"x": ["a", "b"] * 600, "y": [f"${1000 + i:,}" for i in range(1200)]})


def test_a_column_without_a_name_is_left_out_visibly():
    draft = draft_schema({"": range(60), "x": ["a", "b"] * 30, "y": [0, 1] * 30})
    assert "  left out: '' (an index of pandas)" in list(draft.lines())

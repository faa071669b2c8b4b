"""What `crossrank data describe` tells of a table."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from crossrank.data.describe import column_warnings, describe
from crossrank.data.generators.demo import schema
from crossrank.data.prepare import prepare
from crossrank.schema import Categorical, Label, Numeric, Schema
from crossrank.schema.draft import draft_schema


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    random = np.random.default_rng(0)
    label = random.integers(0, 2, 4000)
    return pl.DataFrame(
        {
            "click": label,
            "country": random.choice(["de", "fr", "pt", None], 4000, p=[0.5, 0.3, 0.1, 0.1]).tolist(),
            "constant": ["x"] * 4000,
            "row_key": [f"k{i}" for i in range(4000)],
            "after_click": np.where(label == 1, "bought", "nothing"),
            "half": np.where(random.random(4000) < 0.5, label, random.integers(0, 2, 4000)).astype(str),
            "price": random.normal(size=4000),
        }
    )


def by_name(description):
    return {column.name: column for column in description.columns}


def test_shares_and_counts_are_those_of_the_table(frame) -> None:
    told = describe(frame, label="click")
    country = by_name(told)["country"]
    assert told.rows == 4000
    assert told.label_rate == pytest.approx(frame["click"].mean())
    assert country.distinct == 3
    assert country.missing == pytest.approx(frame["country"].null_count() / 4000)
    assert country.top[0] == ("de", pytest.approx((frame["country"] == "de").sum() / 4000))


def test_a_drafted_description_leaves_out_what_training_leaves_out_and_says_why(frame) -> None:
    told = describe(frame, label="click")
    assert told.left_out == draft_schema(frame, label="click").left_out
    assert told.left_out == {"constant": "one value only", "row_key": "never repeats"}
    assert [column.name for column in told.columns] == [name for name in frame.columns if name != "click"]
    assert {column.name for column in told.columns if column.kind == "left out"} == set(told.left_out)
    (warning,) = told.warnings
    assert warning.startswith("'after_click' nearly determines the label alone (signal 0.99")


def test_constant_unique_and_leaking_columns_of_a_schema_are_warned_of(frame) -> None:
    given = Schema(
        [
            *(Categorical(name=name) for name in ("country", "constant", "row_key", "after_click")),
            Numeric(name="price"),
            Numeric(name="still"),
        ],
        Label(name="click"),
    )
    told = describe(frame.with_columns(still=1.5), schema=given)
    columns = by_name(told)
    for name in ("constant", "still"):
        assert "same in all 4,000 rows" in columns[name].warnings[0]
    assert "4,000 different values in 4,000 rows, like an id" in columns["row_key"].warnings[0]
    assert "leak" in columns["after_click"].warnings[0]
    assert columns["country"].warnings == columns["price"].warnings == []
    assert told.left_out == {"half": "not in the schema"}


def test_rows_that_are_looked_at_before_training_are_warned_of_as_a_description_does(frame) -> None:
    given = draft_schema(frame, label="click").schema
    assert column_warnings(frame, given) == describe(frame, schema=given).warnings != []
    text = frame.with_columns(pl.col("click").cast(pl.String))
    broken = pl.concat([text, text.head(9).with_columns(click=pl.lit("?"))])
    assert column_warnings(broken, given) == column_warnings(frame, given)
    assert column_warnings(frame.drop("price"), given) == []


def test_a_number_that_tells_a_rare_label_leaks() -> None:
    random = np.random.default_rng(0)
    label = (random.random(20_000) < 0.003).astype(int)
    refund = np.where(label == 1, random.uniform(5, 9, 20_000), random.uniform(0, 5, 20_000))
    told = describe(pl.DataFrame({"click": label, "refund": refund, "price": random.normal(size=20_000)}))
    assert "leak" in by_name(told)["refund"].warnings[0]
    assert by_name(told)["price"].warnings == []


def test_the_signal_of_a_number_is_the_variance_explained_of_its_rank() -> None:
    random = np.random.default_rng(0)
    label = random.lognormal(0, 3, 4000)
    frame = pl.DataFrame(
        {
            "y": label,
            "cents": 100 * label,
            "noise": random.normal(size=4000),
            "half": np.where(np.arange(4000) // 2 % 2, np.argsort(np.argsort(label)), random.uniform(0, 4000, 4000)),
        }
    )
    columns = by_name(describe(frame))
    assert columns["cents"].signal > 0.99 and "leak" in columns["cents"].warnings[0]
    assert columns["noise"].signal < 0.01
    assert columns["half"].signal == pytest.approx(0.25, abs=0.05)  # a correlation of 1/2, squared
    assert columns["half"].warnings == []


def test_a_few_rows_have_no_signal() -> None:
    told = describe(pl.DataFrame({"click": [0, 1] * 8, "a": ["x", "y"] * 8}))
    assert by_name(told)["a"].signal is None
    assert told.warnings == []


@pytest.mark.parametrize("names", [{"click": "bought"}, {"click": "bought", "country": "y"}])
def test_a_table_without_a_label_is_described_all_the_same(frame, names) -> None:
    told = describe(frame.rename(names))
    assert told.label is None and told.label_rate is None
    assert len(told.columns) == len(frame.columns)
    assert "there is no label, so no signal" in told.notes[0]
    assert {column.signal for column in told.columns} == {None}


def test_vectors_weights_and_groups_are_shown_though_they_are_no_features(frame) -> None:
    odd = frame.with_columns(
        vector=pl.concat_list("price", "price"), sample_weight=pl.lit(1.0), qid=pl.Series([i // 4 for i in range(4000)])
    )
    columns = by_name(describe(odd, label="click"))
    kinds = {name: columns[name].kind for name in ("vector", "sample_weight", "qid")}
    assert kinds == {"vector": "left out", "sample_weight": "weight", "qid": "group"}
    assert columns["vector"].distinct is None and columns["qid"].distinct == 1000


def test_the_signal_is_the_share_of_entropy_explained(frame) -> None:
    columns = by_name(describe(frame, label="click"))
    assert columns["after_click"].signal > 0.98
    assert columns["row_key"].signal == 0  # every value is new to the odd rows
    assert columns["country"].signal < 0.01
    noise = 0.25  # the label is copied or drawn anew, so a quarter of the rows disagree
    expected = 1 + (noise * np.log(noise) + (1 - noise) * np.log(1 - noise)) / np.log(2)
    assert columns["half"].signal == pytest.approx(expected, abs=0.05)


def test_the_share_of_rare_values_is_told_for_a_minimum_count(frame) -> None:
    columns = by_name(describe(frame, label="click", min_count=2))
    assert columns["row_key"].rare == 1.0
    assert columns["country"].rare == 0.0


def test_a_dataset_is_described_by_its_training_rows(clicks, tmp_path) -> None:
    dataset = prepare(clicks, schema(), tmp_path / "dataset")
    told = describe(tmp_path / "dataset")
    assert told.rows == dataset.train.num_rows
    assert by_name(told)["country"].distinct == 12
    assert {column.kind for column in told.columns} == {"categorical", "multivalent", "numeric"}

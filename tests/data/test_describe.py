"""What `crossrank data describe` tells of a table."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from crossrank.data.describe import describe
from crossrank.data.prepare import prepare
from crossrank.data.sources.demo import schema


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


def test_constant_unique_and_leaking_columns_are_warned_of(frame) -> None:
    columns = by_name(describe(frame, label="click"))
    assert "same in every row" in columns["constant"].warnings[0]
    assert "like an id" in columns["row_key"].warnings[0]
    assert "leak" in columns["after_click"].warnings[0]
    for name in ("country", "half", "price"):
        assert columns[name].warnings == []


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

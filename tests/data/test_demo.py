"""The built-in click log: reproducible, with a truth that is what it says and crosses that are pure."""

from __future__ import annotations

import itertools
import math

import numpy as np
import polars as pl
import pytest

from crossrank.data.sources import demo
from crossrank.data.sources.planted import entropy, factors
from crossrank.errors import ConfigError


@pytest.fixture(scope="module")
def log() -> demo.DemoLog:
    return demo.click_log(60_000)


def test_the_same_seed_gives_the_same_rows_and_another_seed_gives_others() -> None:
    first, again, other = demo.click_log(500), demo.click_log(500), demo.click_log(500, seed=1)
    assert first.frame.equals(again.frame)
    assert np.array_equal(first.probability, again.probability)
    assert not first.frame.equals(other.frame)


def test_the_frame_holds_every_column_of_the_schema_and_a_label_of_zeros_and_ones(log: demo.DemoLog) -> None:
    assert set(demo.schema().required) == set(log.frame.columns)
    assert set(log.frame["click"].unique()) == {0, 1}


def test_missing_values_occur_as_often_as_declared_and_nowhere_else(log: demo.DemoLog) -> None:
    for name in log.frame.columns:
        share = demo.MISSING.get(name, 0.0)
        assert log.frame[name].null_count() / log.frame.height == pytest.approx(share, abs=0.005), name


def test_a_row_has_up_to_three_different_tags(log: demo.DemoLog) -> None:
    tags = log.frame["tags"].drop_nulls().str.split("|")
    assert set(tags.list.len().unique()) == {1, 2, 3}
    assert (tags.list.n_unique() == tags.list.len()).all()


def test_rows_that_look_alike_have_the_same_probability() -> None:
    log = demo.click_log(3000)
    columns = {name: values for name, values in demo.VALUES.items() if name not in ("user", "item")}
    few = pl.DataFrame({name: log.frame[name] for name in columns})  # main effects of the rest are taken out below
    logit = _logit(log.probability) - _main(log, "user") - _main(log, "item")
    for name in demo.NUMBERS:
        few = few.with_columns(log.frame[name])
    table = few.with_columns(logit=logit).group_by(few.columns).agg(pl.col("logit").max() - pl.col("logit").min())
    assert table["logit"].max() < 1e-9


def test_about_one_row_in_five_is_clicked_and_calibrated(log: demo.DemoLog) -> None:
    clicked = log.frame["click"].to_numpy()
    assert 0.15 < clicked.mean() < 0.25
    order = np.argsort(log.probability)
    for part in np.array_split(order, 10):
        deviation = math.sqrt((log.probability[part] * (1 - log.probability[part])).sum()) / len(part)
        assert abs(clicked[part].mean() - log.probability[part].mean()) < 4.5 * deviation


def test_the_best_logloss_is_the_mean_over_many_draws_of_the_labels(log: demo.DemoLog) -> None:
    p, random = log.probability[:2000], np.random.default_rng(5)
    losses = [-np.where(random.random(len(p)) < p, np.log(p), np.log1p(-p)).mean() for _ in range(400)]
    assert entropy(p).mean() == pytest.approx(np.mean(losses), abs=4 * np.std(losses) / 20)
    assert log.best_logloss == pytest.approx(-(log.probability * np.log(log.probability)).mean()
                                             - ((1 - log.probability) * np.log(1 - log.probability)).mean())  # fmt: skip


@pytest.mark.parametrize("cross", [cross for cross in demo.PLANTED if not {"tags", "price"} & set(cross)])
def test_every_margin_of_a_planted_table_vanishes_and_its_deviation_is_the_strength(cross: tuple[str, ...]) -> None:
    weights = [demo._weights(name) / demo._weights(name).sum() for name in cross]
    vectors = [factors("/".join((*cross, name)), demo._weights(name), rank=demo.RANK) for name in cross]
    table = np.zeros([len(w) for w in weights])
    for place in itertools.product(*map(range, table.shape)):
        table[place] = sum(
            math.prod(vector[i, r] for vector, i in zip(vectors, place, strict=True)) for r in range(demo.RANK)
        ) / math.sqrt(demo.RANK)
    for axis, weight in enumerate(weights):
        assert np.abs(np.tensordot(table, weight, axes=(axis, 0))).max() < 1e-12
    joint = weights[0]
    for weight in weights[1:]:
        joint = np.multiply.outer(joint, weight)
    assert (joint * table**2).sum() == pytest.approx(1)


@pytest.mark.parametrize("cross", demo.PLANTED, ids="-".join)
def test_a_planted_cross_shows_in_the_logits_as_strongly_as_declared(log: demo.DemoLog, cross: tuple[str, ...]) -> None:
    ids, tags, numbers = _drawn(60_000)
    logit = _logit(log.probability)
    without = _logit_without(cross, ids, tags, numbers)
    part = logit - without
    assert part.std() == pytest.approx(demo.CROSSES[cross], rel=0.25)  # tags are averaged, missing values add nothing
    for name in cross:
        if name in ids:
            mean = np.bincount(ids[name], part) / np.maximum(np.bincount(ids[name]), 1)
            count = np.bincount(ids[name])
            assert (np.abs(mean) < 6 * part.std() * 3 / np.sqrt(np.maximum(count, 1))).all()
    planted = np.corrcoef(part, log.frame["click"].to_numpy())[0, 1]
    assert planted > 0.05


def test_a_log_without_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one row; got rows=0"):
        demo.click_log(0)


def _logit(probability: np.ndarray) -> np.ndarray:
    return np.log(probability) - np.log1p(-probability)

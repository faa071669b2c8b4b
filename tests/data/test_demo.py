"""The built-in click log: reproducible, with a truth that is what it says and crosses that are pure."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from crossrank.data.generators import demo
from crossrank.data.generators.planted import entropy, factors
from crossrank.errors import ConfigError

ROWS = 60_000


@pytest.fixture(scope="module")
def log() -> demo.DemoLog:
    return demo.click_log(ROWS)


@pytest.fixture(scope="module")
def drawn() -> demo.Drawn:
    return demo._draw(ROWS, np.random.default_rng(0))


@pytest.fixture(scope="module")
def parts(drawn: demo.Drawn) -> dict[tuple[str, ...], np.ndarray]:
    return dict(demo._parts(drawn))


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
        assert log.frame[name].null_count() / ROWS == pytest.approx(share, abs=0.005), name


def test_a_row_has_up_to_three_different_tags(log: demo.DemoLog) -> None:
    tags = log.frame["tags"].drop_nulls().str.split("|")
    assert set(tags.list.len().unique()) == {1, 2, 3}
    assert (tags.list.n_unique() == tags.list.len()).all()
    assert set(tags.list.explode().unique()) == set(demo.VALUES["tags"])


def test_the_probability_is_the_sigmoid_of_what_the_shown_values_add(log: demo.DemoLog) -> None:
    """An independent walk over the values of some rows, from the texts in the frame."""
    for row, probability in zip(log.frame.head(200).iter_rows(named=True), log.probability, strict=False):
        logit = demo.INTERCEPT
        for effect, strength in demo.EFFECTS.items():
            rank = 1 if len(effect) == 1 else demo.RANK
            product = [1.0] * rank
            for name in effect:
                product = [a * b for a, b in zip(product, _shown(effect, name, row[name], rank), strict=True)]
            logit += strength / math.sqrt(rank) * sum(product)
        assert probability == pytest.approx(1 / (1 + math.exp(-logit)), rel=1e-9)


def test_about_one_row_in_five_is_clicked_and_the_clicks_follow_the_probability(log: demo.DemoLog) -> None:
    clicks = log.frame["click"].to_numpy()
    assert 0.15 < clicks.mean() < 0.25
    for part in np.array_split(np.argsort(log.probability), 10):
        p = log.probability[part]
        assert abs((clicks[part] - p).sum()) < 4.5 * math.sqrt((p * (1 - p)).sum())


def test_the_best_logloss_is_the_mean_over_many_draws_of_the_labels(log: demo.DemoLog) -> None:
    p, random = log.probability[:2000], np.random.default_rng(5)
    losses = [-np.where(random.random(len(p)) < p, np.log(p), np.log1p(-p)).mean() for _ in range(400)]
    assert demo.DemoLog(log.frame, p).best_logloss == pytest.approx(np.mean(losses), abs=4 * np.std(losses) / 20)


def test_the_entropy_of_certain_outcomes_is_zero_and_of_a_fair_coin_log_two() -> None:
    assert entropy(np.array([0.0, 0.5, 1.0])) == pytest.approx([0, math.log(2), 0], abs=1e-12)


@pytest.mark.parametrize("cross", [cross for cross in demo.PLANTED if not {"tags", "price"} & set(cross)], ids="-".join)
def test_every_margin_of_a_planted_table_vanishes_and_its_deviation_is_one(cross: tuple[str, ...]) -> None:
    shares = [demo._weights(name) / demo._weights(name).sum() for name in cross]
    vectors = [factors("/".join((*cross, name)), demo._weights(name), rank=demo.RANK) for name in cross]
    table = np.zeros([len(share) for share in shares])
    for place in itertools.product(*map(range, table.shape)):
        table[place] = np.prod([column[i] for column, i in zip(vectors, place, strict=True)], axis=0).sum()
    for axis, share in enumerate(shares):
        assert np.abs(np.tensordot(table, share, axes=(axis, 0))).max() < 1e-10
    square = table**2
    for share in reversed(shares):
        square = square @ share
    assert square == pytest.approx(demo.RANK)


@pytest.mark.parametrize("cross", demo.PLANTED, ids="-".join)
def test_a_planted_cross_is_as_strong_as_declared_and_moves_the_clicks(
    log: demo.DemoLog, parts: dict[tuple[str, ...], np.ndarray], cross: tuple[str, ...]
) -> None:
    strength = demo.EFFECTS[cross]
    assert 0.7 * strength < parts[cross].std() < 1.1 * strength  # missing values and the mean of tags weaken it
    assert np.corrcoef(parts[cross], log.frame["click"].to_numpy())[0, 1] > 0.05


@pytest.mark.parametrize("cross", demo.PLANTED, ids="-".join)
def test_no_single_column_explains_a_planted_cross(
    drawn: demo.Drawn, parts: dict[tuple[str, ...], np.ndarray], cross: tuple[str, ...]
) -> None:
    part = parts[cross]
    for name in set(cross) - {"tags", *demo.NUMBERS}:
        sums, counts = np.bincount(drawn[name], part), np.bincount(drawn[name])
        explained = (sums**2 / np.maximum(counts, 1)).sum() / (part**2).sum()
        assert explained < 3 * len(counts) / ROWS + 0.002


def test_a_log_without_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one row; got rows=0"):
        demo.click_log(0)


def test_a_log_of_one_row_is_possible() -> None:
    assert demo.click_log(1).frame.height == 1


def _shown(effect: tuple[str, ...], name: str, value: object, rank: int) -> list[float]:
    if value is None:
        return [0.0] * rank
    if isinstance(value, float):
        mean, deviation = demo.NUMBERS[name]
        return [(math.log(1 + value) - mean) / deviation] * rank
    table = factors("/".join((*effect, name)), demo._weights(name), rank=rank)
    pieces = value.split("|") if name == "tags" and isinstance(value, str) else [value]
    vectors = [table[demo.VALUES[name].index(piece)] for piece in pieces]  # type: ignore[arg-type]
    return [float(total) / len(vectors) for total in np.sum(vectors, axis=0)]

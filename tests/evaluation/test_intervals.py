"""Intervals, against plain loops and against drawing the rows again."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from crossrank.evaluation.intervals import mean_and_error, measure_intervals
from crossrank.evaluation.metrics import measure, sigmoid


def drawn(count: int, seed: int = 0):
    random = np.random.default_rng(seed)
    logits = random.normal(-0.5, 1.5, count).round(1)  # with ties
    return (random.random(count) < sigmoid(logits)).astype(float), logits, random.choice([0.5, 1.0, 4.0], count)


def drawn_numbers(count: int):
    random = np.random.default_rng(0)
    labels = random.gamma(2.0, 3.0, count)
    return labels, labels + random.standard_t(5, count), random.choice([0.5, 1.0, 4.0], count)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("kind", "rows"), [("binary", drawn(800)), ("real", drawn_numbers(800))])
def test_intervals_are_as_wide_as_drawing_the_rows_again_makes_them(kind, rows, weighted) -> None:
    labels, logits, weights = rows
    weights = weights if weighted else None
    found = measure_intervals(labels, logits, label_kind=kind, weights=weights)
    random = np.random.default_rng(1)
    again = []
    for _ in range(400):
        some = random.integers(0, len(labels), len(labels))
        drawn_weights = None if weights is None else weights[some]
        again.append(measure(labels[some], logits[some], label_kind=kind, weights=drawn_weights))
    metrics = measure(labels, logits, label_kind=kind, weights=weights)
    assert set(found) == ({"logloss", "auc"} if kind == "binary" else {"rmse", "r2"})
    for name, (low, high) in found.items():
        width = 2 * 1.96 * np.std([one[name] for one in again])
        assert high - low == pytest.approx(width, rel=0.15)
        assert low < metrics[name] < high
        if name != "rmse":
            assert (low + high) / 2 == pytest.approx(metrics[name])


def test_about_95_of_100_intervals_hold_the_truth() -> None:
    truth = measure(*drawn(400_000, seed=1000)[:2])
    held = []
    for seed in range(300):
        labels, logits, _ = drawn(400, seed=seed)
        found = measure_intervals(labels, logits)
        held.append([low <= truth[name] <= high for name, (low, high) in found.items()])
    assert np.mean(held, axis=0) == pytest.approx(0.95, abs=0.03)


def test_the_interval_of_an_auc_is_delongs() -> None:
    labels, logits, _ = drawn(60)
    positives, negatives = logits[labels == 1], logits[labels == 0]
    wins = np.array([[(p > n) + (p == n) / 2 for n in negatives] for p in positives])
    variance = wins.mean(axis=1).var(ddof=1) / len(positives) + wins.mean(axis=0).var(ddof=1) / len(negatives)
    low, high = measure_intervals(labels, logits)["auc"]
    assert (low, high) == pytest.approx(
        (wins.mean() - 1.959964 * variance**0.5, wins.mean() + 1.959964 * variance**0.5)
    )


def test_a_mean_and_its_error_by_hand() -> None:
    values = np.array([1.0, 4.0, 4.0, 9.0])
    mean, error = mean_and_error(values, None)
    assert (mean, error) == pytest.approx((values.mean(), values.std(ddof=1) / 2))
    assert mean_and_error(values, np.full(4, 3.0)) == pytest.approx((mean, error))
    assert mean_and_error(np.append(values, 99.0), np.array([1, 1, 1, 1, 0])) == pytest.approx((mean, error))


def test_intervals_stay_within_what_a_metric_can_be() -> None:
    labels, logits = [0, 0, 1, 1, 1], [-9.0, 0.5, 0.4, 9.0, 9.0]
    found = measure_intervals(labels, logits)
    assert found["logloss"][0] == 0
    assert found["auc"][1] == 1
    found = measure_intervals([1.0, 2.0, 3.0], [1.0, 2.0, 3.5], label_kind="real")
    assert found["rmse"][0] == 0
    assert found["r2"][1] == 1


@pytest.mark.parametrize(
    ("labels", "kind", "names"),
    [
        ([], "binary", []),
        ([1], "binary", []),
        ([1, 1, 1], "binary", ["logloss"]),
        ([0, 1, 1], "binary", ["logloss"]),
        ([3.0], "real", []),
        ([3.0, 3.0], "real", ["rmse"]),
    ],
)
def test_what_the_rows_do_not_define_has_no_interval(labels, kind, names) -> None:
    found = measure_intervals(labels, np.arange(len(labels)), label_kind=kind)
    assert list(found) == names
    assert all(map(math.isfinite, itertools.chain.from_iterable(found.values())))

"""Ordered statistics, against loops over the definition, and traps for leaks."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from crossrank.data.ordered import FIRST_FORM, Form, OrderedStatistics, sums_before


def logit(share: float) -> float:
    return math.log(share / (1 - share))


def by_loops(cells, labels, times, kind, *, a=5.0, b=0.1) -> list[list[float]]:
    """The definition: for each row a look at every row before it."""
    result = []
    for row, cell in enumerate(cells):
        before = [other for other in range(row) if times is None or times[other] < times[row]]
        same = [labels[other] for other in before if cells[other] == cell]
        n, total, everything = len(same), math.fsum(same), [labels[other] for other in before]
        if not same:
            result.append([0.0, 0.0])
        elif kind == "binary":
            prior = (math.fsum(everything) + 0.5) / (len(everything) + 1)
            smoothed = (total + a * prior) / (n + a)
            result.append([b * math.log(1 + n), logit(smoothed) - logit(prior)])
        else:
            prior = math.fsum(everything) / len(everything)
            variance = math.fsum((label - prior) ** 2 for label in everything) / len(everything)
            smoothed = (total + a * prior) / (n + a)
            odds = (smoothed - prior) / (math.sqrt(variance) if variance > 0 else 1.0)
            result.append([b * math.log(1 + n), max(-10.0, min(10.0, odds))])
    return result


def rows(kind: str, *, with_times: bool, num_rows: int = 300, seed: int = 0):
    draw = np.random.default_rng(seed)
    cells = draw.integers(0, 40, num_rows)
    labels = 1.0 * (draw.random(num_rows) < 0.3) if kind == "binary" else 1e4 + draw.normal(size=num_rows)
    return cells, labels, np.sort(draw.integers(0, 60, num_rows)) if with_times else None


@pytest.mark.parametrize("with_times", [False, True])
@pytest.mark.parametrize("kind", ["binary", "real"])
def test_statistics_equal_loops_over_the_definition(kind, with_times) -> None:
    cells, labels, times = rows(kind, with_times=with_times)
    for form in (Form(), FIRST_FORM):
        found = OrderedStatistics(40, kind, form).add(cells, labels, times)
        expected = by_loops(cells, labels, times, kind, a=form.smoothing, b=form.count_scale)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("with_times", [False, True])
@pytest.mark.parametrize("kind", ["binary", "real"])
def test_statistics_do_not_depend_on_how_the_rows_are_cut(kind, with_times) -> None:
    cells, labels, times = rows(kind, with_times=with_times)
    whole, parts = OrderedStatistics(40, kind), OrderedStatistics(40, kind)
    cuts = [0, *([1, 120] if times is None else np.searchsorted(times, [3, 30])), len(cells)]
    found = [parts.add(cells[a:b], labels[a:b], None if times is None else times[a:b]) for a, b in pairwise(cuts)]
    np.testing.assert_allclose(np.concatenate(found), whole.add(cells, labels, times), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(parts.counts, whole.counts)
    np.testing.assert_allclose(parts.sums, whole.sums)
    np.testing.assert_allclose(parts.prior.mean, whole.prior.mean)
    np.testing.assert_allclose(parts.prior.deviation, whole.prior.deviation)


@pytest.mark.parametrize("with_times", [False, True])
@pytest.mark.parametrize("kind", ["binary", "real"])
def test_another_label_changes_no_statistic_of_its_own_row_and_of_no_row_before(kind, with_times) -> None:
    cells, labels, times = rows(kind, with_times=with_times, num_rows=120)
    before = OrderedStatistics(40, kind).add(cells, labels, times)
    changed = 0
    for row in range(len(cells)):
        other = labels.copy()
        other[row] = 1 - other[row] if kind == "binary" else other[row] + 3.0
        after = OrderedStatistics(40, kind).add(cells, other, times)
        np.testing.assert_array_equal(after[row], before[row])
        earlier = row if times is None else np.searchsorted(times, times[row], side="right")
        np.testing.assert_allclose(after[:earlier], before[:earlier], rtol=0, atol=1e-6)
        changed += not np.allclose(after, before)
    assert changed > 60  # later rows do see it


def test_rows_of_one_time_do_not_see_each_other() -> None:
    found = OrderedStatistics(1, "binary").add(np.zeros(4, int), np.ones(4), np.array([1, 1, 1, 2]))
    assert found[:3].tolist() == [[0, 0]] * 3
    assert found[3, 0] == pytest.approx(0.1 * math.log(4))


def test_cells_that_occur_once_have_no_statistics() -> None:
    found = OrderedStatistics(50, "binary").add(np.random.default_rng(0).permutation(50), np.ones(50))
    assert found.tolist() == [[0, 0]] * 50


def test_labels_of_pure_noise_leave_no_signal_where_the_mean_of_all_labels_would() -> None:
    draw = np.random.default_rng(0)
    cells, labels = draw.integers(0, 10_000, 20_000), 1.0 * (draw.random(20_000) < 0.3)
    walk = OrderedStatistics(10_000, "binary")
    ordered = walk.add(cells, labels)[:, 1]
    leaky = walk.sums[cells] / walk.counts[cells]
    assert abs(np.corrcoef(ordered, labels)[0, 1]) < 3 / math.sqrt(len(cells))
    assert np.corrcoef(leaky, labels)[0, 1] > 0.5


def test_sums_before_of_no_rows_are_none() -> None:
    assert sums_before(np.zeros(0, int), np.zeros((0, 2))).shape == (0, 2)
    assert OrderedStatistics(3, "real").add(np.zeros(0, int), np.zeros(0), np.zeros(0, int)).shape == (0, 2)

"""Metrics of order, against all pairs and all permutations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from crossrank.errors import DataError
from crossrank.evaluation.metrics import auc, badness, grouped_auc, measure, mrr, ndcg

few = settings(max_examples=60, deadline=None)
scored = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4), st.integers(0, 3), st.integers(0, 3)), max_size=30)
graded = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=9)


def columns(drawn, count):
    return [np.array([row[i] for row in drawn], dtype=np.float64) for i in range(count)]


def all_pairs_auc(labels, scores, weights):
    wins = pairs = 0.0
    for i, j in itertools.product(range(len(labels)), repeat=2):
        if labels[i] == 1 and labels[j] == 0:
            pairs += weights[i] * weights[j]
            wins += (
                weights[i] * weights[j] * (scores[i] > scores[j])
                + weights[i] * weights[j] * (scores[i] == scores[j]) / 2
            )
    return wins / pairs if pairs else math.nan


@few
@given(scored)
def test_auc_is_the_share_of_pairs_in_the_right_order(drawn):
    labels, scores, weights, _ = columns(drawn, 4)
    assert_allclose(auc(labels, scores), all_pairs_auc(labels, scores, np.ones(len(labels))), rtol=1e-12)
    assert_allclose(auc(labels, scores, weights=weights), all_pairs_auc(labels, scores, weights), rtol=1e-12)


@few
@given(scored)
def test_auc_sees_the_order_only_and_turns_over_with_it(drawn):
    labels, scores, weights, _ = columns(drawn, 4)
    found = auc(labels, scores, weights=weights)
    assert_allclose(auc(labels, np.exp(3 * scores) - 7, weights=weights), found, rtol=1e-12)
    assert_allclose(auc(labels, -scores, weights=weights), 1 - found, atol=1e-12)
    assert_allclose(auc(1 - labels, scores, weights=weights), 1 - found, atol=1e-12)


def test_auc_stays_exact_where_scores_are_huge_or_nearly_equal():
    assert auc([0, 1], [-1.7e308, 1.7e308]) == 1.0
    assert auc([0, 1], [0.0, 5e-324]) == 1.0
    assert auc([0, 1], [0.0, -0.0]) == 0.5


def test_auc_of_many_tied_rows_is_exactly_one_half():
    labels = np.arange(300_000) % 3 == 0
    assert auc(labels, np.zeros(300_000, dtype=np.float32)) == 0.5


@pytest.mark.parametrize("labels", [[], [1], [0, 0, 0]])
def test_auc_of_less_than_two_classes_is_undefined(labels):
    assert math.isnan(auc(labels, np.arange(len(labels))))
    assert math.isnan(grouped_auc(labels, np.arange(len(labels)), np.zeros(len(labels))))


def members(groups):
    return [np.flatnonzero(groups == group) for group in np.unique(groups)]


@few
@given(scored)
def test_grouped_auc_weights_each_groups_auc_by_its_rows(drawn):
    labels, scores, weights, groups = columns(drawn, 4)
    for given_weights in (None, weights):
        w = np.ones(len(labels)) if given_weights is None else weights
        parts = [(w[m].sum(), all_pairs_auc(labels[m], scores[m], w[m])) for m in members(groups)]
        known = [(mass, value) for mass, value in parts if not math.isnan(value)]
        expected = sum(m * v for m, v in known) / sum(m for m, _ in known) if known else math.nan
        assert_allclose(grouped_auc(labels, scores, groups, weights=given_weights), expected, rtol=1e-12)


@few
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 3), st.integers(0, 2)), max_size=25))
def test_grouped_auc_of_grades_is_the_share_of_pairs_in_the_right_order(drawn):
    grades, scores, weights, groups = columns(drawn, 4)
    total = mass = 0.0
    for m in members(groups):
        wins = pairs = 0.0
        for i, j in itertools.product(m, repeat=2):
            if grades[i] > grades[j]:
                pairs += weights[i] * weights[j]
                wins += weights[i] * weights[j] * ((scores[i] > scores[j]) + (scores[i] == scores[j]) / 2)
        if pairs:
            total, mass = total + weights[m].sum() * wins / pairs, mass + weights[m].sum()
    expected = total / mass if mass else math.nan
    assert_allclose(grouped_auc(grades, scores, groups, weights=weights), expected, rtol=1e-12)


def test_what_is_measured_of_grades_is_their_order():
    found = measure([0, 3, 1, 2], [0.1, 2.0, -1.0, 0.5], label_kind="grade", groups=[0, 0, 1, 1], k=3)
    assert found == {"rows": 4, "grouped_auc": 1.0, "ndcg@3": 1.0, "mrr": 1.0}
    assert badness(found, "ndcg@3") == 0.0 and badness({"logloss": 0.4}, "logloss") == 0.4
    assert badness({"mrr": None}, "mrr") == math.inf


def test_grouped_auc_of_one_group_is_the_auc():
    labels, scores = [0, 1, 0, 1, 1], [0.3, 0.2, 0.1, 0.9, 0.3]
    assert grouped_auc(labels, scores, ["all"] * 5) == auc(labels, scores)


def test_groups_are_left_out_where_they_have_one_class():
    labels, scores = [1, 0, 1, 1], [0.1, 0.9, 0.5, 0.6]
    assert grouped_auc(labels, scores, [4, 4, 9, 9]) == 0.0
    assert mrr([0, 1, 0], [0.9, 0.5, 0.1], [1, 1, 2]) == 0.5
    assert math.isnan(ndcg([0, 0], [0.9, 0.5], [1, 2], k=3))
    assert math.isnan(mrr([], [], []))


def orders(scores):
    """Every order by falling score, ties in all ways."""
    for order in itertools.permutations(range(len(scores))):
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order)):
            yield order


def dcg_of(labels, k):
    return sum((2**label - 1) / math.log2(rank + 1) for rank, label in enumerate(labels[:k], start=1))


def reciprocal_rank(labels):
    return 1 / (1 + next(i for i, label in enumerate(labels) if label > 0))


def mean_over_groups(labels, scores, groups, of_order, weights=None):
    weights = np.ones(len(labels)) if weights is None else weights
    labels, scores, groups, weights = (column[weights > 0] for column in (labels, scores, groups, weights))
    values, counts = [], []
    for m in members(groups):
        if labels[m].any():
            found = [of_order([labels[m][i] for i in order]) for order in orders(scores[m])]
            values.append(sum(found) / len(found))
            counts.append(sum(weights[m]) / len(m))
    return sum(v * c for v, c in zip(values, counts, strict=True)) / sum(counts) if values else math.nan


@few
@given(graded, st.integers(1, 6))
def test_ndcg_is_the_mean_over_all_orders_of_tied_rows(drawn, k):
    labels, scores, groups = columns(drawn[:7], 3)
    expected = mean_over_groups(
        labels, scores, groups, lambda ordered: dcg_of(ordered, k) / dcg_of(sorted(ordered, reverse=True), k)
    )
    assert_allclose(ndcg(labels, scores, groups, k=k), expected, rtol=1e-12)


@few
@given(graded)
def test_mrr_is_the_mean_over_all_orders_of_tied_rows(drawn):
    labels, scores, groups = columns(drawn[:7], 3)
    assert_allclose(mrr(labels, scores, groups), mean_over_groups(labels, scores, groups, reciprocal_rank), rtol=1e-12)


@few
@given(st.lists(st.tuples(*[st.integers(0, 2)] * 4), min_size=1, max_size=7))
def test_ndcg_and_mrr_count_groups_by_the_mean_weight_of_their_rows(drawn):
    labels, scores, groups, weights = columns(drawn, 4)
    weights /= 2
    expected = mean_over_groups(
        labels, scores, groups, lambda ordered: dcg_of(ordered, 2) / dcg_of(sorted(ordered, reverse=True), 2), weights
    )
    assert_allclose(ndcg(labels, scores, groups, k=2, weights=weights), expected, rtol=1e-12)
    expected = mean_over_groups(labels, scores, groups, reciprocal_rank, weights)
    assert_allclose(mrr(labels, scores, groups, weights=weights), expected, rtol=1e-12)


def test_every_metric_of_a_report_counts_weights():
    random = np.random.default_rng(0)
    labels, logits, weights = random.integers(0, 2, 60), random.normal(size=60), random.uniform(0.1, 3, 60)
    groups = random.integers(0, 12, 60)
    plain = measure(labels, logits, groups=groups)
    weighted = measure(labels, logits, groups=groups, weights=weights)
    assert [name for name in plain if plain[name] == weighted[name]] == ["rows"]
    assert measure(labels, logits, groups=groups, weights=np.full(60, 7.0)) == pytest.approx(plain)


@few
@given(graded, st.randoms(use_true_random=False))
def test_grouped_metrics_do_not_depend_on_the_order_of_rows_or_the_names_of_groups(drawn, random):
    labels, scores, groups = columns(drawn, 3)
    order = list(range(len(labels)))
    random.shuffle(order)
    names = np.array(["c", "a", "b"])[groups.astype(int)]
    shuffled = labels[order], scores[order], names[order]
    assert_allclose(mrr(*shuffled), mrr(labels, scores, groups), rtol=1e-12)
    assert_allclose(ndcg(*shuffled, k=2), ndcg(labels, scores, groups, k=2), rtol=1e-12)


def test_ranking_by_hand():
    labels, scores, groups = [0, 0, 1, 1, 0], [3, 2, 1, 5, 4], ["a", "a", "a", "b", "b"]
    assert mrr(labels, scores, groups) == pytest.approx((1 / 3 + 1) / 2)
    assert ndcg(labels, scores, groups, k=10) == pytest.approx((1 / math.log2(4) + 1) / 2)
    assert ndcg(labels, scores, groups, k=2) == pytest.approx(1 / 2)
    graded = ndcg([1, 3], [0.9, 0.1], [0, 0], k=10)
    assert graded == pytest.approx((1 + 7 / math.log2(3)) / (7 + 1 / math.log2(3)))


def test_mrr_of_many_tied_rows_stays_accurate():
    # one positive among m tied rows stands at each rank equally often: the harmonic number over m
    m = 100_000
    labels = np.zeros(m)
    labels[17] = 1
    assert mrr(labels, np.zeros(m), np.zeros(m)) == pytest.approx((1 / np.arange(1, m + 1)).sum() / m, rel=1e-9)


def test_grades_and_cutoffs_out_of_range_are_refused():
    with pytest.raises(DataError, match="k must be at least 1; got 0"):
        ndcg([1, 0], [0.1, 0.2], [0, 0], k=0)
    with pytest.raises(DataError, match="Grades must be from 0 to 50; got -1 in row 0"):
        ndcg([-1, 0], [0.1, 0.2], [0, 0], k=1)
    with pytest.raises(DataError, match=r"Groups must have the shape \(2,\)"):
        mrr([1, 0], [0.1, 0.2], [0])

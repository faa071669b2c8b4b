"""Curves over all thresholds, against scikit-learn and against counting."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import precision_recall_curve, roc_curve

from crossrank.evaluation.metrics import auc, sigmoid
from crossrank.evaluation.thresholds import SHARES, lift, pass_rows, precision_recall, roc, thresholds


@pytest.fixture(scope="module")
def scored():
    """Labels, scores with many ties, weights."""
    random = np.random.default_rng(0)
    logits = random.normal(-1, 1.5, 5000).round(1)
    return (random.random(5000) < sigmoid(logits)).astype(float), logits, random.choice([0.5, 1.0, 3.0], 5000)


def all_among(points, others) -> bool:
    """Whether each point of a thinned curve is one of another curve, given as two columns each."""
    apart = [np.subtract.outer(mine, theirs) for mine, theirs in zip(map(np.array, points), others, strict=True)]
    return np.hypot(*apart).min(axis=1).max() < 1e-5


def test_the_area_under_the_roc_is_the_auc(scored) -> None:
    labels, logits, weights = scored
    found = roc(pass_rows(*scored))
    assert np.trapezoid(found["true"], found["false"]) == pytest.approx(auc(labels, logits, weights=weights), abs=1e-3)
    assert (found["false"][0], found["true"][0]) == (0, 0)
    assert (found["false"][-1], found["true"][-1]) == (1, 1)


def test_the_points_of_the_roc_and_of_precision_and_recall_are_scikit_learns(scored) -> None:
    labels, logits, weights = scored
    false, true, _ = roc_curve(labels, logits, sample_weight=weights, drop_intermediate=False)
    found = roc(pass_rows(*scored))
    assert len(found["true"]) > 50
    assert all_among((found["false"], found["true"]), (false, true))
    precision, recall, _ = precision_recall_curve(labels, logits, sample_weight=weights)
    found = precision_recall(pass_rows(*scored))
    assert len(found["recall"]) > 50
    assert all_among((found["recall"], found["precision"]), (recall, precision))


def test_lift_is_precision_over_the_share_of_positives(scored) -> None:
    labels, logits, weights = scored
    found = lift(pass_rows(*scored))
    order = np.argsort(-logits, kind="stable")
    rate = np.average(labels, weights=weights)
    reached = np.cumsum(weights[order]) / weights.sum()
    for share, value in zip(found["share"], found["lift"], strict=True):
        first = order[: np.searchsorted(reached, share - 1e-6) + 1]
        passed = logits >= logits[first].min()
        assert value == pytest.approx(np.average(labels[passed], weights=weights[passed]) / rate, rel=1e-4)
    assert (found["share"][-1], found["lift"][-1]) == (1, 1)


def test_a_threshold_is_counted(scored) -> None:
    labels, logits, weights = scored
    found = thresholds(pass_rows(*scored))
    assert 8 <= len(found) <= 11
    for row in found:
        passed = sigmoid(logits) >= row["threshold"] - 1e-12
        hits = weights[passed] @ labels[passed]
        precision, recall = hits / weights[passed].sum(), hits / (weights @ labels)
        assert row["share"] == pytest.approx(weights[passed].sum() / weights.sum())
        assert (row["precision"], row["recall"]) == pytest.approx((precision, recall))
        assert row["f1"] == pytest.approx(2 * precision * recall / (precision + recall))
    assert [row["threshold"] for row in found] == sorted((row["threshold"] for row in found), reverse=True)
    assert (found[-1]["share"], found[-1]["recall"]) == (1, 1)


def test_curves_of_many_scores_are_thinned() -> None:
    random = np.random.default_rng(0)
    labels, scores = (random.random(20_000) < 0.3).astype(float), random.normal(size=20_000)
    passed = pass_rows(labels, scores, np.ones(20_000))
    found = roc(passed, points=50)
    assert 45 <= len(found["true"]) <= 51
    assert np.trapezoid(found["true"], found["false"]) == pytest.approx(auc(labels, scores), abs=2e-3)
    assert len(precision_recall(passed)["recall"]) <= 201
    assert [row["share"] for row in thresholds(passed)][:3] == [0.01, 0.02, 0.05]


@pytest.mark.parametrize("labels", [[], [1.0, 1.0], [0.0]])
def test_one_class_has_no_curves(labels) -> None:
    passed = pass_rows(np.array(labels), np.zeros(len(labels)), np.ones(len(labels)))
    assert roc(passed) == {"false": [], "true": []}
    assert precision_recall(passed) == {"recall": [], "precision": []}
    assert lift(passed) == {"share": [], "lift": []}
    assert thresholds(passed) == []


def test_the_shares_that_a_table_shows_rise_to_all_rows() -> None:
    assert (np.diff([0.0, *SHARES]) > 0).all() and SHARES[-1] == 1

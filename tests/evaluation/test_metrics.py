"""Metrics of probabilities and numbers, against slow definitions and numbers one can compute by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from crossrank.errors import DataError
from crossrank.evaluation.metrics import (
    auc,
    calibration_ratio,
    expected_calibration_error,
    log_loss,
    measure,
    normalized_entropy,
    r2,
    rmse,
    sigmoid,
)

few = settings(max_examples=60, deadline=None)
rows = st.lists(
    st.tuples(st.integers(0, 1), st.integers(-6, 6).map(lambda n: n / 2), st.integers(0, 3)), min_size=1, max_size=30
)


def columns(drawn):
    labels, logits, weights = (np.array(column, dtype=np.float64) for column in zip(*drawn, strict=True))
    return labels, logits, weights


def plain_log_loss(labels, logits):
    chances = [1 / (1 + math.exp(-logit)) for logit in logits]
    return -sum(math.log(p if y else 1 - p) for y, p in zip(labels, chances, strict=True)) / len(labels)


@few
@given(rows)
def test_log_loss_is_the_mean_negative_log_probability(drawn):
    labels, logits, _ = columns(drawn)
    assert_allclose(log_loss(labels, logits), plain_log_loss(labels, logits), rtol=1e-12)


def test_log_loss_keeps_what_probabilities_would_round_away():
    assert log_loss([0, 0], [1000.0, 0.0]) == pytest.approx((1000 + math.log(2)) / 2, rel=1e-15)
    assert log_loss([1], [40.0]) == pytest.approx(math.exp(-40), rel=1e-12)  # 1 - p is below float64's resolution at 1


def test_log_loss_of_single_precision_logits_is_summed_in_double_precision():
    logits = np.full(100_000, 0.1, dtype=np.float32)
    expected = math.log1p(math.exp(float(np.float32(0.1))))
    assert log_loss(np.zeros(100_000, dtype=np.float32), logits) == pytest.approx(expected, rel=1e-12)


@few
@given(rows)
def test_integer_weights_equal_repeated_rows(drawn):
    labels, logits, weights = columns(drawn)
    again = np.repeat(np.arange(len(labels)), weights.astype(int))
    weighted = measure(labels, logits, weights=weights)
    repeated = measure(labels[again], logits[again])
    for name in weighted.keys() - {"rows"}:
        expected = repeated[name]
        assert weighted[name] == (expected if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-12)), name
    for metric in (rmse, r2):
        assert_allclose(metric(labels, logits, weights=weights), metric(labels[again], logits[again]), rtol=1e-9)


def test_normalized_entropy_of_the_base_rate_is_one_and_of_one_class_undefined():
    assert normalized_entropy([1, 0, 0, 0], np.full(4, math.log(1 / 3))) == pytest.approx(1.0)
    assert math.isnan(normalized_entropy([1, 1], [0.0, 1.0]))
    assert math.isnan(normalized_entropy([], []))


def test_calibration_ratio_is_predicted_over_observed():
    assert calibration_ratio([1, 0, 1, 0], [0.9, 0.3, 0.6, 0.2]) == pytest.approx(1.0)
    assert calibration_ratio([1, 0], [0.5, 0.5], weights=[1, 3]) == pytest.approx(2.0)
    assert math.isnan(calibration_ratio([0, 0], [0.5, 0.5]))


def test_calibration_error_compares_bins_of_equally_many_rows():
    labels = [0, 0, 1, 0, 1, 1]
    probabilities = [0.1, 0.2, 0.3, 0.4, 0.8, 0.9]
    # two bins of three rows: |0.6 - 1| and |2.1 - 2|
    assert expected_calibration_error(labels, probabilities, bins=2) == pytest.approx((0.4 + 0.1) / 6)
    assert expected_calibration_error(labels, probabilities, bins=1) == pytest.approx(abs(2.7 - 3) / 6)
    # a bin for each row
    assert expected_calibration_error(labels, probabilities, bins=6) == pytest.approx((0.1 + 0.2 + 0.7 + 0.4 + 0.3) / 6)


def slow_calibration_error(labels, probabilities, bins):
    bin_gaps = dict.fromkeys(range(bins), 0.0)
    for p in sorted(set(probabilities)):
        members = [y for y, q in zip(labels, probabilities, strict=True) if q == p]
        below = sum(q < p for q in probabilities)
        middle = (below + len(members) / 2) / len(labels)
        bin_gaps[min(int(middle * bins), bins - 1)] += sum(p - y for y in members)
    return sum(map(abs, bin_gaps.values())) / len(labels)


@few
@given(rows, st.sampled_from([1, 2, 4, 8, 16]), st.randoms(use_true_random=False))
def test_calibration_error_does_not_depend_on_the_order_of_rows(drawn, bins, random):
    labels, logits, _ = columns(drawn)
    probabilities = sigmoid(logits)
    found = expected_calibration_error(labels, probabilities, bins=bins)
    order = list(range(len(labels)))
    random.shuffle(order)
    assert_allclose(expected_calibration_error(labels[order], probabilities[order], bins=bins), found, atol=1e-12)
    assert_allclose(slow_calibration_error(labels, probabilities, bins), found, atol=1e-12)


def test_a_model_that_knows_its_own_chances_is_calibrated():
    random = np.random.default_rng(0)
    logits = random.normal(size=100_000)
    labels = random.random(100_000) < sigmoid(logits)
    assert calibration_ratio(labels, sigmoid(logits)) == pytest.approx(1, abs=0.02)
    assert expected_calibration_error(labels, sigmoid(logits)) < 0.01
    assert expected_calibration_error(labels, sigmoid(logits + 1)) > 0.1


def test_errors_of_numbers_by_hand():
    assert rmse([0.0, 0.0], [3.0, 4.0]) == pytest.approx(math.sqrt(12.5))
    assert rmse([0.0, 0.0], [3.0, 4.0], weights=[1, 0]) == pytest.approx(3.0)
    assert r2([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]) == pytest.approx(0.0)
    assert r2([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 1.0
    assert math.isnan(r2([0.1, 0.1, 0.1], [1.0, 3.0, 2.0]))
    assert math.isnan(r2([0.1, 0.1, 0.1, 5.0], [1.0, 3.0, 2.0, 1.0], weights=[1, 1, 1, 0]))
    assert math.isnan(rmse([], []))


def test_measure_names_every_metric_in_order():
    found = measure([1, 0, 1, 0], [2.0, -1.0, 0.5, 1.0], groups=[7, 7, 8, 8], k=5)
    assert list(found) == [
        "rows",
        "positive_rate",
        "logloss",
        "auc",
        "calibration",
        "ece",
        "normalized_entropy",
        "grouped_auc",
        "ndcg@5",
        "mrr",
    ]
    assert found["rows"] == 4
    assert found["grouped_auc"] == pytest.approx(0.5)
    assert found["mrr"] == pytest.approx(0.75)
    assert "mrr" not in measure([1, 0], [0.0, 0.0])


def test_measure_of_a_real_label_has_no_classes():
    assert measure([1.0, 2.5], [1.0, 2.0], label_kind="real") == {
        "rows": 2,
        "rmse": pytest.approx(math.sqrt(0.125)),
        "r2": pytest.approx(1 - 0.25 / 1.125),
    }


@pytest.mark.parametrize("labels", [[], [1], [0], [1, 1], [0, 0]])
def test_measure_writes_none_where_rows_define_nothing(labels):
    found = measure(labels, np.zeros(len(labels)), groups=np.zeros(len(labels), dtype=np.uint32))
    assert found["rows"] == len(labels)
    assert found["auc"] is None and found["grouped_auc"] is None and found["normalized_entropy"] is None
    assert (found["logloss"] is None) == (not labels)
    assert (found["mrr"] is None) == (1 not in labels)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("labels", "logits", "options", "message"),
    [
        ([0, 1], [0.0], {}, r"Labels must have the shape \(1,\), as the scores have; got \(2,\)"),
        ([[0], [1]], [[0.0], [1.0]], {}, r"Scores must have the shape \(rows,\); got \(2, 1\)"),
        ([0, 1, 1], [0.0, math.nan, math.nan], {}, "Scores must be finite; got nan in row 1 and 1 more like it"),
        ([0, 1], [0.0, math.inf], {}, "Scores must be finite; got inf in row 1"),
        ([0, 2], [0.0, 0.0], {}, "Labels must be 0 or 1; got 2 in row 1"),
        ([0, 1], [0.0, 0.0], {"weights": [1, -1]}, "Weights must not be negative; got -1 in row 1"),
        ([0, 1], [0.0, 0.0], {"weights": [1]}, r"Weights must have the shape \(2,\)"),
        ([0, 1], [0.0, 0.0], {"groups": [1]}, r"Groups must have the shape \(2,\)"),
        (["no", "yes"], [0.0, 0.0], {}, "Labels must be numbers"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_its_place(labels, logits, options, message):
    with pytest.raises(DataError, match=message):
        measure(labels, logits, **options)


def test_logits_given_as_probabilities_are_refused():
    with pytest.raises(DataError, match="from 0 to 1; got -2 to 3") as caught:
        calibration_ratio([0, 1], [-2.0, 3.0])
    assert "sigmoid" in caught.value.hint
    with pytest.raises(DataError, match="bins must be at least 1"):
        expected_calibration_error([0, 1], [0.5, 0.5], bins=0)


@pytest.mark.parametrize("metric", [log_loss, normalized_entropy, auc, calibration_ratio, expected_calibration_error])
def test_each_metric_of_a_binary_label_refuses_others(metric):
    with pytest.raises(DataError, match="Labels must be 0 or 1; got 2 in row 1"):
        metric([0, 2], [0.5, 0.5])


@pytest.mark.parametrize("chances", [[0.5, 1.5], [-0.5, 0.5], [-0.5, 1.5]])
@pytest.mark.parametrize("metric", [calibration_ratio, expected_calibration_error])
def test_what_is_no_probability_is_refused(metric, chances):
    with pytest.raises(DataError, match="Probabilities must be from 0 to 1"):
        metric([0, 1], chances)

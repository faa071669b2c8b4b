"""Isotonic regression, against its max-min formula."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from crossrank.evaluation.metrics import sigmoid
from crossrank.evaluation.monotone import fit_monotone


@pytest.mark.parametrize("seed", range(5))
def test_the_steps_are_those_of_the_max_min_formula(seed) -> None:
    draw = np.random.default_rng(seed)
    scores, labels = np.arange(12.0), draw.integers(0, 4, 12).astype(float)
    weights = draw.uniform(0.5, 2.0, 12)

    def mean(a, b):
        return np.average(labels[a : b + 1], weights=weights[a : b + 1])

    expected = [max(min(mean(a, b) for b in range(i, 12)) for a in range(i + 1)) for i in range(12)]
    found = fit_monotone(labels, scores, weights=weights)
    levels, first = np.unique(np.round(expected, 12), return_index=True)
    assert_allclose(found["answers"], levels, rtol=1e-9)
    runs = np.split(np.arange(12), first[1:])
    assert_allclose(found["scores"], [np.average(scores[r], weights=weights[r]) for r in runs])


def test_probabilities_are_found_again_from_a_stretched_score() -> None:
    draw = np.random.default_rng(0)
    logits = draw.normal(size=50_000)
    labels = draw.random(50_000) < sigmoid(logits)
    found = fit_monotone(labels, 7 * logits + 3)
    answers = np.interp([3 - 7.0, 3.0, 3 + 7.0], found["scores"], found["answers"])
    assert_allclose(answers, sigmoid([-1.0, 0.0, 1.0]), atol=0.02)


def test_equal_scores_and_rows_of_no_weight() -> None:
    assert fit_monotone([0, 1, 1], [2.0, 2.0, 2.0]) == {"scores": [2.0], "answers": [pytest.approx(2 / 3)]}
    assert fit_monotone([1.0], [0.0], weights=[0.0]) == {"scores": [], "answers": []}
    assert fit_monotone([5, 0, 1], [0.0, 1.0, 2.0], weights=[0, 1, 1]) == {"scores": [1.0, 2.0], "answers": [0.0, 1.0]}

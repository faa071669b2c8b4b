"""How far a metric may be off by the chance of which rows were measured: intervals that hold it in 95% of samples.

Each metric is a mean over rows, or a smooth function of means, so that it is nearly normal over samples of rows. With
h_i how far row i draws the metric and w_i its weight, its standard error is ``sqrt(Σ w_i² h_i²) / Σ w_i``:

| metric  | h_i                                                                                                    |
| ------- | ------------------------------------------------------------------------------------------------------ |
| logloss | the row's loss, less the mean                                                                          |
| rmse    | the row's squared error, less the mean; the interval of the mean square, and the root of its ends      |
| r2      | ``-(e_i² - E e²) / V + (E e² / V²) ((y_i - E y)² - V)``, V the variance of the labels (delta method)   |
| auc     | the share of the other class on the right side of the row, less the AUC, for each class apart (DeLong) |
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossrank.evaluation.grouped import Floats, Rows, read_rows, weighted_mean
from crossrank.evaluation.metrics import row_losses
from crossrank.schema import LabelKind

NORMAL = 1.959964  # 95% of a normal variable lie within so many deviations


def measure_intervals(
    labels: ArrayLike, logits: ArrayLike, *, label_kind: LabelKind = "binary", weights: ArrayLike | None = None
) -> dict[str, list[float]]:
    """The 95% intervals of log loss and AUC, or of RMSE and R² for a number; none where the rows do not define one.

    Args:
        labels, logits, label_kind, weights: as in :func:`crossrank.evaluation.metrics.measure`.

    Example:
        >>> measure_intervals([1, 0] * 50, [0.0, 0.0] * 50)["auc"]
        [0.5, 0.5]
    """
    if label_kind in ("classes", "grade", "tasks"):
        return {}
    rows = read_rows(labels, logits, weights, binary=label_kind == "binary")
    rows = Rows(*(column[rows.weights > 0] for column in rows))
    if len(rows.labels) < 2:
        return {}
    found = _of_numbers(rows) if label_kind == "real" else _of_classes(rows)
    return {name: [float(low), float(high)] for name, (low, high) in found.items()}


def mean_and_error(values: Floats, weights: ArrayLike | None) -> tuple[float, float]:
    """A weighted mean and its standard error.

    >>> import numpy as np
    >>> mean_and_error(np.array([1.0, 3.0]), None)  # the deviation over the root of two
    (2.0, 1.0)
    """
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, np.float64)
    mean, count = weighted_mean(values, weights), np.count_nonzero(weights)
    spread = np.square(weights * (values - mean)).sum() * count / max(count - 1, 1)
    return mean, math.sqrt(spread) / float(weights.sum())


def _of_classes(rows: Rows) -> dict[str, tuple[float, float]]:
    losses = row_losses(rows.labels, rows.scores, "binary")
    found = {"logloss": _around(*mean_and_error(losses, rows.weights))}
    positive = rows.labels == 1
    if 2 <= positive.sum() <= len(positive) - 2:
        found["auc"] = _of_auc(rows, positive)
    return {name: (max(low, 0.0), min(high, 1.0) if name == "auc" else high) for name, (low, high) in found.items()}


def _of_auc(rows: Rows, positive: NDArray[np.bool_]) -> tuple[float, float]:
    classes = [Rows(*(column[part] for column in rows)) for part in (positive, ~positive)]
    above = _share_below(classes[0].scores, classes[1])  # of each positive: the negatives below it
    below = 1 - _share_below(classes[1].scores, classes[0])  # of each negative: the positives above it
    (auc, error), (_, other) = (
        mean_and_error(shares, part.weights) for shares, part in zip((above, below), classes, strict=True)
    )
    return _around(auc, math.hypot(error, other))


def _share_below(scores: Floats, others: Rows) -> Floats:
    """For each score the share of the others, by weight, that lie below it; ties count half."""
    order = np.argsort(others.scores)
    mass = np.append(0.0, np.cumsum(others.weights[order]))
    sides = (mass[np.searchsorted(others.scores[order], scores, side)] for side in ("left", "right"))
    shares: Floats = sum(sides) / (2 * mass[-1])
    return shares


def _of_numbers(rows: Rows) -> dict[str, tuple[float, float]]:
    squares = (rows.scores - rows.labels) ** 2
    mean, error = mean_and_error(squares, rows.weights)
    low, high = _around(mean, error)
    found = {"rmse": (math.sqrt(max(low, 0.0)), math.sqrt(high))}
    spread = (rows.labels - weighted_mean(rows.labels, rows.weights)) ** 2
    variance = weighted_mean(spread, rows.weights)
    if len(np.unique(rows.labels)) > 1:
        moved = (mean * spread / variance - squares) / variance  # (N,), its mean is 0
        low, high = _around(1 - mean / variance, mean_and_error(moved, rows.weights)[1])
        found["r2"] = (low, min(high, 1.0))
    return found


def _around(value: float, error: float) -> tuple[float, float]:
    return value - NORMAL * error, value + NORMAL * error

"""How good predictions are: of probabilities, of their order, of their calibration, and of numbers.

Each metric is a plain function of columns, one entry per row, computed in float64. A metric that the rows do not
define, such as the AUC of one class only, is nan; :func:`measure` gathers them all and writes None there, as JSON
has no nan.

| metric                       | reads         | best | undefined (nan)                          |
| ---------------------------- | ------------- | ---- | ---------------------------------------- |
| log_loss                     | logits        | 0    | no rows                                  |
| normalized_entropy           | logits        | 0    | one class only                           |
| auc, grouped_auc             | scores        | 1    | one class only (in every group)          |
| ndcg, mrr                    | scores        | 1    | no positive row                          |
| calibration_ratio            | probabilities | 1    | no positive row                          |
| expected_calibration_error   | probabilities | 0    | no rows                                  |
| rmse                         | numbers       | 0    | no rows                                  |
| r2                           | numbers       | 1    | labels all equal                         |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from crossrank.errors import DataError
from crossrank.evaluation.classes import class_losses, measure_classes
from crossrank.evaluation.grouped import Floats, Rows, auc, grouped_auc, mrr, ndcg, read_rows, weighted_mean
from crossrank.schema import LabelKind

__all__ = [
    "CRITERIA",
    "Measures",
    "auc",
    "badness",
    "calibration_ratio",
    "expected_calibration_error",
    "grouped_auc",
    "log_loss",
    "measure",
    "mrr",
    "ndcg",
    "normalized_entropy",
    "r2",
    "rmse",
    "sigmoid",
]

# What decides which weights are the best
CRITERIA: dict[LabelKind, str] = {
    "binary": "logloss", "classes": "logloss", "tasks": "logloss", "real": "rmse", "grade": "ndcg@10"
}  # fmt: skip
TASK_METRICS = ("positive_rate", "logloss", "auc", "calibration", "normalized_entropy")  # of each task
MEANS = ("logloss", "auc", "normalized_entropy")  # over tasks
FALLING = ("logloss", "rmse")  # the lower the better; of the others 1 is best

Measures: TypeAlias = dict[str, float | int | None]


def badness(measured: Mapping[str, Any], criterion: str) -> float:
    """What the best weights have least of: a falling metric, or 1 less a rising one; infinite where it is undefined.

    >>> badness({"mrr": 0.75}, "mrr")
    0.25
    """
    value = measured[criterion]
    if value is None:
        return math.inf
    return float(value if criterion in FALLING else 1 - value)


def sigmoid(logits: ArrayLike) -> Floats:
    """``1 / (1 + exp(-x))`` in float64, accurate for small probabilities and never overflowing.

    >>> sigmoid([-1000.0, 0.0]).tolist()
    [0.0, 0.5]
    """
    return np.exp(-np.logaddexp(0, -np.asarray(logits, dtype=np.float64)))


def row_losses(labels: Floats, logits: Floats, kind: LabelKind) -> Floats:
    """The loss of each row: ``-log p(label)``, or of a number the squared error: (N,), (N,) or (N, K) -> (N,)."""
    if kind == "classes":
        return class_losses(labels, logits)
    return np.logaddexp(0, (1 - 2 * labels) * logits) if kind == "binary" else (logits - labels) ** 2


def log_loss(labels: ArrayLike, logits: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """The mean of ``-log p(label)``: ``log(1 + exp(-x))`` for a positive row, ``log(1 + exp(x))`` for a negative one.

    Taken from the logits x, so that no probability is ever rounded to 0 or 1 or clipped away from them.

    >>> round(log_loss([1, 0], [0.0, 0.0]), 4)  # log 2
    0.6931
    >>> log_loss([0], [1000.0])
    1000.0
    """
    rows = read_rows(labels, logits, weights)
    return weighted_mean(row_losses(rows.labels, rows.scores, "binary"), rows.weights)


def normalized_entropy(labels: ArrayLike, logits: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """The log loss divided by that of always predicting the share of positives: below 1 is better than knowing nothing.

    >>> normalized_entropy([1, 0], [0.0, 0.0])
    1.0
    """
    rows = read_rows(labels, logits, weights)
    rate = weighted_mean(rows.labels, rows.weights)
    if not 0 < rate < 1:
        return math.nan
    entropy = -rate * math.log(rate) - (1 - rate) * math.log1p(-rate)
    return log_loss(labels, logits, weights=weights) / entropy


def calibration_ratio(labels: ArrayLike, probabilities: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """The sum of predicted probabilities over the number of positives: above 1 promises too many.

    >>> calibration_ratio([1, 0, 0], [0.5, 0.5, 0.5])
    1.5
    """
    rows = _read_probabilities(labels, probabilities, weights)
    observed = (rows.weights * rows.labels).sum()
    return float((rows.weights * rows.scores).sum() / observed) if observed > 0 else math.nan


def expected_calibration_error(
    labels: ArrayLike, probabilities: ArrayLike, *, bins: int = 15, weights: ArrayLike | None = None
) -> float:
    """How far predicted and observed shares of positives lie apart, in bins of equally many rows.

    ``sum_b |sum_{i in b} w_i (p_i - y_i)| / sum_i w_i``. Rows sorted by probability are cut into bins of equal weight;
    rows of one probability stay together, in the bin where their middle falls, so the order of rows does not matter.

    >>> expected_calibration_error([1, 0, 1, 1], [0.5, 0.5, 0.75, 0.75])
    0.125
    """
    if bins < 1:
        raise DataError(f"bins must be at least 1; got {bins}.")
    rows = _read_probabilities(labels, probabilities, weights)
    values, which = np.unique(rows.scores, return_inverse=True)  # (V,), (N,)
    mass = np.bincount(which, rows.weights, len(values))
    gap = np.bincount(which, rows.weights * (rows.scores - rows.labels), len(values))
    total = mass.sum()
    if not total > 0:
        return math.nan
    middle = (np.cumsum(mass) - mass / 2) / total  # (V,)
    bin_ids = np.minimum((middle * bins).astype(np.intp), bins - 1)
    return float(np.abs(np.bincount(bin_ids, gap)).sum() / total)


def rmse(labels: ArrayLike, predictions: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """The root of the mean squared error.

    >>> rmse([1.0, 2.0], [4.0, 6.0])  # the root of (9 + 16) / 2
    3.5355339059327378
    """
    rows = read_rows(labels, predictions, weights, binary=False)
    return math.sqrt(weighted_mean((rows.scores - rows.labels) ** 2, rows.weights))


def r2(labels: ArrayLike, predictions: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """The share of the labels' variance that is explained: ``1 - sum (p - y)^2 / sum (y - mean y)^2``.

    >>> r2([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])
    0.5
    """
    rows = read_rows(labels, predictions, weights, binary=False)
    if len(np.unique(rows.labels[rows.weights > 0])) < 2:  # the variance itself may miss zero by a rounding
        return math.nan
    variance = weighted_mean((rows.labels - weighted_mean(rows.labels, rows.weights)) ** 2, rows.weights)
    return 1 - weighted_mean((rows.scores - rows.labels) ** 2, rows.weights) / variance


def measure(
    labels: ArrayLike,
    logits: ArrayLike,
    *,
    label_kind: LabelKind = "binary",
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    k: int = 10,
    tasks: Sequence[str] = (),
) -> Measures:
    """Every metric that fits the label, by the name it has in reports; None where the rows do not define it.

    Args:
        labels: 0 or 1, numbers where ``label_kind`` is ``"real"``, positions where it is ``"classes"``, grades where it
            is ``"grade"``. Shape: (N,); (N, K) for ``"tasks"``, nan where one is not known.
        logits: what the model returned: log-odds, or predicted numbers for ``"real"``. Shape: (N,); (N, K) for classes
            and tasks.
        label_kind: as in the schema.
        weights: how many rows each row stands for. Shape: (N,).
        groups: for grouped AUC, NDCG and MRR of a binary label or a grade; those three are absent without it. Shape:
            (N,).
        k: how many rows of each group NDCG looks at.
        tasks: their names. ``logloss``, ``auc`` and ``normalized_entropy`` are then means over the tasks that define
            them, and each task has its own, as in ``auc_like``, of the rows in which it is known.

    Raises:
        DataError: for columns of different lengths, a number that is not finite, or a label that does not fit its kind.

    Example:
        >>> found = measure([1, 0, 1, 0], [2.0, -1.0, 0.5, 1.0])
        >>> found["rows"], found["positive_rate"], found["auc"]
        (4, 0.5, 0.75)
    """
    if label_kind == "classes":
        return _defined(len(np.asarray(labels)), measure_classes(labels, logits, weights=weights))
    if label_kind == "tasks":
        return _measure_tasks(np.asarray(labels), np.asarray(logits), weights, tasks)
    rows = read_rows(labels, logits, weights, binary=label_kind == "binary")
    if label_kind == "real":
        found = {"rmse": rmse(labels, logits, weights=weights), "r2": r2(labels, logits, weights=weights)}
    elif label_kind == "grade":
        found = {}
    else:
        probabilities = sigmoid(rows.scores)
        found = {
            "positive_rate": weighted_mean(rows.labels, rows.weights),
            "logloss": log_loss(labels, logits, weights=weights),
            "auc": auc(labels, logits, weights=weights),
            "calibration": calibration_ratio(labels, probabilities, weights=weights),
            "ece": expected_calibration_error(labels, probabilities, weights=weights),
            "normalized_entropy": normalized_entropy(labels, logits, weights=weights),
        }
    if groups is not None and label_kind != "real":
        found |= {
            "grouped_auc": grouped_auc(labels, logits, groups, weights=weights),
            f"ndcg@{k}": ndcg(labels, logits, groups, k=k, weights=weights),
            "mrr": mrr(labels, logits, groups, weights=weights),
        }
    return _defined(len(rows.scores), found)


def task_loss(labels: Floats, logits: Floats, weights: Floats) -> float:
    """The mean over tasks of the log loss of the rows in which each is known: (N, K), (N, K), (N,) -> ()."""
    each = [(column, known) for column, known in enumerate(~np.isnan(labels).T) if known.any()]
    return float(np.mean([log_loss(labels[known, k], logits[known, k], weights=weights[known]) for k, known in each]))


def _measure_tasks(labels: Floats, logits: Floats, weights: ArrayLike | None, tasks: Sequence[str]) -> Measures:
    if labels.shape != logits.shape or labels.shape[1:] != (len(tasks),):
        raise DataError(f"Labels and logits must be (rows, {len(tasks)}); got {labels.shape} and {logits.shape}.")
    weighs, own = np.ones(len(labels)) if weights is None else np.asarray(weights), Measures()
    for name, label, logit in zip(tasks, labels.T, logits.T, strict=True):
        known = ~np.isnan(label)
        found = measure(label[known], logit[known], weights=weighs[known])
        own |= {f"{key}_{name}": found[key] for key in ("rows", *TASK_METRICS)}
    means = Measures()
    for key in MEANS:
        values = [value for name in tasks if (value := own[f"{key}_{name}"]) is not None]
        means[key] = float(np.mean(values)) if values else None
    return {"rows": len(labels), **means, **own}


def _defined(rows: int, found: Mapping[str, float]) -> Measures:
    return {"rows": rows, **{name: value if math.isfinite(value) else None for name, value in found.items()}}


def _read_probabilities(labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None) -> Rows:
    rows = read_rows(labels, probabilities, weights)
    if len(rows.scores) and not (rows.scores.min() >= 0 and rows.scores.max() <= 1):
        raise DataError(
            f"Probabilities must be from 0 to 1; got {rows.scores.min():g} to {rows.scores.max():g}.",
            hint="Logits become probabilities by sigmoid.",
        )
    return rows

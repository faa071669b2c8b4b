"""Curves and breakdowns of a model's answers, a few kilobytes for any number of rows; rows count by their weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossrank.data import Encoder, Split
from crossrank.data.rows import SCORING_ROWS, EncodedRows
from crossrank.errors import ConfigError
from crossrank.evaluation.grouped import Floats, weighted_mean
from crossrank.evaluation.intervals import measure_intervals
from crossrank.evaluation.metrics import measure, sigmoid
from crossrank.evaluation.thresholds import lift, pass_rows, precision_recall, roc, short, thresholds
from crossrank.evaluation.values import MISSING, namer, number_text, raw_numbers
from crossrank.models import Model

CALIBRATION_BINS = 20
SCORE_BINS = 48
DRAWN_POINTS = 1000
MOST_ROWS = 200_000  # more would draw the same curves
GROUP_VALUES = 12  # values of a column that stand alone; the others are taken together
NUMBER_BINS = 8


def measure_curves(
    model: Model, rows: Split, encoder: Encoder, *, logits: NDArray[Any] | None = None
) -> dict[str, Any]:
    """What a report draws of a model's answers to rows with known labels.

    Args:
        model: with its final weights.
        rows: encoded.
        encoder: of the rows.
        logits: the model's answers to all rows, where they are known already.

    Returns:
        - ``rows``, at most 200,000 spread evenly, and ``kind`` of the label;
        - ``intervals``: of the metrics, from all rows whose answers are known; see :func:`measure_intervals`;
        - ``calibration``: mean answer, mean label and rows of bins of equal size;
        - ``scores``: the share of rows of each class in bins of the logit (for a number: of answers and labels);
        - for a binary label ``roc``, ``precision_recall`` and ``lift``, points of these curves, and ``thresholds``;
        - for a number ``predicted_actual``, of some rows, and ``residuals``, the label less the answer in bins;
        - ``groups``: metrics by value of each categorical column and by range of each numeric one.
    """
    kind = encoder.schema.label.kind
    if kind in ("classes", "grade", "tasks"):
        raise ConfigError(f"Curves are drawn of a binary label or a number; got the kind {kind}.")
    some = np.linspace(0, rows.num_rows - 1, min(rows.num_rows, MOST_ROWS)).astype(np.int64)
    if logits is None:
        parts = (some[first : first + SCORING_ROWS] for first in range(0, len(some), SCORING_ROWS))
        answered = _Answers.of(rows, model.predict_logits(rows.take(part).features for part in parts).numpy(), some)
        intervals = answered.intervals(kind)
    else:
        answered = _Answers.of(rows, logits[some], some)
        intervals = _Answers.of(rows, logits, slice(None)).intervals(kind)
    labels, logits, weights = answered.labels, answered.logits, answered.weights
    answers = sigmoid(logits) if kind == "binary" else logits
    return {
        "rows": len(labels),
        "kind": kind,
        "intervals": intervals,
        "calibration": calibration(labels, answers, weights),
        **(_of_classes if kind == "binary" else _of_numbers)(answered),
        "groups": dict(_by_value(rows, answered, encoder)),
    }


class _Answers(NamedTuple):
    """Rows that weigh anything: which of a split's, and the model's answers to them. Shape: (N,) each."""

    places: NDArray[np.int64]
    labels: Floats
    logits: Floats
    weights: Floats

    @classmethod
    def of(cls, rows: Split, logits: NDArray[Any], some: Any) -> _Answers:
        places = np.arange(rows.num_rows)[some]
        weights = np.ones(len(places)) if rows.weights is None else np.asarray(rows.weights[some], np.float64)
        labels = np.asarray(rows.labels[some], np.float64)
        there = weights > 0
        return cls(places[there], labels[there], logits[there].astype(np.float64), weights[there])

    def intervals(self, kind: Any) -> dict[str, list[float]]:
        return measure_intervals(self.labels, self.logits, label_kind=kind, weights=self.weights)


def _of_classes(rows: _Answers) -> dict[str, Any]:
    by_class = {name: rows.labels == label for name, label in (("negative", 0), ("positive", 1))}
    series = {name: (rows.logits[which], rows.weights[which]) for name, which in by_class.items()}
    passed = pass_rows(rows.labels, rows.logits, rows.weights)
    return {
        "scores": histogram(rows.logits, series),
        "roc": roc(passed),
        "precision_recall": precision_recall(passed),
        "lift": lift(passed),
        "thresholds": thresholds(passed),
    }


def _of_numbers(rows: _Answers) -> dict[str, Any]:
    few = np.linspace(0, len(rows.labels) - 1, min(len(rows.labels), DRAWN_POINTS)).astype(np.int64)
    residuals, both = rows.labels - rows.logits, np.concatenate([rows.logits, rows.labels])
    return {
        "scores": histogram(both, {"answers": (rows.logits, rows.weights), "labels": (rows.labels, rows.weights)}),
        "predicted_actual": {"predicted": short(rows.logits[few]), "actual": short(rows.labels[few])},
        "residuals": histogram(residuals, {"residuals": (residuals, rows.weights)}),
    }


def calibration(
    labels: Floats, answers: Floats, weights: Floats | None = None, *, bins: int = CALIBRATION_BINS
) -> dict[str, list[float]]:
    """Mean answer and mean label of rows sorted by answer and cut into bins of equally many.

    >>> import numpy as np
    >>> calibration(np.array([0.0, 1.0, 1.0, 1.0]), np.array([0.2, 0.4, 0.6, 0.8]), bins=2)["observed"]
    [0.5, 1.0]
    """
    weights = np.ones(len(labels)) if weights is None else weights
    parts = [part for part in np.array_split(np.argsort(answers, kind="stable"), bins) if len(part)]
    return {
        "predicted": short([weighted_mean(answers[part], weights[part]) for part in parts]),
        "observed": short([weighted_mean(labels[part], weights[part]) for part in parts]),
        "rows": [len(part) for part in parts],
    }


def histogram(
    values: Floats, series: dict[str, tuple[Floats, Floats]], *, bins: int = SCORE_BINS
) -> dict[str, list[float]]:
    """The share of each series, given as values and weights, in bins between the outer thousandths of all values; the
    rest counts at the ends.
    """
    low, high = np.quantile(values, [0.001, 0.999]) if len(values) else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    shares: dict[str, list[float]] = {"edges": short(edges)}
    for name, (part, weights) in series.items():
        counts, _ = np.histogram(part.clip(edges[0], edges[-1]), edges, weights=weights)
        shares[name] = short(counts / (weights.sum() or 1.0))
    return shares


def _by_value(rows: Split, answered: _Answers, encoder: Encoder) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    kind, weights = encoder.schema.label.kind, answered.weights
    for position, column in enumerate(encoder.schema.categorical):
        ids = np.asarray(rows.categorical[:, position])[answered.places]
        name = namer(encoder, column.name)
        yield column.name, group_metrics(ids, answered.labels, answered.logits, kind, name=name, weights=weights)
    numbers = raw_numbers(encoder, EncodedRows(rows.categorical[answered.places], rows.numeric[answered.places]))
    for number, values in zip(encoder.schema.numeric, numbers.T, strict=True):
        masks = [(text, 0, mask) for text, mask in number_ranges(values)]
        yield number.name, _metrics_of(masks, answered.labels, answered.logits, kind, weights)


def group_metrics(
    values: NDArray[Any],
    labels: Floats,
    logits: Floats,
    kind: Any,
    *,
    name: Callable[[Any], str] = str,
    weights: Floats | None = None,
) -> list[dict[str, Any]]:
    """Metrics of the rows of each frequent value, most frequent first, then of all others together.

    Args:
        values: texts, or ids, whose texts ``name`` tells. Shape: (N,).
        labels, logits, weights: as in :func:`measure`. Shape: (N,).
        kind: of the label.
    """
    names, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:GROUP_VALUES]
    masks = [(name(names[value]), 0, which == value) for value in order]
    if others := len(names) - len(order):
        masks.append((f"{others:,} others", others, ~np.isin(which, order)))
    return _metrics_of(masks, labels, logits, kind, np.ones(len(labels)) if weights is None else weights)


def number_ranges(numbers: Floats) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Names and masks of a number's ranges, rising, of about equally many rows; of its values where they are few.

    >>> import numpy as np
    >>> [(name, int(mask.sum())) for name, mask in number_ranges(np.array([3.0, 1.0, np.nan, 3.0]))]
    [('1', 1), ('3', 2), ('<missing>', 1)]
    """
    missing = np.isnan(numbers)
    values, which = np.unique(numbers[~missing], return_inverse=True)
    if len(values) > GROUP_VALUES:
        inner = np.quantile(numbers[~missing], np.linspace(0, 1, NUMBER_BINS + 1)[1:-1])
        which = np.searchsorted(np.unique(inner), values)[which]
    for part in np.unique(which):
        mask = np.zeros(len(numbers), bool)
        mask[~missing] = which == part
        low, high = (number_text(end) for end in (numbers[mask].min(), numbers[mask].max()))
        yield low if low == high else f"{low} to {high}", mask
    if missing.any():
        yield MISSING, missing


def _metrics_of(
    masks: Sequence[tuple[str, int, NDArray[np.bool_]]], labels: Floats, logits: Floats, kind: Any, weights: Floats
) -> list[dict[str, Any]]:
    answers = sigmoid(logits) if kind == "binary" else logits
    return [
        {
            "value": text,
            "others": others,
            "mean_label": weighted_mean(labels[mask], weights[mask]),
            "mean_answer": weighted_mean(answers[mask], weights[mask]),
            **measure(labels[mask], logits[mask], label_kind=kind, weights=weights[mask]),
        }
        for text, others, mask in masks
    ]

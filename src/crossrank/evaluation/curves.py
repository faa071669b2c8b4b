"""Curves and breakdowns of a model's answers, a few kilobytes for any number of rows; every row counts once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossrank.data import MISSING_ID, UNSEEN_ID, Encoder, Split
from crossrank.evaluation.evaluate import SCORING_ROWS
from crossrank.evaluation.grouped import Floats
from crossrank.evaluation.metrics import measure, sigmoid
from crossrank.models import Model

CALIBRATION_BINS = 20
SCORE_BINS = 48
ROC_POINTS = 200
MOST_ROWS = 200_000  # more would draw the same curves
GROUP_VALUES = 12  # values of a column that stand alone; the others are taken together


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
        ``rows``, at most 200,000 spread evenly; ``kind`` of the label; ``calibration``: mean answer, mean label and
        rows of bins of equal size; ``scores``: the share of rows of each class in bins of the logit (for a number: of
        answers and labels); ``roc``: points of the curve, only for a binary label; ``groups``: metrics by value of each
        categorical column.
    """
    some = np.linspace(0, rows.num_rows - 1, min(rows.num_rows, MOST_ROWS)).astype(np.int64)
    parts = (some[first : first + SCORING_ROWS] for first in range(0, len(some), SCORING_ROWS))
    if logits is None:
        logits = model.predict_logits(rows.take(part).features for part in parts).numpy()
    else:
        logits = logits[some]
    logits = logits.astype(np.float64)
    kind = encoder.schema.label.kind
    labels = np.asarray(rows.labels[some], np.float64)
    answers = sigmoid(logits) if kind == "binary" else logits
    curves: dict[str, Any] = {"rows": len(labels), "kind": kind, "calibration": calibration(labels, answers)}
    if kind == "binary":
        curves["scores"] = histogram(logits, {"negative": logits[labels == 0], "positive": logits[labels == 1]})
        curves["roc"] = roc(labels, logits)
    else:
        both = np.concatenate([logits, labels])
        curves["scores"] = histogram(both, {"answers": logits, "labels": labels})
    curves["groups"] = {
        column.name: group_metrics(
            np.asarray(rows.categorical[:, position])[some], labels, logits, kind, name=_namer(encoder, column.name)
        )
        for position, column in enumerate(encoder.schema.categorical)
    }
    return curves


def calibration(labels: Floats, answers: Floats, *, bins: int = CALIBRATION_BINS) -> dict[str, list[float]]:
    """Mean answer and mean label of rows sorted by answer and cut into bins of equally many.

    >>> import numpy as np
    >>> calibration(np.array([0.0, 1.0, 1.0, 1.0]), np.array([0.2, 0.4, 0.6, 0.8]), bins=2)["observed"]
    [0.5, 1.0]
    """
    parts = [part for part in np.array_split(np.argsort(answers, kind="stable"), bins) if len(part)]
    return {
        "predicted": _short([answers[part].mean() for part in parts]),
        "observed": _short([labels[part].mean() for part in parts]),
        "rows": [len(part) for part in parts],
    }


def roc(labels: Floats, scores: Floats, *, points: int = ROC_POINTS) -> dict[str, list[float]]:
    """False and true positive rate at thresholds spread evenly along the curve; empty where one class is absent.

    >>> import numpy as np
    >>> roc(np.array([1.0, 0.0, 1.0, 0.0]), np.array([4.0, 3.0, 2.0, 1.0]))
    {'false': [0.0, 0.0, 0.5, 0.5, 1.0], 'true': [0.0, 0.5, 0.5, 1.0, 1.0]}
    """
    positives = labels.sum()
    if not 0 < positives < len(labels):
        return {"false": [], "true": []}
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)  # rows of one score are one step
    true = np.append(0, np.cumsum(labels[order])[last] / positives)
    false = np.append(0, np.cumsum(1 - labels[order])[last] / (len(labels) - positives))
    length = true + false  # grows along the curve, from 0 to 2
    kept = np.unique(np.searchsorted(length, np.linspace(0, 2, points + 1)).clip(max=len(length) - 1))
    return {"false": _short(false[kept]), "true": _short(true[kept])}


def histogram(values: Floats, series: dict[str, Floats], *, bins: int = SCORE_BINS) -> dict[str, list[float]]:
    """The share of each series in bins between the outer thousandths of all values; the rest counts at the ends."""
    low, high = np.quantile(values, [0.001, 0.999]) if len(values) else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    shares: dict[str, list[float]] = {"edges": _short(edges)}
    for name, part in series.items():
        counts, _ = np.histogram(part.clip(edges[0], edges[-1]), edges)
        shares[name] = _short(counts / max(len(part), 1))
    return shares


def group_metrics(
    values: NDArray[Any], labels: Floats, logits: Floats, kind: Any, *, name: Callable[[Any], str] = str
) -> list[dict[str, Any]]:
    """Metrics of the rows of each frequent value, most frequent first, then of all others together.

    Args:
        values: texts, or ids, whose texts ``name`` tells. Shape: (N,).
        labels, logits: as in :func:`measure`. Shape: (N,).
        kind: of the label.
    """
    names, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:GROUP_VALUES]
    masks = [(name(names[value]), 0, which == value) for value in order]
    if others := len(names) - len(order):
        masks.append((f"{others:,} others", others, ~np.isin(which, order)))
    answers = sigmoid(logits) if kind == "binary" else logits
    return [
        {
            "value": text,
            "others": others,
            "mean_label": float(labels[mask].mean()),
            "mean_answer": float(answers[mask].mean()),
            **measure(labels[mask], logits[mask], label_kind=kind),
        }
        for text, others, mask in masks
    ]


def _namer(encoder: Encoder, column: str) -> Callable[[Any], str]:
    """What tells the text of an id of a categorical column; missing and unseen ones say so."""
    special, vocabulary = {MISSING_ID: "<missing>", UNSEEN_ID: "<unseen>"}, encoder.vocabularies[column]
    return lambda id_: special.get(int(id_)) or str(vocabulary.text_of(int(id_)))


def _short(values: Any) -> list[float]:
    return [float(f"{value:.6g}") for value in values]

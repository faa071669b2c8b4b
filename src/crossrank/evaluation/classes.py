"""How good the answers to a label with several classes are: of softmax probabilities, and of each class's order.

| metric             | reads         | best | undefined (nan)           |
| ------------------ | ------------- | ---- | ------------------------- |
| log_loss           | logits        | 0    | no rows                   |
| normalized_entropy | logits        | 0    | one class only            |
| accuracy           | logits        | 1    | no rows                   |
| macro_auc          | probabilities | 1    | no class that some rows have and others have not |
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from crossrank.errors import DataError
from crossrank.evaluation.grouped import Floats, auc, weighted_mean


def log_softmax(logits: ArrayLike) -> Floats:
    """``x_k - log Σ_j exp x_j`` in float64, never overflowing. Shape: (N, K) -> (N, K).

    >>> np.exp(log_softmax([[1000.0, 1000.0]])).tolist()
    [[0.5, 0.5]]
    """
    numbers = np.asarray(logits, np.float64)
    shifted: Floats = numbers - numbers.max(axis=-1, keepdims=True)
    logs: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logs


def class_losses(labels: ArrayLike, logits: ArrayLike) -> Floats:
    """``-log p(label)`` of each row, labels being positions of classes: (N,), (N, K) -> (N,)."""
    places = np.asarray(labels).astype(np.intp)
    return -np.take_along_axis(log_softmax(logits), places[:, None], axis=1)[:, 0]


def measure_classes(labels: ArrayLike, logits: ArrayLike, *, weights: ArrayLike | None = None) -> dict[str, float]:
    """Every metric by the name it has in reports; nan where the rows do not define it.

    ``macro_auc`` is the mean over classes of the AUC of that class against all others, by its probability.

    Args:
        labels: the position of each row's class. Shape: (N,).
        logits: one for each class. Shape: (N, K).
        weights: how many rows each row stands for. Shape: (N,).

    >>> found = measure_classes([0, 1, 2], np.eye(3))
    >>> found["accuracy"], found["macro_auc"], round(found["logloss"], 4)
    (1.0, 1.0, 0.5514)
    """
    classes, scores = np.asarray(labels).astype(np.intp), np.asarray(logits, np.float64)
    if scores.ndim != 2 or len(scores) != len(classes) or not np.isfinite(scores).all():
        raise DataError(f"Logits must be finite, (rows, classes); got {scores.shape} for {len(classes)} rows.")
    weighs = np.ones(len(classes)) if weights is None else np.asarray(weights, np.float64)
    loss = weighted_mean(class_losses(classes, scores), weighs)
    shares = np.bincount(classes, weighs, scores.shape[1]) / max(float(weighs.sum()), 1e-300)
    there = shares[shares > 0]
    entropy = float(-(there * np.log(there)).sum())
    probabilities = np.exp(log_softmax(scores))
    each = [auc(classes == k, probabilities[:, k], weights=weighs) for k in range(scores.shape[1])]
    defined = [one for one in each if math.isfinite(one)]
    return {
        "logloss": loss,
        "accuracy": weighted_mean((scores.argmax(axis=1) == classes).astype(np.float64), weighs),
        "macro_auc": float(np.mean(defined)) if defined else math.nan,
        "normalized_entropy": loss / entropy if entropy > 0 else math.nan,
    }

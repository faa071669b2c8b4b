"""What comes of a threshold on a binary model's scores, at every threshold: ROC, precision and recall, lift."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossrank.evaluation.grouped import Floats
from crossrank.evaluation.metrics import sigmoid

CURVE_POINTS = 200
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)  # of the rows that a threshold lets through


class Passed(NamedTuple):
    """The weight of the rows of each class whose score reaches a threshold, for every threshold, falling; T of them.

    Shape: (T,) each; T is 0 where one class is absent.
    """

    scores: Floats
    positive: Floats
    negative: Floats

    @property
    def share(self) -> Floats:
        both = self.positive + self.negative
        return both / both[-1:]

    @property
    def recall(self) -> Floats:
        return self.positive / self.positive[-1:]

    @property
    def precision(self) -> Floats:
        return self.positive / (self.positive + self.negative)


def pass_rows(labels: Floats, scores: Floats, weights: Floats) -> Passed:
    """What every threshold lets through; rows of one score pass together. Shape: (N,) each."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)[: len(order)]
    positive, negative = (np.cumsum((weights * of_class)[order])[last] for of_class in (labels, 1 - labels))
    if not len(order) or not (positive[-1] > 0 and negative[-1] > 0):
        return Passed(*np.empty((3, 0)))
    return Passed(scores[order][last], positive, negative)


def roc(passed: Passed, *, points: int = CURVE_POINTS) -> dict[str, list[float]]:
    """False and true positive rate at thresholds spread evenly along the curve; empty where one class is absent.

    >>> import numpy as np
    >>> roc(pass_rows(np.array([1.0, 0.0, 1.0, 0.0]), np.array([4.0, 3.0, 2.0, 1.0]), np.ones(4)))
    {'false': [0.0, 0.0, 0.5, 0.5, 1.0], 'true': [0.0, 0.5, 0.5, 1.0, 1.0]}
    """
    start = np.zeros(1 if len(passed.scores) else 0)
    true, false = (np.append(start, rate) for rate in (passed.recall, passed.negative / passed.negative[-1:]))
    kept = _reached((true + false) / 2, np.linspace(0, 1, points + 1))  # by the length of the curve
    return {"false": short(false[kept]), "true": short(true[kept])}


def precision_recall(passed: Passed, *, points: int = CURVE_POINTS) -> dict[str, list[float]]:
    """Recall and precision at thresholds spread evenly by recall; empty where one class is absent."""
    kept = _reached(passed.recall, np.linspace(0, 1, points + 1))
    return {"recall": short(passed.recall[kept]), "precision": short(passed.precision[kept])}


def lift(passed: Passed, *, points: int = CURVE_POINTS // 2) -> dict[str, list[float]]:
    """How many times as often as in all rows the positive class comes in the share of rows with the highest scores."""
    kept = _reached(passed.share, np.linspace(0, 1, points + 1))
    return {"share": short(passed.share[kept]), "lift": short(passed.recall[kept] / passed.share[kept])}


def thresholds(passed: Passed) -> list[dict[str, float]]:
    """What comes of taking the rows whose probability reaches a threshold: the share of all rows that pass, how many of
    them are positive, how many of the positive rows are among them, and the harmonic mean of both.
    """
    found = []
    for place in _reached(passed.share, np.array(SHARES)):
        precision, recall = passed.precision[place], passed.recall[place]
        row = {
            "threshold": sigmoid(passed.scores[place]),
            "share": passed.share[place],
            "precision": precision,
            "recall": recall,
            "f1": 2 * precision * recall / (precision + recall) if recall else 0.0,
        }
        found.append({name: float(value) for name, value in row.items()})
    return found


def short(values: Any) -> list[float]:
    """Numbers in six digits."""
    return [float(f"{value:.6g}") for value in values]


def _reached(rising: Floats, targets: Floats) -> NDArray[np.intp]:
    """Where numbers that rise to 1 reach each target, each place once; nowhere where there are none."""
    places = np.searchsorted(rising, targets)
    return np.unique(places.clip(max=len(rising) - 1)) if len(rising) else places[:0]

"""What scores mean that are no probabilities: a monotone map from a score to the mean label of rows that have it.

It is the isotonic regression of the labels on the scores, a step for each run of scores (pool adjacent violators),
joined by straight lines between the mean scores of the steps, and constant beyond them. It turns no two rows round.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from crossrank.evaluation.grouped import Floats, read_rows

MOST_BINS = 1000  # of equally many rows, to begin with


def fit_monotone(labels: ArrayLike, scores: ArrayLike, *, weights: ArrayLike | None = None) -> dict[str, list[float]]:
    """The points of the map, rising in both: ``{"scores": […], "answers": […]}``; none where no row weighs anything.

    >>> fit_monotone([0, 1, 0, 1], [1.0, 2.0, 3.0, 4.0])
    {'scores': [1.0, 2.5, 4.0], 'answers': [0.0, 0.5, 1.0]}
    """
    rows = read_rows(labels, scores, weights, binary=False)
    values, which = np.unique(rows.scores, return_inverse=True)
    mass = np.bincount(which, rows.weights, len(values))
    middle = (np.cumsum(mass) - mass / 2) / (mass.sum() or 1.0)  # equal scores stay together
    which = np.minimum((middle * MOST_BINS).astype(np.intp), MOST_BINS - 1)[which]
    columns = [np.bincount(which, rows.weights * column) for column in (np.ones_like(rows.scores), *rows[:2])]
    blocks: list[Floats] = []  # the mass of each, its sum of labels and of scores
    for block in np.stack(columns, axis=1):
        if block[0] > 0:
            blocks.append(block)
        while len(blocks) > 1 and blocks[-2][1] * blocks[-1][0] >= blocks[-1][1] * blocks[-2][0]:
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return {"scores": [float(b[2] / b[0]) for b in blocks], "answers": [float(b[1] / b[0]) for b in blocks]}

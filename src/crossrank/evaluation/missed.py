"""Which pairs of columns a model misses: what a memory of each cell would have added to its logits, row by row.

Walk through the rows in the order in which a model learned them, with the logit z that it gave each *before* that, and
p = σ(z). For the cell of a row, over the rows before it,

``δ = Σ (y - p) / (Σ p (1 - p) + λ)``,  ``gain = mean of ℓ(z) - ℓ(z + δ)``:

a Newton step from what the model left over in this cell, tried on a row that neither has seen. Strength, in contrast,
shows what a model already has. For a label that is a number p is z, p (1 - p) is 1 and the loss is the squared error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossrank.data.ordered import Doubles, sums_before
from crossrank.evaluation.metrics import row_losses, sigmoid
from crossrank.schema import LabelKind

RIDGE = 5.0  # λ


class Missed(NamedTuple):
    """The mean gain of one memory, its standard error, and the share of rows whose cell had been seen before."""

    columns: tuple[str, ...]
    gain: float
    error: float
    repeated: float


def missed_gain(
    logits: NDArray[np.floating],
    labels: NDArray[np.floating],
    cells: NDArray[np.integer],
    *,
    kind: LabelKind = "binary",
) -> Doubles:
    """What the memory of a row's cell would have taken off its loss: (N,), (N,), (N,) -> (N,), in the rows' order.

    Where no cell comes twice it is 0. Where there is nothing to remember its mean tends below 0.

    >>> missed_gain(np.zeros(3), np.ones(3), np.array([4, 4, 9])).round(3).tolist()
    [0.0, 0.046, 0.0]
    """
    z, y = np.asarray(logits, np.float64), np.asarray(labels, np.float64)
    p = sigmoid(z) if kind == "binary" else z
    curvature = p * (1 - p) if kind == "binary" else np.ones_like(z)
    left, curved = sums_before(cells, np.column_stack([y - p, curvature])).T
    step = left / (curved + RIDGE)
    gain: Doubles = row_losses(y, z, kind) - row_losses(y, z + step, kind)
    return gain


def rank_missed(
    logits: NDArray[np.floating],
    labels: NDArray[np.floating],
    cells: Iterable[tuple[tuple[str, ...], NDArray[np.integer]]],
    *,
    kind: LabelKind = "binary",
) -> list[Missed]:
    """The gain of each memory, the largest first.

    Args:
        logits: of each row before it was learned, in the order of learning.
        labels: in the same order.
        cells: the columns that make them, and the number of each row's cell.
        kind: of the label.
    """
    found = []
    for columns, numbers in cells:
        gains = missed_gain(logits, labels, numbers, kind=kind)
        seen = sums_before(numbers, np.ones((len(numbers), 1)))[:, 0] > 0
        error = float(gains.std() / np.sqrt(max(len(gains), 1)))
        found.append(Missed(columns, float(gains.mean()), error, float(seen.mean())))
    return sorted(found, key=lambda one: -one.gain)

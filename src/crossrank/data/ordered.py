"""What the rows before a row say of its cell: how many there were, and what their labels were.

A cell is the tuple of values that a row has in one or several columns. With n and S the number and the sum of the
labels of its cell over the rows *before* this one in some order, and π the prior over all rows before it,

``b log(1 + n)``  and  ``logit((S + a π) / (n + a)) - logit(π)``

are a row's statistics; for a label that is a number the second is ``((S + a π) / (n + a) - π) / deviation``. Both are 0
where the cell has not been seen. The prior, too, is one of the rows before: then not a digit of a row's statistics
depends on its own label. Rows of one time do not see each other. Rows that are not for training have all training rows
before them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossrank.data.rows import Floats
from crossrank.schema import LabelKind

Doubles = NDArray[np.float64]
LARGEST = 10.0  # of a number's statistic: the deviation of the first few rows may be next to nothing


@dataclass(frozen=True)
class Form:
    """How statistics are written: a, which smooths shares, and b, which keeps counts as small as other inputs."""

    smoothing: float = 5.0
    count_scale: float = 0.1


FIRST_FORM = Form(1.0, 1.0)  # of version 0.2.0, whose folders do not tell


def sums_before(groups: NDArray[np.integer], values: Doubles, times: NDArray[np.integer] | None = None) -> Doubles:
    """Sums of values over the rows before each row that are of its group, and of an earlier time where there are times.

    Args:
        groups: which group each row is of.
        values: what is summed.
        times: of the rows, which are then in their order.

    Shape: groups (N,), values (N, K), times (N,) -> (N, K).

    Example:
        >>> sums_before(np.array([7, 5, 7, 7]), np.array([[1.0], [10.0], [2.0], [4.0]]))[:, 0].tolist()
        [0.0, 0.0, 1.0, 3.0]
    """
    order = np.argsort(groups, kind="stable")
    sums = np.cumsum(values[order], axis=0) - values[order]  # exact for whole numbers
    groups, rows = groups[order], np.arange(len(groups))
    starts = np.append(True, groups[1:] != groups[:-1])[: len(rows)]
    first = _latest(starts)
    latest = rows if times is None else _latest(starts | np.append(True, np.diff(times[order]) != 0)[: len(rows)])
    result = np.empty_like(sums)
    result[order] = sums[latest] - sums[first]
    return result


def _latest(marked: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The last marked place up to each place; the first is marked."""
    return np.maximum.accumulate(np.where(marked, np.arange(len(marked)), 0))


@dataclass(frozen=True)
class Prior:
    """The mean and deviation of labels, each a number or one for each row."""

    mean: Doubles | float
    deviation: Doubles | float = 1.0

    @classmethod
    def of(cls, sums: Doubles, kind: LabelKind, shift: float = 0.0) -> Prior:
        """From the number of labels, their sum and the sum of their squares, both less a shift: (…, 3).

        A share is never quite 0 or 1: one row of either class counts as half a row more.
        """
        count, total, squares = np.moveaxis(np.asarray(sums, np.float64), -1, 0)
        if kind == "binary":
            return cls((total + shift * count + 0.5) / (count + 1))
        mean = total / np.maximum(count, 1)
        variance = squares / np.maximum(count, 1) - mean**2
        return cls(shift + mean, np.sqrt(np.where(variance > 0, variance, 1.0)))


def statistics(counts: NDArray[Any], sums: Doubles, prior: Prior, kind: LabelKind, form: Form) -> Floats:
    """The two statistics of cells with so many labels of that sum: (N,) and (N,) -> (N, 2)."""
    smoothed = (sums + form.smoothing * prior.mean) / (counts + form.smoothing)
    if kind == "binary":
        odds = _logit(smoothed) - _logit(np.asarray(prior.mean))
    else:
        odds = ((smoothed - prior.mean) / prior.deviation).clip(-LARGEST, LARGEST)
    return np.column_stack([form.count_scale * np.log1p(counts), np.where(counts > 0, odds, 0.0)]).astype(np.float32)


def _logit(share: Doubles) -> Doubles:
    logits: Doubles = np.log(share) - np.log1p(-share)
    return logits


class OrderedStatistics:
    """Walks through rows in an order, a part at a time, and gives each the statistics of the rows before.

    Args:
        num_cells: of cells, which are numbered from 0.
        kind: of the label.
        form: of the statistics.

    Attributes:
        counts, sums: of the labels of each cell, over all rows so far: (C,).

    Cost: memory for the cells and one part.

    Example:
        >>> walk = OrderedStatistics(2, "binary")
        >>> walk.add(np.array([0, 1, 0]), np.array([1.0, 1.0, 0.0]))[2].round(3)
        array([0.069, 0.215], dtype=float32)
    """

    def __init__(self, num_cells: int, kind: LabelKind, form: Form | None = None) -> None:
        self.kind, self.form = kind, form or Form()
        self.counts, self.sums = np.zeros(num_cells, np.int64), np.zeros(num_cells)
        self._shift: float | None = None
        self._totals = np.zeros(3)

    def add(
        self, cells: NDArray[np.integer], labels: NDArray[np.floating], times: NDArray[np.integer] | None = None
    ) -> Floats:
        """More rows, in their order; where there are times, all rows of a time come together: (N,) -> (N, 2)."""
        labels = labels.astype(np.float64)
        if self._shift is None:  # squares of labels far from 0 would lose their digits
            self._shift = float(labels[0]) if self.kind != "binary" and len(labels) else 0.0
        ones, centred = np.ones(len(labels)), labels - self._shift
        before = sums_before(cells, np.column_stack([ones, labels]), times)
        values = np.column_stack([ones, centred, centred**2])
        totals = self._totals + sums_before(np.zeros(len(labels), np.int8), values, times)
        prior = Prior.of(totals, self.kind, self._shift)
        counts, sums = self.counts[cells] + before[:, 0], self.sums[cells] + before[:, 1]
        result = statistics(counts, sums, prior, self.kind, self.form)
        self.counts += np.bincount(cells, minlength=len(self.counts))
        self.sums += np.bincount(cells, labels, minlength=len(self.sums))
        self._totals += values.sum(axis=0)
        return result

    @property
    def prior(self) -> Prior:
        """Of all rows so far."""
        prior = Prior.of(self._totals, self.kind, self._shift or 0.0)
        return Prior(float(prior.mean), float(prior.deviation))

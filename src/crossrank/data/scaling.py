"""Numbers made fit for a network: ``standardize(log(max(x + log_shift, 1)))``, for all numeric columns at once.

Cross layers multiply numbers with each other, layer by layer, so none may be far from the others. There are two ways to
standardize: less the mean, divided by the deviation, and cut off at five deviations or where the training rows end; or,
where the label is a number, by quantiles: a number with the share p of the training rows below it becomes the number
with the share p of a normal distribution below it. Between the quantiles that are kept, the line between them counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from crossrank.data.numbers import LARGEST, Doubles
from crossrank.data.rows import Floats
from crossrank.errors import ConfigError
from crossrank.schema import Numeric

FARTHEST = 5.0  # deviations from the mean, beyond which a number counts as if it were there
NORMAL_QUANTILES = np.array([NormalDist().inv_cdf((k + 0.5) / 256) for k in range(256)])
MOST_KEPT = 1 << 17


@dataclasses.dataclass(frozen=True)
class NumericStatistics:
    """Mean and deviation of a numeric column over the training rows, after its logarithm if it has one.

    Smaller numbers than ``low`` count as ``low``, larger ones than ``high`` as ``high``; None, in encoders that were
    made before there were limits, is none. ``quantiles``, where there are any, take the place of all of these.
    The rest is what :mod:`crossrank.data.number_codes` knows of values and pieces, where the column has them.
    """

    mean: float = 0.0
    deviation: float = 1.0
    count: int = 0
    missing: int = 0
    low: float | None = None
    high: float | None = None
    quantiles: Sequence[float] | None = None
    lows: Sequence[float] | None = None  # the smallest number of each bin of values
    highs: Sequence[float] | None = None  # and the largest
    counts: Sequence[int] | None = None  # training rows by id, the special ones included
    edges: Sequence[float] | None = None  # between the pieces, and at both ends
    piece_means: Sequence[float] | None = None  # over the training rows that have a number

    def __post_init__(self) -> None:
        """Refuse what no training rows can have taught."""
        bins, pieces = len(self.lows or ()), len(self.piece_means or ())
        right = (
            self.deviation > 0
            and min(self.count, self.missing) >= 0
            and len(self.quantiles or NORMAL_QUANTILES) == len(NORMAL_QUANTILES)
            and len(self.highs or ()) == bins
            and len(self.counts or ()) == (bins + 2 if bins else 0)
            and len(self.edges or ()) == (pieces + 1 if pieces else 0)
        )
        if not right:
            raise ConfigError("What a numeric column was taught must fit together; it does not.")


class Scaling:
    """What training rows taught about the numeric columns.

    Shape: all arrays are (N, M), a column for each numeric feature in the order of the schema; NaN is missing.
    """

    def __init__(self, columns: Sequence[Numeric], statistics: Mapping[str, NumericStatistics]) -> None:
        self.shifts = log_shifts(columns)
        known = [statistics[column.name] for column in columns]
        self._means = np.array([one.mean for one in known])
        standardized = np.array([column.standardize for column in columns], bool)
        self._centers = np.where(standardized, self._means, 0.0)
        self._widths = np.where(standardized, [one.deviation for one in known], 1.0)
        self._lows = np.where(standardized, [-np.inf if one.low is None else one.low for one in known], -np.inf)
        self._highs = np.where(standardized, [np.inf if one.high is None else one.high for one in known], np.inf)
        self._curves = {
            place: _curve(one.quantiles)
            for place, one in enumerate(known)
            if one.quantiles is not None and standardized[place]
        }

    def scale(self, logged: Doubles) -> Floats:
        """Numbers after their logarithm, as the network reads them: a missing one is the training mean."""
        filled = np.where(np.isnan(logged), self._means, logged)
        scaled = (filled.clip(self._lows, self._highs) - self._centers) / self._widths
        for place, (quantiles, scores) in self._curves.items():
            scaled[:, place] = np.interp(filled[:, place], quantiles, scores)
        return scaled.clip(-LARGEST, LARGEST).astype(np.float32, order="C")

    def restore(self, scaled: Floats) -> Doubles:
        """The numbers behind scaled ones."""
        numbers = scaled.astype(np.float64) * self._widths + self._centers
        for place, (quantiles, scores) in self._curves.items():
            numbers[:, place] = np.interp(scaled[:, place], scores, quantiles)
        return undo_logs(numbers, self.shifts)


def _curve(quantiles: Sequence[float]) -> tuple[Doubles, Doubles]:
    """Quantiles that differ, and the normal number of each; where several were equal, the mean of theirs."""
    values, which = np.unique(np.asarray(quantiles, np.float64), return_inverse=True)
    return values, np.bincount(which, NORMAL_QUANTILES) / np.bincount(which)


def log_shifts(columns: Sequence[Numeric]) -> Doubles:
    """What each column's logarithm adds to x, NaN where it takes none."""
    return np.array([np.nan if column.log_shift is None else column.log_shift for column in columns], np.float64)


def take_logs(numbers: Doubles, shifts: Doubles) -> Doubles:
    """log(max(x + shift, 1)) in the columns that ask for it; NaN stays."""
    if np.isnan(shifts).all():
        return numbers
    return np.where(np.isnan(shifts), numbers, np.log(np.maximum(numbers + shifts, 1.0)))


def undo_logs(logged: Doubles, shifts: Doubles) -> Doubles:
    """The inverse of :func:`take_logs`, as far as there is one: (N, M) -> (N, M)."""
    numbers, places = logged.copy(), np.flatnonzero(~np.isnan(shifts))
    numbers[:, places] = np.exp(logged[:, places]) - shifts[places]
    return numbers


class Moments:
    """Mean and deviation over chunks by Chan's pairwise update, which loses no digits however many rows there are.

    Args:
        quantiles: find them too; of many numbers some thousand that stand for equally many of them are kept.
    """

    def __init__(self, *, quantiles: bool = False) -> None:
        self._kept: tuple[Doubles, Doubles] | None = (np.empty(0), np.empty(0)) if quantiles else None
        self._count, self._missing = 0, 0
        self._mean, self._squares = 0.0, 0.0
        self._low, self._high = np.inf, -np.inf

    def add(self, numbers: Doubles, counts: NDArray[np.int64] | None = None) -> None:
        """More numbers of the column, with NaN for missing, and how often there is each, once if None: (N,)."""
        counts = np.ones(len(numbers), np.int64) if counts is None else counts
        there = ~np.isnan(numbers) & (counts > 0)
        present, often = numbers[there], counts[there]
        count = int(often.sum())
        self._missing += int(counts.sum()) - count
        if not count:
            return
        mean, total = float(np.average(present, weights=often)), self._count + count
        shift = mean - self._mean
        self._low, self._high = min(self._low, float(present.min())), max(self._high, float(present.max()))
        squares = float((np.square(present - mean) * often).sum())
        self._squares += squares + shift**2 * self._count * count / total
        self._mean += shift * count / total
        self._count = total
        if self._kept is not None:
            values = np.concatenate([self._kept[0], present])
            weights = np.concatenate([self._kept[1], np.asarray(often, np.float64)])
            self._kept = (values, weights) if len(values) <= MOST_KEPT else _thinned(values, weights, MOST_KEPT // 2)

    def finish(self) -> NumericStatistics:
        if self._low >= self._high:  # constant, or no value at all: rounding must not pass for a deviation
            only = self._low if self._count else 0.0
            return NumericStatistics(only, 1.0, self._count, self._missing, only, only)
        quantiles = None if self._kept is None else _thinned(*self._kept, len(NORMAL_QUANTILES))[0].tolist()
        deviation = float(np.sqrt(self._squares / self._count)) or 1.0
        reach = FARTHEST * deviation
        low, high = max(self._low, self._mean - reach), min(self._high, self._mean + reach)
        return NumericStatistics(self._mean, deviation, self._count, self._missing, low, high, quantiles)


def _thinned(values: Doubles, weights: Doubles, size: int) -> tuple[Doubles, Doubles]:
    """The middles of ``size`` parts of equal weight of the sorted values, and their weights."""
    order = np.argsort(values, kind="stable")
    below = weights[order].cumsum()
    middles = (np.arange(size) + 0.5) / size * below[-1]
    places = np.searchsorted(below, middles).clip(max=len(values) - 1)
    return values[order[places]], np.full(size, below[-1] / size)

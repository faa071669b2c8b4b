"""Numbers made fit for a network: ``standardize(log(max(x + log_shift, 1)))``, for all numeric columns at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from crossrank.data.numbers import LARGEST, Doubles
from crossrank.data.rows import Floats
from crossrank.schema import Numeric

FARTHEST = 5.0  # deviations from the mean, beyond which a number counts as if it were there


@dataclasses.dataclass(frozen=True)
class NumericStatistics:
    """Mean and deviation of a numeric column over the training rows, after its logarithm if it has one.

    Smaller numbers than ``low`` count as ``low``, larger ones than ``high`` as ``high``; None, in encoders of before
    they were kept, is no limit.
    """

    mean: float = 0.0
    deviation: float = 1.0
    count: int = 0
    missing: int = 0
    low: float | None = None
    high: float | None = None


class Scaling:
    """What training rows taught about the numeric columns.

    Shape: all arrays are (N, M), a column for each numeric feature in the order of the schema; NaN is missing.
    """

    def __init__(self, columns: Sequence[Numeric], statistics: Mapping[str, NumericStatistics]) -> None:
        self._shifts = log_shifts(columns)
        known = [statistics[column.name] for column in columns]
        self._means = np.array([one.mean for one in known])
        standardized = np.array([column.standardize for column in columns], bool)
        self._centers = np.where(standardized, self._means, 0.0)
        self._widths = np.where(standardized, [one.deviation for one in known], 1.0)
        lows, highs = [one.low for one in known], [one.high for one in known]
        self._lows = np.where(standardized, [-np.inf if low is None else low for low in lows], -np.inf)
        self._highs = np.where(standardized, [np.inf if high is None else high for high in highs], np.inf)

    def scale(self, logged: Doubles) -> Floats:
        """Numbers after their logarithm, as the network reads them: a missing one is the training mean."""
        filled = np.where(np.isnan(logged), self._means, logged)
        np.clip(filled, self._lows, self._highs, out=filled)
        filled -= self._centers
        filled /= self._widths
        return np.clip(filled, -LARGEST, LARGEST, out=filled).astype(np.float32, order="C")

    def restore(self, scaled: Floats) -> Doubles:
        """The numbers behind scaled ones."""
        numbers = scaled.astype(np.float64) * self._widths + self._centers
        logged = np.flatnonzero(~np.isnan(self._shifts))
        numbers[:, logged] = np.exp(numbers[:, logged]) - self._shifts[logged]
        return numbers


def log_shifts(columns: Sequence[Numeric]) -> Doubles:
    """What each column's logarithm adds to x, NaN where it takes none."""
    return np.array([np.nan if column.log_shift is None else column.log_shift for column in columns], np.float64)


def take_logs(numbers: Doubles, shifts: Doubles) -> Doubles:
    """log(max(x + shift, 1)) in the columns that ask for it; NaN stays."""
    return np.where(np.isnan(shifts), numbers, np.log(np.maximum(numbers + shifts, 1.0)))


class Moments:
    """Mean and deviation over chunks by Chan's pairwise update, which loses no digits however many rows there are."""

    def __init__(self) -> None:
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

    def finish(self) -> NumericStatistics:
        if self._low >= self._high:  # constant, or no value at all: rounding must not pass for a deviation
            only = self._low if self._count else 0.0
            return NumericStatistics(only, 1.0, self._count, self._missing, only, only)
        deviation = float(np.sqrt(self._squares / self._count)) or 1.0
        reach = FARTHEST * deviation
        low, high = max(self._low, self._mean - reach), min(self._high, self._mean + reach)
        return NumericStatistics(self._mean, deviation, self._count, self._missing, low, high)

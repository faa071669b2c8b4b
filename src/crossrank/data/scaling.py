"""Numbers made fit for a network: ``standardize(log(max(x + log_shift, 1)))``, for all numeric columns at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from crossrank.data.numbers import LARGEST, Doubles
from crossrank.data.rows import Floats
from crossrank.schema import Numeric


@dataclasses.dataclass(frozen=True)
class NumericStatistics:
    """Mean and deviation of a numeric column over the training rows, after its logarithm if it has one."""

    mean: float = 0.0
    deviation: float = 1.0
    count: int = 0
    missing: int = 0


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

    def scale(self, logged: Doubles) -> Floats:
        """Numbers after their logarithm, as the network reads them: a missing one is the training mean."""
        filled = np.where(np.isnan(logged), self._means, logged)
        filled -= self._centers
        filled /= self._widths
        return np.clip(filled, -LARGEST, LARGEST, out=filled).astype(np.float32)

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
    """Means and deviations over chunks by Chan's pairwise update, which loses no digits however many rows there are."""

    def __init__(self, num_columns: int) -> None:
        self._rows = 0
        self._count = np.zeros(num_columns, np.int64)
        self._mean, self._squares = np.zeros(num_columns), np.zeros(num_columns)
        self._low, self._high = np.full(num_columns, np.inf), np.full(num_columns, -np.inf)

    def add(self, numbers: Doubles) -> None:
        """Rows with NaN for missing: (N, M)."""
        present = ~np.isnan(numbers)
        count = present.sum(axis=0)
        total = self._count + count
        mean = np.where(present, numbers, 0.0).sum(axis=0) / np.maximum(count, 1)
        shift = (mean - self._mean) * (count > 0)
        spread = np.square(np.where(present, numbers - mean, 0.0)).sum(axis=0)
        self._squares += spread + shift**2 * (self._count * count / np.maximum(total, 1))
        self._mean += shift * count / np.maximum(total, 1)
        self._rows, self._count = self._rows + len(numbers), total
        self._low = np.minimum(self._low, np.where(present, numbers, np.inf).min(axis=0, initial=np.inf))
        self._high = np.maximum(self._high, np.where(present, numbers, -np.inf).max(axis=0, initial=-np.inf))

    def finish(self) -> list[NumericStatistics]:
        varied = self._low < self._high  # rounding must not pass for the deviation of a constant
        means = np.where(self._low == self._high, self._low, self._mean)
        deviations = np.where(varied, np.sqrt(self._squares / np.maximum(self._count, 1)), 1.0)
        deviations[deviations == 0] = 1.0
        columns = zip(means.tolist(), deviations.tolist(), self._count.tolist(), strict=True)
        return [NumericStatistics(mean, deviation, count, self._rows - count) for mean, deviation, count in columns]

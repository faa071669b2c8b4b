"""The distinct numbers of a column, counted while its rows come by."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossrank.data.numbers import Doubles
from crossrank.data.text import splitmix64

Counts: TypeAlias = NDArray[np.int64]
MOST_DISTINCT = 1 << 17
HEAVY = 1 / 1024  # the share of rows from which on a number is never left out


class DistinctNumbers:
    """The distinct numbers of a column and how often there is each, from chunks.

    Exact while there are up to 2¹⁷. Beyond, those with the smallest hashes are kept, an even sample of the distinct
    numbers that does not depend on their order, and those that at least one of 1,024 rows had so far.
    """

    def __init__(self) -> None:
        self._values, self._counts = np.empty(0), np.empty(0, np.int64)
        self._rows, self._limit = 0, np.uint64(2**64 - 1)

    def add(self, numbers: Doubles, counts: Counts | None = None) -> None:
        """More numbers, NaN for missing, and how often there is each, once if None: (N,)."""
        there = ~np.isnan(numbers) if counts is None else ~np.isnan(numbers) & (counts > 0)
        often = np.ones(len(numbers), np.int64) if counts is None else counts
        self._rows += int(often[there].sum())
        values, often = _merged(numbers[there] + 0.0, often[there])  # -0.0 is 0.0
        if self._limit < np.uint64(2**64 - 1):
            kept = (_hashes(values) <= self._limit) | np.isin(values, self._values)
            values, often = values[kept], often[kept]
        self._values, self._counts = _merged(np.append(self._values, values), np.append(self._counts, often))
        if len(self._values) > 2 * MOST_DISTINCT:
            self._thin()

    def _thin(self) -> None:
        hashes = _hashes(self._values)
        if len(hashes) > MOST_DISTINCT:
            self._limit = min(self._limit, np.partition(hashes, MOST_DISTINCT - 1)[MOST_DISTINCT - 1])
        kept = (hashes <= self._limit) | (self._counts >= HEAVY * self._rows)
        self._values, self._counts = self._values[kept], self._counts[kept]

    def finish(self) -> tuple[Doubles, Counts]:
        """The numbers in order, and how many rows each stands for."""
        self._thin()
        sampled, total = _hashes(self._values) <= self._limit, int(self._counts.sum())
        if total == self._rows:
            return self._values, self._counts
        known = int(self._counts[sampled].sum())
        share = (self._rows - total + known) / max(known, 1)
        return self._values, np.where(sampled, np.rint(self._counts * share), self._counts).astype(np.int64)


def _hashes(values: Doubles) -> NDArray[np.uint64]:
    return np.asarray(splitmix64(values.view(np.uint64)), np.uint64)


def _merged(values: Doubles, counts: Counts) -> tuple[Doubles, Counts]:
    distinct, which = np.unique(values, return_inverse=True)
    return distinct, np.bincount(which, counts, len(distinct)).astype(np.int64)

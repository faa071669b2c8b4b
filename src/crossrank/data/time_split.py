"""Which rows are early and which are late, for tables of any size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from crossrank.data.on_demand import pl
from crossrank.data.table import Chunk, Table
from crossrank.errors import DataError
from crossrank.schema.infer import YEAR_LAST

COMPACT_ROWS = 1_000_000
Divide = Callable[[NDArray[np.uint8], "Chunk"], NDArray[np.uint8]]


class ByTime:
    """Cuts at the times where the running share of rows is nearest to the fractions."""

    def __init__(self, table: Table, column: str, borders: NDArray[np.float64], divide: Divide) -> None:
        self._column, self._divide, counts = column, divide, _time_counts(table, column)
        texts = counts.schema["time"] == pl.String
        if texts and counts["time"].cast(pl.Float64, strict=False).is_not_null().all():
            counts = _sum_rows([counts.with_columns(pl.col("time").cast(pl.Float64))])
        counts = counts.sort("time")
        self._times = counts["time"]
        _check_order(self._times, column)
        reached = counts["rows"].cum_sum().to_numpy()
        self._last = [int(np.abs(reached - border * reached[-1]).argmin()) for border in borders]

    def __call__(self, chunk: Chunk) -> NDArray[np.uint8]:
        return self.splits(chunk, self.ranks(chunk))

    def ranks(self, chunk: Chunk) -> NDArray[np.uint32]:
        """The place of each row's time among all times of the table."""
        times = _times(chunk.frame[self._column]).cast(self._times.dtype)
        return self._times.search_sorted(times).to_numpy()

    def splits(self, chunk: Chunk, ranks: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """The splits of rows whose times have these places."""
        splits = np.zeros(len(ranks), np.uint8)
        for last in self._last:
            splits += ranks > last
        return self._divide(splits, chunk)


def _check_order(times: pl.Series, column: str) -> None:
    """Texts are compared from their left, so a date must not end in its year; the first and the last show it."""
    for time in (times[0], times[-1]):
        if isinstance(time, str) and YEAR_LAST.fullmatch(time):
            raise DataError(
                f"Times in '{column}' must be numbers, dates, or texts with the year first; got '{time}'.",
                hint="Write them as 2026-01-31 in the table.",
            )


def _times(series: pl.Series) -> pl.Series:
    if series.dtype.is_float():
        return series.fill_nan(None)
    return series.cast(pl.String) if series.dtype in (pl.Categorical, pl.Enum) else series


def _time_counts(table: Table, column: str) -> pl.DataFrame:
    """How many rows each time has; memory grows with the distinct times, not with the rows."""
    parts: list[pl.DataFrame] = []
    for chunk in table.chunks([column]):
        times = _times(chunk.frame[column])
        if times.null_count():
            place = chunk.where(times.is_null().arg_true()[0])
            raise DataError(
                f"Column '{column}' must have a time in every row; it is missing in {place}.",
                hint="Drop those rows first.",
            )
        parts.append(_sum_rows([pl.DataFrame({"time": times}).with_columns(rows=pl.lit(1, pl.Int64))]))
        if sum(map(len, parts[1:])) > max(len(parts[0]), COMPACT_ROWS):  # seldom, so that the sums cost little
            parts = [_sum_rows(parts)]
    return _sum_rows(parts)


def _sum_rows(parts: list[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(parts, how="vertical_relaxed").group_by("time").agg(pl.col("rows").sum())

"""Which rows train, validate and test.

| method | a row's split is a function of |
| --- | --- |
| random | the seed and the row's position |
| group | the seed and the text of the row's group, so that a group stays together |
| time | the row's time: the earliest rows train, the latest test, equal times stay together |
| time-then-random | the row's time for training; of the later rows, the seed and the position |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from crossrank.config import setting
from crossrank.data.encoder import check_columns
from crossrank.data.text import splitmix64, stable_hashes, text_of_series
from crossrank.errors import ConfigError, DataError
from crossrank.schema.infer import YEAR_LAST

if TYPE_CHECKING:
    import polars as pl

    from crossrank.data.table import Chunk, Table

SPLITS = ("train", "valid", "test")
COMPACT_ROWS = 1_000_000
Assign = Callable[["Chunk"], NDArray[np.uint8]]
Divide = Callable[[NDArray[np.uint8], "Chunk"], NDArray[np.uint8]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSettings:
    """How rows are divided.

    >>> SplitSettings(fractions=(0.9, 0.2))
    Traceback (most recent call last):
    crossrank.errors.ConfigError: The fractions of a split must add up to 1; got 0.9, 0.2. Usual is 0.8, 0.1, 0.1.
    """

    method: Literal["random", "time", "group", "time-then-random"] = setting(
        "random", "by chance, by a time column, whole groups by chance, or the latest rows by chance"
    )
    column: str | None = setting(None, "the time or group column; for time, left out: the rows are in order of time")
    fractions: tuple[float, ...] = setting((0.8, 0.1, 0.1), "shares of train, valid and test")
    seed: int = setting(0, "another seed, another random division")

    def __post_init__(self) -> None:
        given = ", ".join(f"{fraction:g}" for fraction in self.fractions)
        if not 1 <= len(self.fractions) <= len(SPLITS):
            raise ConfigError(f"A split has 1 to 3 fractions: train, valid, test; got {len(self.fractions)}.")
        if min(self.fractions) < 0 or abs(sum(self.fractions) - 1) > 1e-6:
            raise ConfigError(
                f"The fractions of a split must add up to 1; got {given}.", hint="Usual is 0.8, 0.1, 0.1."
            )
        if self.fractions[0] == 0:
            raise ConfigError(f"The first fraction of a split, for training, must be above 0; got {given}.")
        if self.method == "group" and self.column is None:
            raise ConfigError("A split by group needs a column; got none.", hint="Set split.column to its name.")

    def assigner(self, table: Table) -> Assign:
        """The function from a chunk of the table to its rows' splits, as positions in ``SPLITS``.

        For ``time`` this reads the table's time column once.
        """
        column, borders = self.column, _borders(self.fractions)
        if column is not None:
            check_columns([column], table.columns, table.name)
        if self.method == "random":
            return lambda chunk: _draw(_positions(chunk).astype(np.uint64), self.seed, borders)
        if self.method == "group" and column is not None:
            return _by_group(column, self.seed, borders)
        cuts = borders if self.method == "time" else borders[:1]
        divide = (lambda splits, _: splits) if self.method == "time" else self._divide_later
        if column is not None:
            return ByTime(table, column, cuts, divide)
        by_position = _by_position(table, cuts)
        return lambda chunk: divide(by_position(chunk), chunk)

    def _divide_later(self, splits: NDArray[np.uint8], chunk: Chunk) -> NDArray[np.uint8]:
        """Rows after training, drawn in the ratio of the other fractions."""
        later = np.flatnonzero(splits)
        keys = _positions(chunk)[later].astype(np.uint64)
        splits[later] = 1 + _draw(keys, self.seed, _borders(self.fractions[1:]))
        return splits


def _borders(fractions: Sequence[float]) -> NDArray[np.float64]:
    """Where one share of the unit interval ends and the next begins; exactly 1 where only empty shares follow."""
    reached = np.cumsum(fractions)
    return reached[:-1] / (reached[-1:].sum() or 1.0)


def _draw(keys: NDArray[np.uint64], seed: int, borders: NDArray[np.float64]) -> NDArray[np.uint8]:
    salt = splitmix64(np.array([seed % 2**64], np.uint64))
    uniform: NDArray[np.float64] = (splitmix64(keys ^ salt) >> 11) * 2.0**-53
    return np.searchsorted(borders, uniform, side="right").astype(np.uint8)


def _positions(chunk: Chunk) -> NDArray[np.int64]:
    return np.arange(chunk.first_row, chunk.first_row + len(chunk.frame))


def _by_group(column: str, seed: int, borders: NDArray[np.float64]) -> Assign:
    return lambda chunk: _draw(stable_hashes(text_of_series(chunk.frame[column])), seed, borders)


def _by_position(table: Table, borders: NDArray[np.float64]) -> Assign:
    firsts = np.round(borders * table.num_rows())
    return lambda chunk: np.searchsorted(firsts, _positions(chunk), side="right").astype(np.uint8)


class ByTime:
    """Cuts at the times where the running share of rows is nearest to the fractions."""

    def __init__(self, table: Table, column: str, borders: NDArray[np.float64], divide: Divide) -> None:
        import polars as pl

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
    import polars as pl

    if series.dtype.is_float():
        return series.fill_nan(None)
    return series.cast(pl.String) if series.dtype in (pl.Categorical, pl.Enum) else series


def _time_counts(table: Table, column: str) -> pl.DataFrame:
    """How many rows each time has; memory grows with the distinct times, not with the rows."""
    import polars as pl

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
    import polars as pl

    return pl.concat(parts, how="vertical_relaxed").group_by("time").agg(pl.col("rows").sum())

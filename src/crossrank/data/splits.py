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
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from crossrank.config import setting
from crossrank.data.encoder import check_columns
from crossrank.data.text import stable_hashes, text_of_series
from crossrank.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl

    from crossrank.data.table import Chunk, Table

SPLITS = ("train", "valid", "test")
Assign = Callable[["Chunk"], NDArray[np.uint8]]


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
        if self.column is not None:
            check_columns([self.column], table.columns, table.name)
        borders = np.array(list(accumulate(self.fractions))[:-1])
        if self.method in ("time", "time-then-random"):
            cuts = borders if self.method == "time" else borders[:1]
            by_time = _by_position(table, cuts) if self.column is None else _by_time(table, self.column, cuts)
            return by_time if self.method == "time" else lambda chunk: self._divide_later(by_time(chunk), chunk)
        if self.method == "group":
            return lambda chunk: _draw(_group_hashes(chunk.frame[self.column]), self.seed, borders)
        return lambda chunk: _draw(_positions(chunk).astype(np.uint64), self.seed, borders)

    def _divide_later(self, parts: NDArray[np.uint8], chunk: Chunk) -> NDArray[np.uint8]:
        """Rows after training, drawn in the ratio of the other fractions."""
        train, *others = self.fractions
        borders = np.array(list(accumulate(others))[:-1]) / (1 - train)
        drawn = _draw(_positions(chunk).astype(np.uint64), self.seed, borders)
        return np.where(parts == 0, parts, 1 + drawn).astype(np.uint8)


def splitmix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Steele's finaliser: a bijection of 64 bits whose output looks random; multiplication wraps around on purpose."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _draw(keys: NDArray[np.uint64], seed: int, borders: NDArray[np.float64]) -> NDArray[np.uint8]:
    salt = splitmix64(np.array([seed % 2**64], np.uint64))
    uniform = (splitmix64(keys ^ salt) >> np.uint64(11)) * 2.0**-53
    return np.searchsorted(borders, uniform, side="right").astype(np.uint8)


def _positions(chunk: Chunk) -> NDArray[np.int64]:
    return np.arange(chunk.first_row, chunk.first_row + len(chunk.frame))


def _group_hashes(series: pl.Series) -> NDArray[np.uint64]:
    import polars as pl

    texts = text_of_series(series)
    distinct = texts.unique()
    table = pl.DataFrame({"text": distinct, "hash": stable_hashes(distinct.to_list())})
    joined = texts.to_frame("text").join(table, on="text", how="left", maintain_order="left", nulls_equal=True)
    return joined["hash"].to_numpy()


def _by_position(table: Table, borders: NDArray[np.float64]) -> Assign:
    num_rows = sum(len(chunk.frame) for chunk in table.chunks(table.columns[:1]))
    firsts = np.round(borders * num_rows)
    return lambda chunk: np.searchsorted(firsts, _positions(chunk), side="right").astype(np.uint8)


def _by_time(table: Table, column: str, borders: NDArray[np.float64]) -> Assign:
    """Cuts at the times where the running share of rows is nearest to the fractions."""
    import polars as pl

    counts = _time_counts(table, column)
    as_number = counts.schema["time"] == pl.String and counts["time"].cast(pl.Float64, strict=False).is_not_null().all()
    if as_number:
        counts = counts.with_columns(pl.col("time").cast(pl.Float64)).group_by("time").agg(pl.col("rows").sum())
    counts = counts.sort("time")
    reached = counts["rows"].cum_sum().to_numpy()
    last = [int(np.abs(reached - border * reached[-1]).argmin()) for border in borders]
    cuts = [counts["time"][position] for position in last]

    def assign(chunk: Chunk) -> NDArray[np.uint8]:
        times = chunk.frame[column]
        times = times.cast(pl.Float64) if as_number else times
        parts = np.zeros(len(times), np.uint8)
        for cut in cuts:
            parts += (times > cut).to_numpy()
        return parts

    return assign


def _time_counts(table: Table, column: str) -> pl.DataFrame:
    import polars as pl

    counts = pl.DataFrame()
    for chunk in table.chunks([column]):
        times = chunk.frame[column]
        if times.null_count():
            place = chunk.where(int(times.is_null().arg_max() or 0))
            raise DataError(
                f"Column '{column}' must have a time in every row; it is missing in {place}.",
                hint="Drop those rows first.",
            )
        more = (
            chunk.frame.select(pl.col(column).alias("time")).group_by("time").agg(pl.len().cast(pl.Int64).alias("rows"))
        )
        counts = pl.concat([counts, more]).group_by("time").agg(pl.col("rows").sum()) if len(counts) else more
    if not len(counts):
        raise DataError(f"{table.name} must have rows; got none.")
    return counts

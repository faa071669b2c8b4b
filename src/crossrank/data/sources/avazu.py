"""Avazu's Click-Through Rate Prediction: ten days of mobile ads, 40 million rows with a header line.

The hour is written YYMMDDHH; it becomes the two columns ``hour_of_day`` (00 to 23) and ``weekday`` (1 is Monday).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from crossrank.data.delimited import OnError
from crossrank.data.parts import Part, Piece
from crossrank.data.sources.locate import locate
from crossrank.data.splits import SplitSettings
from crossrank.data.table import Table, open_table
from crossrank.errors import DataError, SchemaError, listing
from crossrank.schema import Categorical, Label, Schema

SITE_AND_APP = ("site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category")
DEVICE = ("device_id", "device_ip", "device_model", "device_type", "device_conn_type")
ANONYMOUS = tuple(f"C{index}" for index in range(14, 22))
GIVEN = ("C1", "banner_pos", *SITE_AND_APP, *DEVICE, *ANONYMOUS)
COLUMNS = ("id", "click", "hour", *GIVEN)
DERIVED = {
    "hour_of_day": pl.col("hour").str.extract(r"^\d{6}([01]\d|2[0-3])$"),
    "weekday": pl.col("hour").str.head(6).str.to_date("%y%m%d", strict=False).dt.weekday().cast(pl.String),
}
PUBLISHER = "Kaggle offers it as train.gz of the competition 'Click-Through Rate Prediction' (avazu-ctr-prediction)."

# Not in the paper; published comparisons divide it at random.
SPLIT = SplitSettings(method="random", fractions=(0.8, 0.1, 0.1))


def open_set(path: Path | str, *, on_error: OnError = "raise") -> Table:
    """The training file as a table, from the file, its gzip, or the folder it lies in."""
    table = open_table(locate(path, ("train.gz", "train.csv", "train"), PUBLISHER), on_error=on_error)
    if missing := [name for name in COLUMNS if name not in table.columns]:
        raise SchemaError(f"Avazu's training file has {len(COLUMNS)} columns; {table.name} lacks {listing(missing)}.")
    return Table([_WithDerived(part) for part in table.parts])


def schema(*, min_count: int = 2) -> Schema:
    """Every column but the row's id, and the hour as time of day and weekday.

    Args:
        min_count: categories seen less often in training share one id; most devices are seen once.
    """
    return Schema(
        [Categorical(name=name, min_count=min_count) for name in (*DERIVED, *GIVEN)],
        Label(name="click"),
    )


class _WithDerived:
    """A part with the columns made of its hour."""

    def __init__(self, part: Part) -> None:
        self._part, self.name, self.unit = part, part.name, part.unit
        self.columns = (*part.columns, *DERIVED)

    def num_rows(self) -> int | None:
        return self._part.num_rows()

    def chunks(self, columns: Sequence[str], rows: int, skipped: Counter[str]) -> Iterator[Piece]:
        derived = {name: DERIVED[name] for name in columns if name in DERIVED}
        needed = [name for name in columns if name not in derived]
        if derived and "hour" not in needed:
            needed.append("hour")
        for piece in self._part.chunks(needed, rows, skipped):
            frame = piece.frame.with_columns(**derived)
            for name in derived:
                if frame[name].null_count():
                    row = int(frame[name].is_null().arg_max() or 0)
                    raise DataError(
                        f"Column 'hour' must read YYMMDDHH; got {frame['hour'][row]!r} in {self.unit} "
                        f"{piece.numbers[row]:,} of {self.name}."
                    )
            yield piece._replace(frame=frame.select(columns))

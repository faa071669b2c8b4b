"""Features that are made of a table's column: parts of dates, a column under another name, cells that count as missing.

They are made before anything is encoded, under the names that the encoder looks for, so that a part of a date is then a
category or a number like any other. One rule in two forms that agree: :func:`chunk_with_derived` for columns and
:func:`rows_with_derived` for dictionaries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossrank.data.numbers import Mask, Where
from crossrank.data.on_demand import pl
from crossrank.data.text import text_of_series, text_of_value
from crossrank.errors import DataError
from crossrank.schema import Date, Numeric, Schema
from crossrank.schema.columns import TableFeature
from crossrank.schema.dates import DAY, MINUTE, PER_UNIT, Part, time_of_value

if TYPE_CHECKING:
    from crossrank.data.table import Chunk

Times: TypeAlias = NDArray[np.int64]
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MOST_DAYS = 31
LATEST = 2**47 * 1_000  # microseconds: beyond the year 6000, and far from what 64 bits or a calendar end with
PLAIN_WHOLE = "^[0-9]{1,17}$"
PLAIN_ISO = "^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-5][0-9]:[0-5][0-9](Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])?$"
NAMES: dict[Part, Sequence[str]] = {
    "hour": [str(hour) for hour in range(24)],
    "weekday": WEEKDAYS,
    "month": MONTHS,
    "day_of_year": [f"{month:02d}-{day:02d}" for month in range(1, 13) for day in range(1, MOST_DAYS + 1)],
}


def part_of_times(times: Times, part: Part, reference: int = 0) -> NDArray[Any]:
    """A part of each time: its place among the names of the part, or a number.

    >>> part_of_times(np.array([0, 31 * DAY]), "day_of_year").tolist(), part_of_times(np.array([0]), "weekday").tolist()
    ([0, 31], [3])
    """
    days = (times // DAY).astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    month: Times = months.astype(np.int64) % 12
    day: Times = (days - months).astype(np.int64)
    parts: dict[Part, NDArray[Any]] = {
        "hour": times // (60 * MINUTE) % 24,
        "minute": (times // MINUTE % 1440).astype(np.float64),
        "weekday": (times // DAY + 3) % 7,  # 1970 began on a Thursday
        "month": month,
        "day_of_year": MOST_DAYS * month + day,
        "age": (reference - times) / DAY,
    }
    return parts[part]


def with_derived(frame: pl.DataFrame, schema: Schema, where: Where) -> pl.DataFrame:
    """A frame with a column for each derived feature of a schema, too.

    Raises:
        DataError: for a date that cannot be read, with its place.
    """
    made = [series for column in schema.derived for series in _of_series(frame[column.input], column, where)]
    return frame.with_columns(made) if made else frame


def chunk_with_derived(chunk: Chunk, schema: Schema) -> Chunk:
    """The same of a chunk, some columns of which may have come as words."""
    if not schema.derived:
        return chunk
    read = {column.input: chunk.column(column.input) for column in schema.derived}
    frame = with_derived(chunk.frame.with_columns(read.values()), schema, chunk.where)
    taken = set(frame.columns)
    words = {name: column for name, column in chunk.words.items() if name not in taken}
    return dataclasses.replace(chunk, frame=frame, words=words)


def rows_with_derived(rows: Sequence[Mapping[str, object]], schema: Schema) -> Sequence[Mapping[str, object]]:
    """The same of dictionaries, without polars."""
    if not schema.derived:
        return rows
    made: dict[str, Sequence[object]] = {}
    for column in schema.derived:
        cells = [row[column.input] for row in rows]
        if isinstance(column, Date):
            made |= _of_cells(cells, column)
        elif isinstance(column, Numeric):
            made[column.name] = cells
        else:
            markers = column.markers
            made[column.name] = [None if _is_marked(cell, markers) else cell for cell in cells]
    return [dict(row) | {name: cells[place] for name, cells in made.items()} for place, row in enumerate(rows)]


def parse_dates(column: pl.Series, date: Date) -> tuple[Times, Mask, Mask]:
    """The times of a column, which rows miss one, and which cannot be read.

    What polars reads exactly as :func:`time_of_value` does is read by it, else each distinct value by the latter.
    """
    if column.dtype.is_nested():
        raise DataError(
            f"Column '{column.name}' must hold dates or times; got {column.dtype}.", hint="Convert it first."
        )
    quick = _read_quickly(column, date)
    if not quick.null_count():
        return quick.to_numpy(), np.zeros(len(quick), bool), np.zeros(len(quick), bool)
    rest = column.filter(quick.is_null())
    distinct = (rest.fill_nan(None) if rest.dtype.is_float() else rest).unique()
    read, absent, unread = _read(distinct.to_list(), date)
    table = pl.DataFrame({"value": distinct, "place": np.arange(len(distinct))})
    joined = rest.to_frame("value").join(table, on="value", how="left", maintain_order="left", nulls_equal=True)
    rows, places = quick.is_null().to_numpy(), joined["place"].to_numpy()
    times, missing, bad = quick.fill_null(0).to_numpy().copy(), np.zeros(len(quick), bool), np.zeros(len(quick), bool)
    times[rows], missing[rows], bad[rows] = read[places], absent[places], unread[places]
    return times, missing, bad


def _read_quickly(column: pl.Series, date: Date) -> pl.Series:
    """The times of the plain cells of a column; null for others."""
    kind, unit = column.dtype, PER_UNIT.get(date.format)
    if kind in (pl.Date, pl.Datetime):
        clock = column.dt.replace_time_zone(None) if kind == pl.Datetime else column
        return clock.cast(pl.Datetime("us")).to_physical()
    if not date.missing and kind == pl.String and date.format == "iso":
        plain = column.set(~column.str.contains(PLAIN_ISO).fill_null(False), None)
        moments = plain.str.slice(0, 19).str.replace("T", " ", literal=True)
        return moments.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", strict=False).to_physical()
    if not date.missing and unit is not None and unit >= 1 and (kind.is_integer() or kind == pl.String):
        whole = column if kind != pl.String else column.set(~column.str.contains(PLAIN_WHOLE).fill_null(False), None)
        numbers = whole.cast(pl.Int64, strict=False)
        return numbers.set(~numbers.is_between(0, LATEST // int(unit)), None) * int(unit)
    return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(column))


def _read(values: Iterable[object], date: Date) -> tuple[Times, Mask, Mask]:
    times: list[int | None] = []
    bad = []
    for place, value in enumerate(values):
        try:
            times.append(time_of_value(value, date))
        except (ValueError, OverflowError):
            times.append(None)
            bad.append(place)
    unread = np.zeros(len(times), bool)
    unread[bad] = True
    return np.array([time or 0 for time in times], np.int64), np.array([time is None for time in times], bool), unread


def _of_series(column: pl.Series, meaning: TableFeature, where: Where) -> list[pl.Series]:
    if isinstance(meaning, Date):
        times, missing, bad = parse_dates(column, meaning)
        if bad.any():
            raise _not_a_time(column[int(bad.argmax())], meaning, where(int(bad.argmax())))
        made = []
        for part in meaning.parts:
            values = pl.Series(part_of_times(times, part, meaning.reference_time))
            values = pl.Series(NAMES[part], dtype=pl.String).gather(values) if part in NAMES else values
            made.append(values.set(pl.Series(missing), None).alias(meaning.feature(part)))
        return made
    if meaning.missing and not isinstance(meaning, Numeric) and not column.dtype.is_nested():
        column = text_of_series(column)
        marked = column.str.strip_chars().str.to_lowercase().is_in(list(meaning.markers))
        column = column.set(marked.fill_null(False), None)
    return [column.alias(meaning.name)]


def _of_cells(cells: Sequence[object], date: Date) -> dict[str, Sequence[object]]:
    times, missing, bad = _read(cells, date)
    if bad.any():
        raise _not_a_time(cells[int(bad.argmax())], date, f"row {bad.argmax() + 1:,}")
    made: dict[str, Sequence[object]] = {}
    for part in date.parts:
        values = part_of_times(times, part, date.reference_time).tolist()
        named = [NAMES[part][place] for place in values] if part in NAMES else values
        made[date.feature(part)] = [None if absent else value for value, absent in zip(named, missing, strict=True)]
    return made


def _is_marked(cell: object, markers: Set[str]) -> bool:
    if isinstance(cell, list | tuple | set | frozenset | np.ndarray):
        return False
    text = text_of_value(cell)
    return text is not None and text.strip().lower() in markers


def _not_a_time(value: object, date: Date, place: str) -> DataError:
    return DataError(
        f"Column '{date.input}' must hold dates or times in the format {date.format}; got {repr(value)[:60]} in "
        f"{place}.",
        hint='Leave the cell empty where it is missing, list the text under "missing" of the column in the schema, or '
        'give the column another "format" there.',
    )

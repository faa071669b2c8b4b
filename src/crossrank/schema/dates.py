"""Dates and times: how a cell is read, and which of its parts a model sees.

A time is its microseconds since 1970 on the clock that is written: a zone is read over, not converted, so that an hour
is the hour that people had. A date is its midnight.

| part | becomes | drafted where the times |
| --- | --- | --- |
| hour | a category, 0 to 23 | are of several hours of the day |
| minute | a number, the minute of the day | are of several minutes of an hour |
| weekday | a category, Mon to Sun | span two weeks |
| month | a category, Jan to Dec | span a year |
| day_of_year | a category, 01-01 to 12-31 | span a year |
| age | a number, the days up to a reference | span a day |
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from crossrank.config import setting
from crossrank.errors import SchemaError, listing
from crossrank.schema.cells import TableColumn

Part: TypeAlias = Literal["hour", "minute", "weekday", "month", "day_of_year", "age"]
NUMBERS: tuple[Part, ...] = ("minute", "age")  # the other parts are categories
PER_UNIT = {"unix": 1_000_000, "unix-ms": 1_000, "unix-us": 1, "unix-ns": 0.001}  # microseconds
MINUTE = 60 * 1_000_000
DAY = 24 * 60 * MINUTE
YEAR_DAYS = 360  # a year of workdays or of whole weeks may have a few days less
EPOCH = datetime.datetime(1970, 1, 1)
PANDAS_MISSING = ("NaTType", "NAType")

ISO = re.compile(r"\d{4}(-?)\d\d\1\d\d([T ]\d\d.*)?", re.ASCII)
CLOCK = r"([T ]\d\d?:\d\d.*)?"
WRITTEN = (  # what a text looks like that has one of these formats, {} being a mark
    (re.compile(rf"\d{{4}}([-/.])\d\d?\1\d\d?{CLOCK}", re.ASCII), ("%Y{}%m{}%d",)),
    (re.compile(rf"\d\d?([-/.])\d\d?\1\d{{4}}{CLOCK}", re.ASCII), ("%d{}%m{}%Y", "%m{}%d{}%Y")),
    (re.compile(rf"\d\d?([- ])[A-Za-z]+\1\d{{4}}{CLOCK}", re.ASCII), ("%d{}%b{}%Y", "%d{}%B{}%Y")),
    (re.compile(rf"[A-Za-z]+( )\d\d?,\1\d{{4}}{CLOCK}", re.ASCII), ("%b{}%d,{}%Y", "%B{}%d,{}%Y")),
)
CLOCKS = ("", *(f"{gap}{clock}" for gap in " T" for clock in ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p")))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Date(TableColumn):
    """A column with a date or a time, of which a model sees some parts: ``time.hour``, ``time.weekday``.

    Dates of polars, pandas and Python are read whatever the format is.
    """

    kind: ClassVar[str] = "date"
    format: str = setting("iso", "iso, unix (seconds), unix-ms, unix-us, unix-ns, or as strptime has it: %d/%m/%Y")
    parts: tuple[Part, ...] = setting(("hour", "weekday"), "what is made of it")
    reference: str | None = setting(None, "the time in ISO 8601 up to which an age is counted in days")
    encodings: Mapping[str, str] = setting({}, "of the parts that are numbers, as Numeric has it; left out, 'auto'")

    def __post_init__(self) -> None:
        if not self.parts or len(set(self.parts)) < len(self.parts):
            raise SchemaError(f"The parts of column '{self.name}' must be some different ones; got {self.parts}.")
        for part in self.encodings:
            if part not in NUMBERS:
                raise SchemaError(
                    f"Encodings of column '{self.name}' must be those of {listing(NUMBERS)}; got '{part}'."
                )
        if self.format != "iso" and self.format not in PER_UNIT and "%" not in self.format:
            raise SchemaError(
                f"The format of column '{self.name}' must be iso, unix, unix-ms, unix-us, unix-ns, or have the letters "
                f"of strptime; got '{self.format}'.",
                hint="31/01/2026 10:30 is %d/%m/%Y %H:%M.",
            )
        if "age" in self.parts and self.reference is None:
            raise SchemaError(
                f"An age needs a time up to which it is counted; column '{self.name}' has no reference.",
                hint='Write "reference": "2026-01-31", for example the last day of the table.',
            )
        try:
            self.reference_time  # noqa: B018
        except ValueError:
            raise SchemaError(
                f"The reference of column '{self.name}' must be a time in ISO 8601; got '{self.reference}'.",
                hint="Such as 2026-01-31 or 2026-01-31T10:30.",
            ) from None

    @property
    def reference_time(self) -> int:
        """The reference in microseconds; 1970 where there is none."""
        return 0 if self.reference is None else _of_text(self.reference, "iso")

    def feature(self, part: Part) -> str:
        """The name of a part."""
        return f"{self.name}.{part}"


def time_of_value(value: Any, date: Date) -> int | None:
    """One cell as microseconds, None where it is missing.

    >>> time_of_value("1970-01-01T00:00:01+05:00", Date(name="when"))
    1000000
    >>> time_of_value(" 2/1/1970", Date(name="when", format="%d/%m/%Y")) == DAY
    True

    Raises:
        ValueError: for what is no such time.
    """
    if hasattr(value, "item"):  # NumPy's
        value = (value.astype("datetime64[us]") if type(value).__name__ == "datetime64" else value).item()
    if value is None or type(value).__name__ in PANDAS_MISSING or value != value:
        return None
    if isinstance(value, datetime.datetime):
        return _of_moment(value)
    if isinstance(value, datetime.date):
        return (value.toordinal() - EPOCH.toordinal()) * DAY
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(value)
    text = str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
    if not text or (date.missing and text.lower() in date.markers):
        return None
    return _of_text(text, date.format)


def _of_text(text: str, form: str) -> int:
    if form in PER_UNIT:
        return _of_number(text, PER_UNIT[form])
    if form == "iso":
        if not ISO.fullmatch(text):  # Python alone would read 1512120012 as 1512-12-12 12:00
            raise ValueError(text)
        moment = datetime.datetime.fromisoformat(text)
    else:
        moment = datetime.datetime.strptime(text, form)
    return _of_moment(moment)


def _of_moment(moment: datetime.datetime) -> int:
    seconds = 3600 * moment.hour + 60 * moment.minute + moment.second
    return (moment.toordinal() - EPOCH.toordinal()) * DAY + 1_000_000 * seconds + moment.microsecond


def _of_number(text: str, unit: float) -> int:
    try:
        time = math.floor(int(text) * unit) if unit >= 1 else int(text) // 1000
    except ValueError:
        time = math.floor(float(text) * unit)  # OverflowError for infinity, ValueError for NaN
    EPOCH + datetime.timedelta(microseconds=time)  # refuses what no calendar has
    return time


class TimeRange:
    """The times of a column, as far as they decide which parts it supports."""

    def __init__(self) -> None:
        self._ends: set[int] = set()
        self._minutes: set[int] = set()  # of the day

    def add(self, times: Iterable[int]) -> TimeRange:
        some = set(times)
        if some:
            self._ends = {min(self._ends | some), max(self._ends | some)}
            self._minutes |= {time // MINUTE % 1440 for time in some}
        return self

    def decide(self, date: Date) -> Date | str:
        """The column with the parts that these times support, or why it is left out."""
        days = (max(self._ends) - min(self._ends)) / DAY
        supported: dict[Part, bool] = {
            "hour": len({minute // 60 for minute in self._minutes}) > 1,
            "minute": len({minute % 60 for minute in self._minutes}) > 1,
            "weekday": days >= 14,
            "month": days >= YEAR_DAYS,
            "day_of_year": days >= YEAR_DAYS,
            "age": days >= 1,
        }
        parts = tuple(part for part, is_so in supported.items() if is_so)
        if not parts:
            return "times within one minute"
        last = (EPOCH + datetime.timedelta(microseconds=max(self._ends))).isoformat().removesuffix("T00:00:00")
        return dataclasses.replace(date, parts=parts, reference=last if supported["age"] else None)


def formats_of(texts: Sequence[str]) -> list[str]:
    """The formats in which all texts can be read; several where day and month cannot be told apart."""
    if all(ISO.fullmatch(text) and _is_read(text, "iso") for text in texts):
        return ["iso"]
    for look, orders in WRITTEN:
        if found := look.fullmatch(texts[0]):
            forms = [order.format(*[found[1]] * order.count("{}")) + clock for order in orders for clock in CLOCKS]
            fitting = [form for form in forms if all(_is_read(text, form) for text in texts)]
            return fitting if "%m" in orders[0] else fitting[:1]  # May is %b and %B
    return []


def looks_like_a_date(value: Any) -> bool:
    """Whether a value is a date or a time, or a text that may be one."""
    if isinstance(value, str):
        return any(look.fullmatch(value.strip()) for look in (ISO_TEXT, *(look for look, _ in WRITTEN)))
    return isinstance(value, datetime.date | datetime.time | datetime.timedelta)


ISO_TEXT = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d.*)?", re.ASCII)  # 20260131 may also be a number


def _is_read(text: str, form: str) -> bool:
    try:
        _of_text(text, form)
    except (ValueError, OverflowError):
        return False
    return True


def readable_times(values: Iterable[Any], date: Date) -> Iterator[int]:
    """The times of those values that can be read."""
    for value in values:
        try:
            time = time_of_value(value, date)
        except (ValueError, OverflowError):
            continue
        if time is not None:
            yield time

"""What a column seems to mean, as a feature, from its first rows.

The draft errs towards columns that can always be encoded, and the person corrects it. A column becomes

- nothing: one value in all rows; dates and times, of which tomorrow brings new ones; a name for each row (a counter, or
  text or an id that never repeats, the index that pandas writes); vectors, structs and bytes. To use one anyway, write
  it into the schema;
- multivalent: lists, or text whose pieces between "|", ";" or "," repeat far more than whole cells do;
- numeric: numbers, except whole ones that are codes; with a logarithm where they are not negative and strongly skewed;
- categorical: everything else. Where many values are seen once, values never seen will come too, and those seen once
  train the id for the unseen (``min_count=2``).

Numbers that stand as text, as in CSV files, count as numbers, and texts such as NA among them as missing. Rules about
repetition wait for 50 rows.
"""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import chain, islice
from statistics import fmean
from typing import Any

from crossrank.errors import SchemaError, listing
from crossrank.schema.columns import Categorical, Column, Multivalent, Numeric

MAX_ROWS = 10_000
ENOUGH_ROWS = 50  # fewer say little about what repeats
MAX_CODES = 32  # whole numbers with at most this many values are codes: hours, days, grades

CODE_WORDS = {"id", "ids", "uid", "userid", "itemid", "code", "type", "category", "zip"}
TIME_WORDS = {"time", "timestamp", "ts", "date", "datetime", "at"}
MARKERS = {"na", "n/a", "nan", "null", "none", "?", "-"}  # what people write for a missing number, in any case
SPLIT_NAMES = {
    "train": 0, "training": 0, "valid": 1, "validation": 1, "val": 1, "dev": 1, "test": 2, "testing": 2
}  # fmt: skip

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
PADDED = re.compile(r"0\d+", re.ASCII)  # 007, a code and not a number
WRITTEN_NUMBER = re.compile(  # 3,14 and 1,234,567.5 and $12 and 5 %
    r"[+-]?\s?[$€£¥]?\s?[+-]?(\d+([.,]\d+)?|\d{1,3}([.,' ]\d{3})+([.,]\d+)?)\s?[%$€£¥]?", re.ASCII
)
INDEX_NAME = re.compile(r"__index_level_\d+__|(Unnamed: \d+)?", re.ASCII)  # how pandas names an index without a name
CLOCK = r"([T ]\d\d?:\d\d.*)?"
YEAR_FIRST = re.compile(rf"\d{{4}}([-/.])\d\d\1\d\d{CLOCK}", re.ASCII)  # 2026-01-31
YEAR_LAST = re.compile(rf"\d\d?([-/.])\d\d?\1\d{{4}}{CLOCK}", re.ASCII)  # 31/01/2026: not in order of time as text


def read_columns(table: Any) -> dict[str, list[Any]]:
    """The first rows of a table, with None for what is missing."""
    if not isinstance(table, Mapping) and not hasattr(table, "columns"):
        raise SchemaError(f"A table must be a data frame or a mapping from names to lists; got {type(table).__name__}.")
    names = list(table if isinstance(table, Mapping) else table.columns)
    for name in names:
        if not isinstance(name, str) or names.count(name) > 1:
            raise SchemaError(f"Columns must have different names of text; got {name!r}.", hint="Rename it first.")
    columns = {name: [_cell(value) for value in islice(table[name], MAX_ROWS)] for name in names}
    if not any(columns.values()):
        raise SchemaError(f"A table needs rows to draft a schema from; got none, and the columns {listing(names)}.")
    return columns


def _cell(value: Any) -> Any:
    """A plain Python value; None for a missing one, a list for anything that holds several."""
    if hasattr(value, "to_list"):  # a polars series inside a list column
        value = value.to_list()
    elif hasattr(value, "tolist"):  # a NumPy scalar or array
        value = value.tolist()
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    if type(value).__name__ in ("NAType", "NaTType"):  # what pandas has for missing cannot be compared
        return None
    return None if value == "" or (isinstance(value, float) and math.isnan(value)) else value


def draft_column(name: str, cells: list[Any]) -> Column | str:
    """The column's meaning, or why it should be left out."""
    values = [cell for cell in cells if cell is not None]
    if all(cell == cells[0] for cell in cells):
        return "one value only"
    if INDEX_NAME.fullmatch(name) and (name.startswith("__") or _are_whole_and_differ(values)):
        return "an index of pandas"
    if any(isinstance(value, list) for value in values):
        return _draft_lists(name, [value for value in values if isinstance(value, list)])
    if any(isinstance(value, dict | bytes) for value in values):
        return "structs or bytes"
    marks = {value for value in set(values) if is_marker(value)}
    present = [value for value in values if value not in marks] if marks else values
    if present and all(_is_time(value) for value in present):
        return "dates or times"
    numbers = numbers_of(present)
    if numbers:
        return _draft_numbers(name, values, present, numbers)
    separator = _separator(values) if all(isinstance(value, str) for value in values) else None
    if separator is not None:
        pieces = chain.from_iterable(value.split(separator) for value in values)
        return Multivalent(name=name, separator=separator, min_count=_min_count(Counter(filter(None, pieces))))
    return _categorical(name, Counter(values))


def _draft_lists(name: str, lists: list[list[Any]]) -> Column | str:
    pieces = [_cell(piece) for piece in chain.from_iterable(lists)]
    if any(isinstance(piece, list | dict) or (isinstance(piece, float) and not piece.is_integer()) for piece in pieces):
        return "vectors or structs"
    return Multivalent(name=name, min_count=_min_count(Counter(pieces)))


def _draft_numbers(name: str, values: list[Any], present: list[Any], numbers: list[float]) -> Column | str:
    """The same of a column of numbers: all its values, those that are no markers, and the finite numbers."""
    words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
    counts = Counter(present)
    if words & TIME_WORDS and all(_is_clock(number) for number in numbers):
        return "dates or times"
    whole = all(number.is_integer() for number in numbers)
    if whole and len(counts) == len(present) == max(numbers) - min(numbers) + 1 >= ENOUGH_ROWS:
        return "a counter"
    padded = any(isinstance(value, str) and PADDED.fullmatch(value) for value in present)
    if len(counts) == 1 or (whole and (words & CODE_WORDS or padded or few(len(counts), len(present)))):
        return _categorical(name, Counter(values))
    missing = tuple(sorted({value.strip() for value in values if is_marker(value)}))
    return Numeric(name=name, log_shift=1.0 if _is_skewed(numbers) else None, missing=missing)


def few(distinct: int, rows: int) -> bool:
    """Whether so many different whole numbers in so many rows are codes."""
    return distinct <= max(2, min(MAX_CODES, rows // 4))


def number_note(name: str, cells: list[Any], draft: Column | str) -> str:
    """What to say of a column of text most of whose cells look like numbers, though it was not drafted so; or nothing.

    >>> number_note("age", ["31", "unknown", "40.5", "29"], Categorical(name="age"))[:69]
    "'age' is categorical, though most of its cells look like numbers: 1 o"
    """
    if isinstance(draft, Numeric):
        return ""
    counts = Counter(cell for cell in cells if isinstance(cell, str))
    texts = {text: count for text, count in counts.items() if not is_marker(text)}
    plain = {text for text in texts if NUMBER.fullmatch(text.strip())}
    others = [text for text in texts if text not in plain]  # as they come
    written = {text for text in others if WRITTEN_NUMBER.fullmatch(text.strip())}
    if not others or 2 * sum(texts[text] for text in (*plain, *written)) <= sum(texts.values()):
        return ""
    amounts = [cell for cell in cells if isinstance(cell, str) and cell in plain]
    if not written and (isinstance(draft, Multivalent) or not _are_amounts(name, amounts)):
        return ""
    remedy = (
        "Write them as 1234.5 in the table"
        if written
        else f'Empty those cells, or make it numeric in the schema, with {listing(others, most=3)} under "missing",'
    )
    return (
        f"'{name}' is {'left out' if isinstance(draft, str) else draft.kind}, though most of its cells look like "
        f"numbers: {sum(texts[text] for text in others):,} of {sum(texts.values()):,} cannot be read as one, the first "
        f"of them {others[0][:60]!r} in row {cells.index(others[0]) + 1:,}. {remedy} to have it numeric."
    )


def _are_amounts(name: str, texts: list[str]) -> bool:
    """Whether numbers, were they alone, would be numeric: not codes, times or a counter."""
    return isinstance(_draft_numbers(name, texts, texts, numbers_of(texts)), Numeric)


def _categorical(name: str, counts: Counter[Any]) -> Column | str:
    if len(counts) == counts.total() >= ENOUGH_ROWS:
        return "never repeats"
    return Categorical(name=name, min_count=_min_count(counts))


def _min_count(counts: Counter[Any]) -> int:
    """2 where new values will come: their share is about that of rows with a value seen once (Good and Turing)."""
    singles = sum(count == 1 for count in counts.values())
    return 2 if counts.total() >= ENOUGH_ROWS and singles > 0.01 * counts.total() else 1


def is_marker(value: Any) -> bool:
    """Whether a text stands for a missing number."""
    return isinstance(value, str) and value.strip().lower() in MARKERS


def _are_whole_and_differ(values: list[Any]) -> bool:
    numbers = numbers_of(values)
    return bool(numbers) and all(number.is_integer() for number in numbers) and len(set(numbers)) == len(values)


def numbers_of(values: list[Any]) -> list[float]:
    """The finite numbers, or none where any value is not a number."""
    numbers = []
    for value in values:
        if isinstance(value, bool) or not (
            isinstance(value, int | float | Decimal) or (isinstance(value, str) and NUMBER.fullmatch(value.strip()))
        ):
            return []
        numbers.append(float(value))
    return [number for number in numbers if math.isfinite(number)]


def _is_time(value: Any) -> bool:
    if isinstance(value, str):
        return (YEAR_FIRST.fullmatch(value) or YEAR_LAST.fullmatch(value)) is not None
    return isinstance(value, datetime.date | datetime.time | datetime.timedelta)


def _is_clock(number: float) -> bool:
    """Whether a number may be a Unix time (2001 to 2039, in s, ms, µs or ns) or a day such as 20141021."""
    return any(1e9 * unit <= number < 2.2e9 * unit for unit in (1, 1e3, 1e6, 1e9)) or 19e6 <= number < 21e6


def _is_skewed(numbers: list[float]) -> bool:
    """Non-negative, beyond 10 (below, a logarithm changes little), and with a skewness above an exponential's 2."""
    top = max(numbers)
    if min(numbers) < 0 or top < 10:
        return False
    mean = fmean(number / top for number in numbers)
    variance, third = (fmean((number / top - mean) ** power for number in numbers) for power in (2, 3))
    return third > 2 * variance * math.sqrt(variance)


def _separator(texts: list[str]) -> str | None:
    """What stands between the values of a cell, if cells hold several that repeat more than the cells themselves."""
    if sum(WRITTEN_NUMBER.fullmatch(text.strip()) is not None for text in texts) >= 0.9 * len(texts):
        return None
    for mark in "|;,":
        several = [text for text in texts if mark in text]
        if len(several) < max(1, 0.1 * len(texts)):
            continue
        spaced = all(text.count(mark) == text.count(mark + " ") for text in several)
        separator = mark + " " if spaced else mark
        cells = [list(filter(None, text.split(separator))) for text in texts]
        if mark == "," and len({len(cell) for cell in cells}) == 1:
            continue  # always as many pieces: a record such as "Paris, France", not a set
        pieces = Counter(chain.from_iterable(cells))
        if pieces.total() / max(len(pieces), 1) >= 1.5 * len(texts) / len(set(texts)):
            return separator
    return None


def split_of(text: Any) -> int | None:
    """Which split a cell names, whatever its case: 0 train, 1 valid, 2 test; None where it names none."""
    return SPLIT_NAMES.get(text.strip().lower()) if isinstance(text, str) else None


def find_split(columns: Mapping[str, Iterable[Any]]) -> str | None:
    """The column called split, if all its cells name a split.

    >>> find_split({"split": ["train", "Test"], "age": [31, 40]})
    'split'
    """
    named = (name for name in columns if name.lower() == "split")
    return next((name for name in named if all(split_of(cell) is not None for cell in columns[name])), None)

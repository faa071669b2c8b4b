"""What a column seems to mean, as a feature, from its first rows.

The draft errs towards columns that can always be encoded, and the person corrects it. A column becomes

- nothing: one value in all rows; a name for each row (a counter, or text or an id that never repeats, the index that
  pandas writes); vectors, structs and bytes; dates that cannot be told, such as 03/04/2026. To use one anyway, write it
  into the schema;
- date: dates and times, and numbers that are such by their name and size, with the parts that their range supports;
- multivalent: lists, or text whose pieces between "|", ";" or "," repeat far more than whole cells do;
- numeric: numbers, except whole ones that are codes: at most 32 of them, by their name, or by how often each is seen
  (:mod:`crossrank.schema.codes`); with a logarithm where they are not negative and strongly skewed. For a binary label
  or a number, codes with 5 to 32 values in 1,000 rows are numeric too, if no name says otherwise: ids in an order;
- categorical: everything else. Where many values are seen once, values never seen will come too, and those seen once
  train the id for the unseen (``min_count=2``).

Numbers that stand as text, as in CSV files, count as numbers, also as $1,234.50 or 12,5 %, where it is clear what the
marks mean. Texts such as NA among numbers and dates count as missing; among other texts only those that can be nothing
else, such as ?. Rules about repetition wait for 50 rows.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from itertools import chain, islice
from statistics import fmean
from typing import Any

from crossrank.errors import SchemaError, listing
from crossrank.schema import cells as written
from crossrank.schema.codes import MAX_CODES, are_among, are_called_codes, are_names, few, words_of
from crossrank.schema.columns import Categorical, Multivalent, Numeric, TableFeature
from crossrank.schema.dates import PER_UNIT, WRITTEN, Date, TimeRange, formats_of, looks_like_a_date, readable_times

MAX_ROWS = 10_000
ENOUGH_ROWS = 50  # fewer say little about what repeats
MIN_ORDERED, ORDERED_ROWS = 5, 1_000  # codes with so many values, in so many rows, whose order may count

TIME_WORDS = {"time", "timestamp", "ts", "date", "datetime", "at"}
# What people write for what is missing, in any case: among texts, and among numbers and dates
CLEAR_MARKERS = {"?", "n/a", "#n/a", "nan", "null", "<null>", "(null)", "\\n"}
MARKERS = CLEAR_MARKERS | {"na", "n.a.", "none", "nil", "nat", "-", "--", "unknown", "missing"}

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
WRITTEN_NUMBER = re.compile(  # 3,14 and 1,234,567.5 and $12 and 5 %
    r"[+-]?\s?[$€£¥]?\s?[+-]?(\d+([.,]\d+)?|\d{1,3}([.,' ]\d{3})+([.,]\d+)?)\s?[%$€£¥]?", re.ASCII
)
INDEX_NAME = re.compile(r"__index_level_\d+__|(Unnamed: \d+)?", re.ASCII)  # how pandas names an index without a name
DAY_NUMBER = re.compile(r"(19|20)\d{6}", re.ASCII)  # 20141021
YEAR_LAST = WRITTEN[1][0]  # 31/01/2026: not in order of time as text
AMBIGUOUS = "dates whose day and month cannot be told apart"


def read_columns(table: Any) -> dict[str, list[Any]]:
    """The first rows of a table, with None for what is missing."""
    if not isinstance(table, Mapping) and not hasattr(table, "columns"):
        raise SchemaError(f"A table must be a data frame or a mapping from names to lists; got {type(table).__name__}.")
    names = list(table if isinstance(table, Mapping) else table.columns)
    for name, times in Counter(names).items():
        if not isinstance(name, str) or times > 1:
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


def draft_column(name: str, cells: list[Any]) -> TableFeature | str:
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
    missing = tuple(sorted({mark.strip() for mark in marks}))
    if present and all(looks_like_a_date(value) for value in present):
        return _draft_date(name, present, missing)
    numbers = numbers_of(present)
    if numbers:
        return _draft_numbers(name, values, present, numbers)
    texts = [value for value in present if isinstance(value, str)]
    if texts and len(texts) == len(present) and (decimal := decimal_of(texts)):
        plain = [str(written.plain_number(text, decimal)) for text in texts]
        drafted = _draft_numbers(name, plain, plain, numbers_of(plain))
        if isinstance(drafted, Numeric):
            return replace(drafted, decimal=decimal, missing=missing)
    clear = tuple(mark for mark in missing if mark.lower() in CLEAR_MARKERS)
    values = [value for value in values if not (isinstance(value, str) and value.strip() in clear)]
    separator = _separator(values) if values and all(isinstance(value, str) for value in values) else None
    if separator is not None:
        pieces = chain.from_iterable(value.split(separator) for value in values)
        min_count = _min_count(Counter(filter(None, pieces)))
        return Multivalent(name=name, separator=separator, min_count=min_count, missing=clear)
    return _categorical(name, Counter(values), missing=clear)


def _draft_date(name: str, values: list[Any], missing: tuple[str, ...]) -> TableFeature | str:
    """The same of a column of dates and times."""
    texts = list({value.strip() for value in values if isinstance(value, str)})
    if not texts:
        return _date(name, "iso", values, missing)
    forms = formats_of(texts) if len(texts) == len(set(values)) else []
    if len(forms) > 1:
        return AMBIGUOUS
    return _date(name, forms[0], values, missing) if forms else "dates that are not all written in one known way"


def _date(name: str, form: str, values: list[Any], missing: tuple[str, ...]) -> TableFeature | str:
    date = Date(name=name, format=form, missing=missing)
    times = list(readable_times(values, date))
    return TimeRange().add(times).decide(date) if times else "times of day or durations"


def date_note(name: str, cells: list[Any], draft: TableFeature | str) -> str:
    """What to ask of a column of dates whose day and month cannot be told apart; else nothing."""
    if draft != AMBIGUOUS:
        return ""
    texts = [cell.strip() for cell in cells if isinstance(cell, str) and not is_marker(cell)]
    day_first, month_first = formats_of(texts)[:2]
    return (
        f"'{name}' is left out: its dates, such as {texts[0]!r}, have no day above 12, so it is not clear whether the "
        "day or the month comes first. Write "
        f'{{"kind": "date", "name": "{name}", "format": "{day_first}"}} '
        f'(day first) or "{month_first}" (month first) into the features of the schema to have it.'
    )


def decimal_of(texts: list[str]) -> written.DecimalMark | None:
    """The decimal mark with which all texts are numbers as people write them; None where none is, or both are."""
    both = {mark: [written.plain_number(text, mark) for text in texts] for mark in written.WRITTEN}
    fitting = {mark: numbers for mark, numbers in both.items() if None not in numbers}
    if len(fitting) == 2 and fitting["."] != fitting[","]:
        return None
    return next(iter(fitting), None)


def _draft_lists(name: str, lists: list[list[Any]]) -> TableFeature | str:
    pieces = [_cell(piece) for piece in chain.from_iterable(lists)]
    if any(isinstance(piece, list | dict) or (isinstance(piece, float) and not piece.is_integer()) for piece in pieces):
        return "vectors or structs"
    return Multivalent(name=name, min_count=_min_count(Counter(pieces)))


def _draft_numbers(name: str, values: list[Any], present: list[Any], numbers: list[float]) -> TableFeature | str:
    """The same of a column of numbers: all its values, those that are no markers, and the finite numbers."""
    counts = Counter(present)
    missing = tuple(sorted({value.strip() for value in values if is_marker(value)}))
    if form := _clock(present, numbers, named=bool(words_of(name) & TIME_WORDS)):
        return _date(name, form, present, missing)
    whole = all(number.is_integer() for number in numbers)
    if whole and len(counts) == len(present) == max(numbers) - min(numbers) + 1 >= ENOUGH_ROWS:
        return "a counter"
    if len(counts) == 1 or (
        whole and (are_called_codes(name, present) or few(len(counts), len(present)) or are_names(numbers))
    ):
        return _categorical(name, counts, missing=missing)
    return Numeric(name=name, log_shift=1.0 if _is_skewed(numbers) else None, missing=missing)


def as_names(
    drafts: Mapping[str, TableFeature | str], columns: Mapping[str, list[Any]]
) -> dict[str, TableFeature | str]:
    """Of columns drafted as numbers those that are names, since columns drafted as categorical have such names."""
    names, others = [], {}
    for name, draft in drafts.items():
        values = [cell for cell in columns[name] if cell is not None and not is_marker(cell)]
        numbers = set(numbers_of(values)) if isinstance(draft, Categorical | Numeric) else set()
        if not numbers or not all(number.is_integer() for number in numbers):
            continue
        if isinstance(draft, Categorical):
            names.append(numbers)
        elif isinstance(draft, Numeric):
            others[name] = numbers, Counter(values), draft.missing
    return {
        name: _categorical(name, counts, missing=missing)
        for name, (numbers, counts, missing) in others.items()
        if are_among(numbers, names)
    }


def in_order(column: TableFeature, cells: list[Any]) -> Numeric | None:
    """The same column with the order of its values beside their ids, if they are whole numbers that may have one."""
    if not isinstance(column, Categorical) or len(cells) < ORDERED_ROWS:
        return None
    present = [cell for cell in cells if cell is not None and not is_marker(cell)]
    distinct, named = set(present), are_called_codes(column.name, present)
    if named or not MIN_ORDERED <= len(distinct) <= MAX_CODES or len(numbers_of(list(distinct))) < len(distinct):
        return None
    return Numeric(name=column.name, encoding="scalar+values", missing=column.missing)


def number_note(name: str, cells: list[Any], draft: TableFeature | str) -> str:
    """What to say of a column of text most of whose cells look like numbers, though it was not drafted so; or nothing.

    >>> number_note("age", ["31", "no idea", "40.5", "29"], Categorical(name="age"))[:69]
    "'age' is categorical, though most of its cells look like numbers: 1 o"
    """
    if isinstance(draft, Numeric):
        return ""
    counts = Counter(cell for cell in cells if isinstance(cell, str))
    texts = {text: count for text, count in counts.items() if not is_marker(text)}
    plain = {text for text in texts if NUMBER.fullmatch(text.strip())}
    others = [text for text in texts if text not in plain]  # as they come
    spelled = {text for text in others if WRITTEN_NUMBER.fullmatch(text.strip())}
    if not others or 2 * sum(texts[text] for text in (*plain, *spelled)) <= sum(texts.values()):
        return ""
    amounts = [cell for cell in cells if isinstance(cell, str) and cell in plain]
    if not spelled and (isinstance(draft, Multivalent) or not _are_amounts(name, amounts)):
        return ""
    remedy = (
        'Make it numeric in the schema, with "decimal": "." or ",", whichever its decimal mark is,'
        if spelled and any(all(written.plain_number(text, mark) for text in texts) for mark in written.WRITTEN)
        else "Write them as 1234.5 in the table"
        if spelled
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


def _categorical(name: str, counts: Counter[Any], *, missing: tuple[str, ...] = ()) -> TableFeature | str:
    if len(counts) == counts.total() >= ENOUGH_ROWS:
        return "never repeats"
    return Categorical(name=name, min_count=_min_count(counts), missing=missing)


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


def _clock(values: list[Any], numbers: list[float], *, named: bool) -> str | None:
    """The format of numbers that are days such as 20141021, or by their name Unix times (2001 to 2039)."""
    if all(DAY_NUMBER.fullmatch(text) for text in {f"{number:.0f}" for number in numbers}):
        days = list({f"{number:.0f}" for number in numbers})
        return "%Y%m%d" if (named or len(numbers) >= ENOUGH_ROWS) and formats_of(days) == ["iso"] else None
    units = [form for form, unit in PER_UNIT.items() if all(1e15 <= number * unit < 2.2e15 for number in numbers)]
    return units[0] if named and units else None


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

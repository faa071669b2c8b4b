"""Draft the meaning of each column by looking at a table's first rows.

The draft errs towards columns that can always be encoded, and the person corrects it. A column becomes

- the label: the given name, or the first of label, click, clicked, is_click, target, y that is there;
- the weight: sample_weight or weight, if each row has a number that is not negative;
- the group: query_id, qid, session_id, request_id or group, if some value repeats; it is then not a feature;
- nothing: one value in all rows; dates and times, of which tomorrow brings new ones; a name for each row (a counter, or
  text or an id that never repeats); vectors, structs and bytes. To use one anyway, write it into the schema;
- multivalent: lists, or text whose pieces between "|", ";" or "," repeat far more than whole cells do;
- numeric: numbers, except whole ones that are codes; with a logarithm where they are not negative and strongly skewed;
- categorical: everything else. Where many values are seen once, values never seen will come too, and those seen once
  train the id for the unseen (``min_count=2``).

Numbers that stand as text, as in CSV files, count as numbers. Rules about repetition wait for 50 rows.
"""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import chain, islice
from statistics import fmean
from typing import Any

from crossrank.errors import SchemaError, did_you_mean, listing
from crossrank.schema.columns import Categorical, Column, Label, LabelKind, Multivalent, Numeric

MAX_ROWS = 10_000
ENOUGH_ROWS = 50  # fewer say little about what repeats
MAX_CODES = 32  # whole numbers with at most this many values are codes: hours, days, grades

LABEL_NAMES = ("label", "click", "clicked", "is_click", "target", "y")
WEIGHT_NAMES = ("sample_weight", "weight")
GROUP_NAMES = ("query_id", "qid", "session_id", "request_id", "group")
CODE_WORDS = {"id", "ids", "uid", "userid", "itemid", "code", "type", "category", "zip"}
TIME_WORDS = {"time", "timestamp", "ts", "date", "datetime", "at"}

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
PADDED = re.compile(r"0\d+", re.ASCII)  # 007, a code and not a number
GROUPED_DIGITS = re.compile(r"[+-]?\d+(,\d+)?|[+-]?\d{1,3}(,\d{3})*(\.\d+)?", re.ASCII)  # 3,14 and 1,234,567.5
ISO_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?", re.ASCII)


def infer_columns(table: Any, *, label: str | None = None) -> tuple[list[Column], Label, str | None, str | None]:
    """The drafted features, label, weight and group of a table.

    Args:
        table: a polars or pandas data frame, or a mapping from names to lists of values; 10,000 rows are looked at.
        label: the name of the label, where it is not one of the usual names.

    Raises:
        SchemaError: for a table without rows or columns, no label, a label that is neither binary nor a number, or no
            column that could be a feature.

    Example:
        >>> table = {"age": [31.5, 40.0, 22.5], "tags": ["a|b", "b", "a|c"], "click": ["0", "1", "0"]}
        >>> features, label, weight, group = infer_columns(table)
        >>> [(column.kind, column.name) for column in features]
        [('numeric', 'age'), ('multivalent', 'tags')]
        >>> label
        Label(name='click', kind='binary')
    """
    columns = _read(table)
    target = _find_label(columns, label)
    others = {name: cells for name, cells in columns.items() if name != target.name}
    weight = next((name for name in _named(others, WEIGHT_NAMES) if _is_weight(others[name])), None)
    group = next((name for name in _named(others, GROUP_NAMES) if _repeats(others[name])), None)
    features = _features({name: cells for name, cells in others.items() if name not in (weight, group)})
    return features, target, weight, group


def infer_features(table: Any) -> list[Column]:
    """The drafted features of a table all of whose columns may be features; label, weight and group stand elsewhere."""
    return _features(_read(table))


def _features(columns: Mapping[str, list[Any]]) -> list[Column]:
    drafts = {name: _draft(name, cells) for name, cells in columns.items()}
    features = [draft for draft in drafts.values() if not isinstance(draft, str)]
    if not features:
        reasons = ", ".join(f"'{name}' ({reason})" for name, reason in islice(drafts.items(), 6))
        raise SchemaError(
            f"A table needs a column that can be a feature; got {reasons or 'no others'}.",
            hint="To use one of them anyway, write the schema by hand.",
        )
    return features


def _read(table: Any) -> dict[str, list[Any]]:
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


def _named(columns: Iterable[str], usual: Iterable[str]) -> Iterator[str]:
    return (name for wanted in usual for name in columns if name.lower() == wanted)


def _find_label(columns: Mapping[str, list[Any]], label: str | None) -> Label:
    if label is not None and label not in columns:
        raise SchemaError(
            f"Label '{label}' must be a column of the table; its columns are {listing(columns)}.",
            hint=did_you_mean(label, columns),
        )
    name = label if label is not None else next(_named(columns, LABEL_NAMES), None)
    if name is None:
        raise SchemaError(
            f"A label is named {', '.join(LABEL_NAMES[:-1])} or {LABEL_NAMES[-1]}; got the columns {listing(columns)}.",
            hint="Say which column is the label.",
        )
    return Label(name=name, kind=_label_kind(name, columns[name]))


def _label_kind(name: str, cells: list[Any]) -> LabelKind:
    values = [cell for cell in cells if cell is not None]
    numbers = set(_numbers(values))
    if numbers and numbers != {-1, 1}:
        return "binary" if numbers <= {0, 1} else "real"
    wrong = [value for value in values if str(value).lower() not in ("0", "1", "true", "false")]
    if values and not wrong:
        return "binary"
    got = repr(wrong[0]) if wrong else "missing values only"
    raise SchemaError(
        f"Label '{name}' must be 0 or 1, true or false, or a number that is not a class; got {got}.",
        hint="Map it to 0 and 1 first, or name another column as the label.",
    )


def _is_weight(cells: list[Any]) -> bool:
    return min(_numbers(cells), default=-1) >= 0


def _repeats(cells: list[Any]) -> bool:
    values = [str(cell) for cell in cells if cell is not None]
    return len(set(values)) < len(values)


def _draft(name: str, cells: list[Any]) -> Column | str:
    """The column's meaning, or why it should be left out."""
    values = [cell for cell in cells if cell is not None]
    if all(cell == cells[0] for cell in cells):
        return "one value only"
    if any(isinstance(value, list) for value in values):
        return _draft_lists(name, [value for value in values if isinstance(value, list)])
    if any(isinstance(value, dict | bytes) for value in values):
        return "structs or bytes"
    if all(_is_time(value) for value in values):
        return "dates or times"
    numbers = _numbers(values)
    if numbers:
        return _draft_numbers(name, values, numbers)
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


def _draft_numbers(name: str, values: list[Any], numbers: list[float]) -> Column | str:
    words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
    counts = Counter(values)
    if words & TIME_WORDS and all(_is_clock(number) for number in numbers):
        return "dates or times"
    whole = all(number.is_integer() for number in numbers)
    if whole and len(counts) == len(values) == max(numbers) - min(numbers) + 1 >= ENOUGH_ROWS:
        return "a counter"
    padded = any(isinstance(value, str) and PADDED.fullmatch(value) for value in values)
    few = len(counts) <= max(2, min(MAX_CODES, len(values) // 4))
    if len(counts) == 1 or (whole and (words & CODE_WORDS or padded or few)):
        return _categorical(name, counts)
    return Numeric(name=name, log_shift=1.0 if _is_skewed(numbers) else None)


def _categorical(name: str, counts: Counter[Any]) -> Column | str:
    if len(counts) == counts.total() >= ENOUGH_ROWS:
        return "never repeats"
    return Categorical(name=name, min_count=_min_count(counts))


def _min_count(counts: Counter[Any]) -> int:
    """2 where new values will come: their share is about that of rows with a value seen once (Good and Turing)."""
    singles = sum(count == 1 for count in counts.values())
    return 2 if counts.total() >= ENOUGH_ROWS and singles > 0.01 * counts.total() else 1


def _numbers(values: list[Any]) -> list[float]:
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
        return ISO_TIME.fullmatch(value) is not None
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
    if all(GROUPED_DIGITS.fullmatch(text) for text in texts):
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

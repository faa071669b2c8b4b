"""Why a column was drafted as it was."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from crossrank.errors import listing
from crossrank.schema.cells import plain_number
from crossrank.schema.columns import Multivalent, Numeric, TableFeature
from crossrank.schema.dates import DAY, Date, readable_times
from crossrank.schema.infer import is_marker, numbers_of


def details(column: TableFeature) -> list[str]:
    """What a person should know of a drafted column besides its kind."""
    found = []
    if isinstance(column, Date):
        found = [f"format {column.format}", ", ".join(column.parts)]
    if isinstance(column, Numeric) and column.decimal is not None:
        found = [f"decimal mark '{column.decimal}'"]
    return [*found, *([f"missing: {listing(column.missing)}"] if column.missing else [])]


def reason(column: TableFeature, cells: Iterable[Any]) -> str:
    """Why a column was drafted as it was, from its first cells."""
    values = [cell for cell in cells if cell is not None and not (isinstance(cell, str) and is_marker(cell))]
    more = details(column)
    if isinstance(column, Date):
        times = sorted(readable_times(values, column))
        return "; ".join(["dates" if all(time % DAY == 0 for time in times) else "times", *more])
    if isinstance(column, Numeric):
        mark = column.decimal
        numbers = numbers_of([plain_number(one, mark) if mark and isinstance(one, str) else one for one in values])
        made = ["skewed, so its logarithm"] if column.log_shift is not None else []
        made += ["few, so an id for each"] if "values" in column.encodings else []
        return "; ".join([f"numbers from {min(numbers):,.10g} to {max(numbers):,.10g}", *made, *more])
    if isinstance(column, Multivalent):
        parted = f", parted by '{column.separator}'" if any(isinstance(value, str) for value in values) else ""
        return "; ".join([f"several values in a cell{parted}", *more])
    distinct = len({str(value) for value in values})
    codes = "whole numbers, taken for codes" if numbers_of(values) else "texts"
    rare = ["many are seen once"] if column.min_count > 1 else []
    return "; ".join([f"{distinct:,} different {codes}", *rare, *more])

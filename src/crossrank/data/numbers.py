"""Reading numbers strictly: as features, labels and weights, from columns and from single values.

Missing is NaN: nothing, and the texts that count as missing in the column. Text with blanks around it is read; text
that is no number, and anything infinite (also in 32 bits), is refused with its place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence, Set
from decimal import Decimal
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossrank.data.on_demand import pl
from crossrank.data.parallel import for_each
from crossrank.data.picking import Cells, all_of
from crossrank.errors import DataError
from crossrank.schema import Numeric
from crossrank.schema.cells import DecimalMark, plain_number

Where = Callable[[int], str]
Doubles: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
NO_MARKERS: frozenset[str] = frozenset()
NO_NUMBER = "no number"
PLAIN = frozenset({float, int, type(None)})  # which numpy reads as we do, apart from numbers too large
LARGEST = float(np.finfo(np.float32).max)


def in_data_frame(row: int) -> str:
    """The place of a row of which nothing else is known."""
    return f"row {row + 1:,} of the data frame"


def number_of_value(value: object, markers: Set[str] = NO_MARKERS, decimal: DecimalMark | None = None) -> float:
    """One value as a double; a text with this decimal mark, where given, is a number as people write it.

    >>> number_of_value(" 1e3 "), number_of_value(True), number_of_value(None), number_of_value("N/A", {"n/a"})
    (1000.0, 1.0, nan, nan)

    Raises:
        ValueError: for what is no finite number.
    """
    if type(value) is float and abs(value) <= LARGEST:
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        value = value.strip()
        value = None if not value or value.lower() in markers else value
        value = value if value is None or decimal is None else _plain(value, decimal)
    if value is None:
        return np.nan
    if not isinstance(value, str | bool | int | float | Decimal) or (isinstance(value, str) and "_" in value):
        raise ValueError(value)  # Python's own float() would read 1_000
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(value) from None
    if abs(number) > LARGEST:
        raise ValueError(value)
    return number


def _plain(text: str, decimal: DecimalMark) -> str:
    return plain_number(text, decimal) or NO_NUMBER


def numbers_of_rows(rows: Sequence[Cells], columns: Sequence[Numeric]) -> Doubles:
    """The numbers of rows, each of which has a cell for each column, as :func:`numbers_of_frame` reads them: (N, M)."""
    with contextlib.suppress(ValueError, OverflowError):
        read = [row if all_of(row, PLAIN) else _numbers_of_row(row, columns) for row in rows]
        numbers = np.array(read, np.float64).reshape(len(rows), len(columns))  # None becomes NaN
        if not (np.abs(numbers) > LARGEST).any():
            return numbers
    for position, row in enumerate(rows, 1):
        for cell, column in zip(row, columns, strict=True):
            try:
                number_of_value(cell, column.markers, column.decimal)
            except ValueError:
                raise not_a_number(cell, column.name, f"row {position:,}") from None
    raise AssertionError("numbers were refused, and then none of them was")


def _numbers_of_row(row: Cells, columns: Sequence[Numeric]) -> list[float]:
    return [number_of_value(cell, one.markers, one.decimal) for cell, one in zip(row, columns, strict=True)]


def parse_column(
    column: pl.Series, markers: Set[str] = NO_MARKERS, decimal: DecimalMark | None = None
) -> tuple[Doubles, Mask]:
    """The numbers of a column in which some texts count as missing, and which rows cannot be read.

    Raises:
        DataError: for a column that cannot hold numbers, such as dates or lists.
    """
    kind = column.dtype
    if kind in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    elif not (kind.is_numeric() or kind in (pl.Boolean, pl.String, pl.Null)):
        raise DataError(f"Column '{column.name}' must hold numbers; got {kind}.", hint="Convert it first.")
    if decimal is not None and column.dtype == pl.String:
        texts = column.drop_nulls().unique()
        kept = [not text.strip() or text.strip().lower() in markers for text in texts]
        plain = [text if keep else _plain(text, decimal) for text, keep in zip(texts, kept, strict=True)]
        column = column.replace_strict(texts, pl.Series(plain, dtype=pl.String), default=None)
    parsed = column.cast(pl.Float64, strict=False)
    numbers = parsed.to_numpy()
    bad = np.abs(numbers) > LARGEST
    if parsed.null_count() > column.null_count():  # what polars cannot read is read by Python's rule: they must agree
        numbers, unread = numbers.copy(), parsed.is_null() & column.is_not_null()
        if markers:
            unread &= ~column.str.strip_chars().str.to_lowercase().is_in(list(markers))
        for row in unread.arg_true().to_list():
            try:
                numbers[row] = number_of_value(column[row])
            except ValueError:
                bad[row] = True
    return numbers, bad


def numbers_of_frame(frame: pl.DataFrame, columns: Sequence[Numeric], where: Where) -> Doubles:
    """Columns of a frame as doubles: (N, M).

    Raises:
        DataError: for text that is no number, or a number too large, with its place.
    """
    numbers = np.empty((len(frame), len(columns)), order="F")  # column by column, as they come

    def read(position: int) -> None:
        column = columns[position]
        numbers[:, position] = numbers_of_series(frame[column.name], where, column.markers, column.decimal)

    for_each(range(len(columns)), read, num_rows=len(frame))
    return numbers


def numbers_of_series(
    column: pl.Series, where: Where, markers: Set[str] = NO_MARKERS, decimal: DecimalMark | None = None
) -> Doubles:
    """The same of one column: (N,)."""
    numbers, bad = parse_column(column, markers, decimal)
    if bad.any():
        row = int(bad.argmax())
        raise not_a_number(column[row], column.name, where(row))
    return numbers


def not_a_number(value: object, name: str, place: str) -> DataError:
    return DataError(
        f"Column '{name}' must hold finite numbers; got {repr(value)[:60]} in {place}.",
        hint='Leave the cell empty where a number is missing, list the text under "missing" of the column in the '
        "schema, or declare the column categorical.",
    )

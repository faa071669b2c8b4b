"""Reading numbers strictly: as features, labels and weights, from columns and from single values.

Missing is NaN. Text with blanks around it is read; text that is no number, and anything infinite (also in 32 bits), is
refused with its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossrank.data.parallel import for_each
from crossrank.errors import DataError

if TYPE_CHECKING:
    import polars as pl

Where = Callable[[int], str]
Doubles: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
LARGEST = float(np.finfo(np.float32).max)


def in_data_frame(row: int) -> str:
    """The place of a row of which nothing else is known."""
    return f"row {row + 1:,} of the data frame"


def number_of_value(value: object) -> float:
    """One value as a double.

    >>> number_of_value(" 1e3 "), number_of_value(True), number_of_value(None)
    (1000.0, 1.0, nan)

    Raises:
        ValueError: for what is no finite number.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        value = value.strip() or None
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


def numbers_of_rows(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> Doubles:
    """The numbers of dictionaries, as :func:`numbers_of_frame` reads them: (N, M)."""
    numbers = np.empty((len(rows), len(names)))
    for position, row in enumerate(rows):
        try:
            numbers[position] = [number_of_value(row[name]) for name in names]
        except ValueError:
            name = next(name for name in names if _unreadable(row[name]))
            raise not_a_number(row[name], name, f"row {position + 1:,}") from None
    return numbers


def _unreadable(value: object) -> bool:
    try:
        number_of_value(value)
    except ValueError:
        return True
    return False


def parse_column(column: pl.Series) -> tuple[Doubles, Mask]:
    """The numbers of a column, and which rows cannot be read.

    Raises:
        DataError: for a column that cannot hold numbers, such as dates or lists.
    """
    import polars as pl

    kind = column.dtype
    if kind in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    elif not (kind.is_numeric() or kind in (pl.Boolean, pl.String, pl.Null)):
        raise DataError(f"Column '{column.name}' must hold numbers; got {kind}.", hint="Convert it first.")
    parsed = column.cast(pl.Float64, strict=False)
    numbers = parsed.to_numpy()
    bad = np.abs(numbers) > LARGEST
    if parsed.null_count() > column.null_count():  # what polars cannot read is read by Python's rule: they must agree
        numbers = numbers.copy()
        for row in (parsed.is_null() & column.is_not_null()).arg_true().to_list():
            try:
                numbers[row] = number_of_value(column[row])
            except ValueError:
                bad[row] = True
    return numbers, bad


def numbers_of_frame(frame: pl.DataFrame, names: Sequence[str], where: Where) -> Doubles:
    """Columns of a frame as doubles: (N, M).

    Raises:
        DataError: for text that is no number, or a number too large, with its place.
    """
    numbers = np.empty((len(frame), len(names)), order="F")  # column by column, as they come

    def read(position: int) -> None:
        numbers[:, position] = numbers_of_series(frame[names[position]], where)

    for_each(range(len(names)), read, num_rows=len(frame))
    return numbers


def numbers_of_series(column: pl.Series, where: Where) -> Doubles:
    """The same of one column: (N,)."""
    numbers, bad = parse_column(column)
    if bad.any():
        row = int(bad.argmax())
        raise not_a_number(column[row], column.name, where(row))
    return numbers


def not_a_number(value: object, name: str, place: str) -> DataError:
    return DataError(
        f"Column '{name}' must hold finite numbers; got {repr(value)[:60]} in {place}.",
        hint="Leave the cell empty where a number is missing, or declare the column categorical.",
    )

"""The values inside a multivalent cell.

A missing cell holds the one value None. Text is cut at the separator, a list is taken as it is; empty pieces and
missing list elements are dropped, so a cell may hold nothing at all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crossrank.data.on_demand import pl
from crossrank.data.rows import offsets_of
from crossrank.data.text import text_of_series, text_of_value


def pieces_of_value(cell: object, separator: str) -> list[str | None]:
    """The texts in one cell.

    >>> [pieces_of_value(cell, "|") for cell in ("a||b", [1, None, 2], "|", None)]
    [['a', 'b'], ['1', '2'], [], [None]]
    """
    if cell is None:
        return [None]
    if isinstance(cell, list | tuple | set | frozenset | np.ndarray):
        return [text for text in map(text_of_value, cell) if text is not None]
    text = text_of_value(cell)
    return [None] if text is None else [piece for piece in text.split(separator) if piece]


def pieces_of_series(series: pl.Series, separator: str) -> tuple[pl.Series, NDArray[np.int64]]:
    """The texts in all cells of a column, one after the other, and the offsets (N + 1,) that part the cells."""
    if isinstance(series.dtype, pl.Array):
        series = series.cast(pl.List(series.dtype.inner))
    lists = series if isinstance(series.dtype, pl.List) else text_of_series(series).str.split(separator)
    lengths = lists.list.len().fill_null(0)
    pieces = text_of_series(lists.filter(lengths > 0).explode())
    rows = np.repeat(np.arange(len(lists)), lengths.to_numpy())
    present = pieces.is_not_null()
    missing = lists.is_null().arg_true().to_numpy()
    rows = np.concatenate([rows[present.to_numpy()], missing])
    order = np.argsort(rows, kind="stable")  # merges the two sorted runs
    nothing = pl.Series(pieces.name, [None], dtype=pl.String).new_from_index(0, len(missing))
    pieces = pl.concat([pieces.filter(present), nothing]).gather(order)
    return pieces, offsets_of(np.bincount(rows, minlength=len(lists)))

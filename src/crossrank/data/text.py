"""The canonical text of a value, by which categorical values and groups are compared, and a hash that never changes.

One rule in two forms that agree: :func:`text_of_series` for columns and :func:`text_of_value` for single values.

| value | text |
| --- | --- |
| missing: null, NaN, "" | none |
| text, 12, true | ``text``, ``12``, ``true`` |
| 12.0 (as pandas stores whole numbers with gaps) | ``12`` |
| 0.1 | the shortest text that reads back as the same double |
| dates and times | ISO 8601 |
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossrank.data.on_demand import pl
from crossrank.data.packed_texts import PAD, WORD_BYTES, Words, letters_of, sizes_of_words, words_in
from crossrank.data.picking import Cells, all_of
from crossrank.errors import DataError

EXACT_INTEGERS = 2.0**53  # below this, a double that is whole is the integer it looks like
WORD = 2**64 - 1
TEXTS = frozenset({str, type(None)})
PANDAS_MISSING = ("NaTType", "NAType")


def text_of_value(value: object) -> str | None:
    """The text of one value, or None where it is missing.

    >>> [text_of_value(value) for value in ("a b", 12, 12.0, 0.1, True, None, float("nan"), "")]
    ['a b', '12', '12', '0.1', 'true', None, None, None]
    """
    if isinstance(value, str):
        return value or None
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value).__name__ in PANDAS_MISSING:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if value.is_integer():
            return str(int(value))
        return repr(value) if value == value else None
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace") or None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)


def texts_of_cells(cells: Cells) -> Sequence[str | None]:
    """The text of each value of a row; "" is left where nothing has to be done."""
    return cells if all_of(cells, TEXTS) else [text_of_value(cell) for cell in cells]  # type: ignore[return-value]


def text_of_series(series: pl.Series) -> pl.Series:
    """The text of each value of a column; nulls stay, NaN and "" become null."""
    kind = series.dtype
    if kind.is_nested():
        hint = "Declare a column of lists multivalent."
        raise DataError(f"Column '{series.name}' must hold one value in each row; got {kind}.", hint=hint)
    if kind.is_integer() or kind in (pl.Boolean, pl.Categorical, pl.Enum, pl.Null):
        series = series.cast(pl.String)
    elif kind.is_float():
        series = series.cast(pl.Float64).fill_nan(None)
        whole = (series == series.floor()) & (series.abs() < EXACT_INTEGERS)
        series = series.cast(pl.Int64).cast(pl.String) if whole.all() else _text_by_value(series)
    elif kind != pl.String:
        series = _text_by_value(series)
    empty = series.str.len_bytes() == 0
    return series.set(empty, None) if empty.any() else series


def _text_by_value(series: pl.Series) -> pl.Series:
    """Through Python, once per distinct value: the rule must not depend on how polars prints doubles and times."""
    distinct = series.unique()
    texts = pl.Series("text", [text_of_value(value) for value in distinct.to_list()], dtype=pl.String)
    table = pl.DataFrame([distinct.alias("value"), texts])
    return series.to_frame("value").join(table, on="value", how="left", maintain_order="left")["text"]


def stable_hash(text: str) -> int:
    """64 bits that depend on the text alone: the same in every version, process and machine.

    The UTF-8 bytes are read as little-endian words of eight, the last one filled up with zeros. Starting with the
    number of bytes, each word w takes the hash h to ``splitmix64(h ^ w)``. Texts of up to eight bytes and equal length
    never collide, because splitmix64 is a bijection.

    >>> stable_hash("a")
    7075883509774426401
    """
    data = text.encode("utf-8", "surrogatepass")
    value = len(data)
    for start in range(0, len(data), WORD_BYTES):
        value = splitmix64(value ^ int.from_bytes(data[start : start + WORD_BYTES], "little"))
    return value


def stable_hashes(texts: pl.Series) -> NDArray[np.uint64]:
    """:func:`stable_hash` of each text; of null, as of no bytes at all, 0."""
    letters = PAD + letters_of(texts)
    sizes = texts.str.len_bytes().fill_null(0).to_numpy().astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    values = sizes.astype(np.uint64)
    for done in range(0, int(sizes.max(initial=0)), WORD_BYTES):
        rows = np.flatnonzero(sizes > done)
        part = np.minimum(sizes[rows] - done, WORD_BYTES)
        words = words_in(letters, starts[rows] + done + part, part)
        values[rows] = splitmix64(values[rows] ^ words)
    return values


def stable_hashes_of_words(words: Words) -> NDArray[np.uint64]:
    """:func:`stable_hash` of each text of up to eight bytes, given as its word; of nothing 0."""
    return np.where(words == 0, np.uint64(0), splitmix64(sizes_of_words(words).astype(np.uint64) ^ words))


def splitmix64(value: Any) -> Any:
    """Steele's mixing function, a bijection of 64 bits, on an array of uint64 or on one number."""
    mixed = (value + 0x9E3779B97F4A7C15) & WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & WORD
    return mixed ^ (mixed >> 31)

"""Raw rows in any of the forms in which people have them, encoded batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crossrank.data.encoder import Encoder
from crossrank.data.rows import SCORING_ROWS, EncodedRows


def encode_any(encoder: Encoder, source: Any, **table_options: Any) -> Iterator[EncodedRows]:
    """One dictionary or a list of them, which needs no polars; a data frame, an Arrow table, or a path to tables."""
    if isinstance(source, dict) and not all(_is_column(value) for value in source.values()):
        source = [source]
    if isinstance(source, list) and all(isinstance(row, dict) for row in source):
        for start in range(0, len(source), SCORING_ROWS):
            yield encoder.encode_rows(source[start : start + SCORING_ROWS])
        return
    if getattr(source, "shape", (1,))[0] == 0:  # a data frame without rows; a file without rows is a mistake
        return
    from crossrank.data.table import open_table

    for chunk in open_table(source, **table_options).chunks(encoder.schema.inputs, rows=SCORING_ROWS):
        yield encoder.encode(chunk.frame, where=chunk.where)


def _is_column(value: Any) -> bool:
    """Whether a value stands for many rows, as in a mapping from names to columns."""
    return hasattr(value, "__len__") and not isinstance(value, str | bytes)

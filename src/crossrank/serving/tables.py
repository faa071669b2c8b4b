"""Scores for whole tables, read and written in chunks, so that a table may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crossrank.data.encoder import check_columns
from crossrank.data.rows import SCORING_ROWS
from crossrank.errors import DataError, listing
from crossrank.folders import making, recover
from crossrank.runs import Run

if TYPE_CHECKING:
    import polars as pl

SEPARATORS = {".csv": ",", ".tsv": "\t"}


def predict_table(
    run: Run, source: Any, into: Path, *, column: str | None = None, overwrite: bool = False, **table_options: Any
) -> int:
    """Write a table again with one more column, the run's answer for each row.

    For several classes it is a column for each, ``probability_CLASS``, and ``prediction``, the most probable one.

    Args:
        run: the trained model.
        source: a path or a data frame; the label is not needed.
        into: a csv, tsv or parquet file, by its suffix; it appears once it is complete.
        column: the name of the new column; left out, "probability", "prediction" where the label is a number, or
            "score" where it is a grade.
        overwrite: replace the file if it exists.

    Returns:
        The number of rows.
    """
    from crossrank.data.table import open_table

    suffixes = [*SEPARATORS, ".parquet"]
    if into.suffix not in suffixes:
        raise DataError(f"The file to write must end in one of {listing(suffixes)}; got '{into.name}'.")
    recover(into)
    if into.exists() and not overwrite:
        raise DataError(f"{into} must not exist yet; it does.", hint="Choose another name, or pass --overwrite.")
    table = open_table(source, **table_options)
    column = column or {"real": "prediction", "grade": "score"}.get(run.schema.label.kind, "probability")
    for name in _new_columns(run, column):
        if name in table.columns:
            raise DataError(f"The table already has a column '{name}'.", hint="Name the new one with --column.")
    with making(into, DataError) as folder:
        return _write(_scored(run, table, column), folder, into)


def _scored(run: Run, table: Any, column: str) -> Iterator[pl.DataFrame]:
    import polars as pl

    check_columns(run.schema.inputs, table.columns, table.name)
    for chunk in table.chunks(rows=SCORING_ROWS):
        encoded = run.encoder.encode(chunk.frame, where=chunk.where)
        answers = run.answers([encoded.features()])
        if answers.ndim == 2:
            names = np.array(run.schema.label.classes)[answers.argmax(axis=1)] if len(answers) else []
            columns = [*answers.T, names]
        else:
            columns = [answers]
        new = zip(_new_columns(run, column), columns, strict=True)
        yield chunk.frame.with_columns(pl.Series(name, values) for name, values in new)


def _new_columns(run: Run, column: str) -> list[str]:
    label = run.schema.label
    return [*(f"{column}_{name}" for name in label.classes), "prediction"] if label.kind == "classes" else [column]


def _write(frames: Iterator[pl.DataFrame], folder: Path, into: Path) -> int:
    import polars as pl

    rows, parts, text = 0, [], folder / "table"
    with text.open("wb") as file:
        for number, frame in enumerate(frames):
            rows += frame.height
            nested = [name for name, dtype in frame.schema.items() if dtype.is_nested() or dtype == pl.Binary]
            if into.suffix == ".parquet":
                parts.append(folder / f"{number}.parquet")
                frame.write_parquet(parts[-1])
            elif nested:
                raise DataError(
                    f"A cell of a {into.suffix[1:]} file holds one value; got lists in {listing(nested)}.",
                    hint=f"Write parquet: --into {into.with_suffix('.parquet')}",
                )
            else:
                frame.write_csv(file, separator=SEPARATORS[into.suffix], include_header=number == 0)
    if parts:
        pl.scan_parquet(parts).sink_parquet(text)
    text.replace(into)
    return rows

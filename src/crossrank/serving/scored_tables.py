"""Scores for whole tables, read and written in chunks, so that a table may be larger than memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from crossrank.data.on_demand import pl
from crossrank.data.picking import check_columns
from crossrank.data.rows import SCORING_ROWS
from crossrank.data.table import open_table
from crossrank.errors import DataError, listing
from crossrank.folders import making, recover
from crossrank.runs import Run

FORMULA = r"^[=+\-@\t\r][\s\S]"
SEPARATORS = {".csv": ",", ".tsv": "\t"}


def predict_table(
    run: Run,
    source: Any,
    into: Path,
    *,
    column: str | None = None,
    calibrated: bool = False,
    overwrite: bool = False,
    **table_options: Any,
) -> int:
    """Write a table again with one more column, the run's answer for each row.

    For several classes it is a column for each, ``probability_CLASS``, and ``prediction``, the most probable one; for
    tasks a column for each, ``probability_TASK``.

    Args:
        run: the trained model.
        source: a path or a data frame; the label is not needed.
        into: a csv, tsv or parquet file, by its suffix; it appears once it is complete. In csv and tsv, text that a
            spreadsheet would run as a formula has an apostrophe in front; parquet keeps it as it is.
        column: the name of the new column; left out, "probability", "prediction" where the label is a number, or
            "score" where it is a grade.
        calibrated: as :meth:`crossrank.runs.Run.predict` says.
        overwrite: replace the file if it exists.

    Returns:
        The number of rows.
    """
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
        return _write(_scored(run, table, column, calibrated), folder, into)


def without_formulas(frame: pl.DataFrame) -> pl.DataFrame:
    """The same for a file that a spreadsheet may open: text that it would run has an apostrophe in front.

    Such a text begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return, goes on, and is no number.

    >>> import polars as pl
    >>> without_formulas(pl.DataFrame({"a": ["=1+1", "-2.5", "-", "b=1"]}))["a"].to_list()
    ["'=1+1", '-2.5', '-', 'b=1']
    """
    texts = pl.col(pl.String, pl.Categorical, pl.Enum).cast(pl.String)
    runs = texts.str.contains(FORMULA) & texts.cast(pl.Float64, strict=False).is_null()
    frame = frame.rename({name: f"'{name}" for name in frame.columns if re.match(FORMULA, name)})
    return frame.with_columns(pl.when(runs).then(texts.str.replace("^", "'")).otherwise(texts))


def _scored(run: Run, table: Any, column: str, calibrated: bool) -> Iterator[pl.DataFrame]:
    check_columns(run.schema.inputs, table.columns, table.name)
    for chunk in table.chunks(rows=SCORING_ROWS):
        encoded = run.encoder.encode(chunk.frame, where=chunk.where)
        answers = run.answers([encoded.features()])
        answers = run.calibrated(answers) if calibrated else answers
        columns = [*answers.T] if answers.ndim == 2 else [answers]
        if run.schema.label.kind == "classes":
            columns.append(np.array(run.schema.label.classes)[answers.argmax(axis=1)] if len(answers) else [])
        new = zip(_new_columns(run, column), columns, strict=True)
        yield chunk.frame.with_columns(pl.Series(name, values) for name, values in new)


def _new_columns(run: Run, column: str) -> list[str]:
    label = run.schema.label
    if label.kind == "classes":
        return [*(f"{column}_{name}" for name in label.classes), "prediction"]
    return [f"{column}_{name}" for name in label.columns] or [column]


def _write(frames: Iterator[pl.DataFrame], folder: Path, into: Path) -> int:
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
                without_formulas(frame).write_csv(file, separator=SEPARATORS[into.suffix], include_header=number == 0)
    if parts:
        pl.scan_parquet(parts).sink_parquet(text)
    text.replace(into)
    return rows

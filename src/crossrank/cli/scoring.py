"""Commands that measure and use runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from crossrank.cli.app import (
    Encoding,
    Json,
    OnBadLine,
    Overwrite,
    RunFolder,
    Separator,
    app,
    new_path,
    number,
    out,
    say,
    table_of,
)
from crossrank.errors import ConfigError, RunError, listing


@app.command(epilog="Example: crossrank evaluate runs/first later.csv --json")
def evaluate(
    run: RunFolder,
    data: Annotated[
        Path | None, typer.Argument(help="A dataset or a table; left out, the stored test metrics.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which rows of a dataset: train, valid or test; left out, test.")
    ] = None,
    separator: Separator = None,
    encoding: Encoding = None,
    on_error: OnBadLine = "raise",
    as_json: Json = False,
) -> None:
    """Measure a trained model."""
    from crossrank.data import EncodedDataset, open_data
    from crossrank.evaluation.evaluate import evaluate_with_intervals as measure
    from crossrank.runs import Run

    opened = Run.open(run)
    if data is None:
        show_metrics(_stored(opened, split or "test"), as_json)
        return
    table = open_data(data, separator=separator, encoding=encoding, on_error=on_error)
    if isinstance(table, EncodedDataset):
        show_metrics(measure(opened, table, split=split or "test"), as_json)
        return
    refuse("a table, of which all rows are measured", split=split)
    metrics = measure(opened, table)
    say_skipped(table)
    show_metrics(metrics, as_json)
    rows = opened.info.get("rows", {})
    if metrics["rows"] == sum(rows.values()):
        say(
            f"note: if this is the table that {run} was trained on, it learned {rows['train']:,} of these "
            f"{metrics['rows']:,} rows; its test rows alone: crossrank evaluate {run}"
        )


@app.command(epilog="Example: crossrank predict runs/first today.parquet --into scored.parquet")
def predict(
    run: RunFolder,
    table: Annotated[Path, typer.Argument(help="Raw rows (csv, tsv, parquet); the label is not needed.")],
    into: Annotated[Path, new_path("The table to write: csv, tsv or parquet, by its suffix.")],
    column: Annotated[
        str | None,
        typer.Option(help="The new column's name; left out, probability, prediction of a number, score of a grade."),
    ] = None,
    calibrated: Annotated[
        bool, typer.Option("--calibrated", help="Of a loss of the order: the mean label of rows of such a score.")
    ] = False,
    separator: Separator = None,
    encoding: Encoding = None,
    on_error: OnBadLine = "raise",
    overwrite: Overwrite = False,
) -> None:
    """Write a table again with the model's answer for each row.

    In csv and tsv, text that a spreadsheet would run, such as =1+1, has an apostrophe in front; parquet keeps it.
    """
    from crossrank.data.table import open_table
    from crossrank.runs import Run
    from crossrank.serving.scored_tables import predict_table

    opened, rows = Run.open(run), open_table(table, separator=separator, encoding=encoding, on_error=on_error)
    count = predict_table(opened, rows, into, column=column, calibrated=calibrated, overwrite=overwrite)
    say_skipped(rows)
    say(f"{count:,} rows: {into}")


def refuse(where: str, **given: Any) -> None:
    """Refuse options that would be ignored."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"--{name} does not go with {where}; got '{value}'.", hint=f"Leave --{name} out.")


def say_skipped(table: Any) -> None:
    for reason, count in table.skipped.items():
        say(f"left out {count:,} rows: {reason}")


def _stored(run: Any, split: str) -> dict[str, Any]:
    """The metrics that training measured, with their intervals where it kept them."""
    kept = [name for name in ("valid", "test") if name in run.report]
    if split not in kept:
        hint = "Give the dataset it was trained on."
        raise RunError(f"A run keeps the metrics of {listing(kept)}; got '{split}'.", hint=hint)
    known = run.curves.get("intervals") if run.curves.get("split") == split else None
    return {**run.report[split], **({"intervals": known} if known else {})}


def show_metrics(metrics: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(metrics))
        return
    intervals = metrics.get("intervals", {})
    table = table_of("metric", "value", *(["95% interval"] if intervals else []), title="")
    for name, value in metrics.items():
        if name != "intervals":
            ends = " to ".join(map(number, intervals.get(name, [])))
            table.add_row(name, number(value), *([ends] if intervals else []))
    out.print(table)

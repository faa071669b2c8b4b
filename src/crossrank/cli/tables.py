"""Commands about tables and datasets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from crossrank.cli.app import (
    Encoding,
    Json,
    OnBadLine,
    Overwrite,
    SchemaFile,
    Separator,
    data_commands,
    new_path,
    out,
    say,
    table_of,
)

NARROWEST = 10  # a narrower column of values says nothing


@data_commands.command("describe", epilog="Example: crossrank data describe clicks.csv --min-count 5")
def data_describe(
    source: Annotated[Path, typer.Argument(help="A table (csv, tsv, parquet) or a dataset.")],
    schema: SchemaFile = None,
    label: Annotated[
        str | None, typer.Option(help="The label's name, or several with commas between, where no schema is given.")
    ] = None,
    min_count: Annotated[int, typer.Option(help="Tell the share of values seen less often than this.")] = 10,
    separator: Separator = None,
    encoding: Encoding = None,
    on_error: OnBadLine = "raise",
    as_json: Json = False,
) -> None:
    """Show what is in a table: values, missing and rare shares, what each column knows of the label, and warnings."""
    from crossrank.data.describe import describe
    from crossrank.schema import Schema

    options: dict[str, Any] = {"separator": separator, "encoding": encoding, "on_error": on_error}
    told = describe(source, schema=Schema.load(schema) if schema else None, label=label, min_count=min_count, **options)
    if as_json:
        print(json.dumps(told.to_dict()))
        return
    mean = "" if told.label_rate is None else f", mean of '{told.label}' {told.label_rate:.4f}"
    headings = ("column", "kind", "values", "missing", f"seen < {min_count}", "signal", "most frequent")
    rows = []
    for column in told.columns:
        top = ", ".join(f"{value} {share:.0%}" if share else value for value, share in column.top)
        distinct = "" if column.distinct is None else f"{column.distinct:,}"
        signal = "" if column.signal is None else f"{column.signal:.3f}"
        rows.append((column.name, column.kind, distinct, f"{column.missing:.1%}", f"{column.rare:.1%}", signal, top))
    _print_narrow(f"{told.name}: {told.rows:,} rows{mean}", headings, rows)
    for name, reason in told.left_out.items():
        say(f"left out: '{name}' ({reason})")
    for note in told.notes:
        say(f"note: {note}")
    for warning in told.warnings:
        say(f"warning: {warning}")


def _print_narrow(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table as wide as the terminal: the first column is folded at most, the last one cut, or left out."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    room = out.width - sum(widths[1:-1]) - 3 * len(widths) - 1
    last = room - widths[0] >= NARROWEST
    table = table_of(*(headings if last else headings[:-1]), title=title, text=("kind", headings[-1]))
    for column in table.columns:
        column.no_wrap = True
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    if last:
        table.columns[-1].max_width = room - widths[0]
    for row in rows:
        table.add_row(*(row if last else row[:-1]))
    out.print(table)


@data_commands.command("synthesize", epilog="Example: crossrank data synthesize --rows 45_000_000 --into criteo.txt")
def data_synthesize(
    rows: Annotated[str, typer.Option(help="How many; 45_000_000 may be written so.")],
    into: Annotated[Path, new_path("The file (text) or dataset folder (encoded) to make.")],
    like: Annotated[Literal["criteo"], typer.Option(help="Which set to imitate.")] = "criteo",
    output: Annotated[
        Literal["text", "encoded"], typer.Option("--format", help="Criteo's text, or a dataset ready to train on.")
    ] = "text",
    seed: Annotated[int, typer.Option(help="The same seed gives the same rows.", min=0, max=2**63 - 1)] = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Generate a click log of any size whose crosses and best log loss are known."""
    from crossrank.data.generators.synthetic import synthesize

    if not rows.replace("_", "").isdecimal():
        raise typer.BadParameter(f"must be a whole number; got '{rows}'", param_hint="--rows")
    made = synthesize(into, rows=int(rows), like=like, seed=seed, format=output, overwrite=overwrite)
    if as_json:
        print(json.dumps({"rows": made.rows, "label_rate": made.base_rate, "best_logloss": made.best_logloss}))
    say(f"{made.rows:,} rows: {made.path} (label rate {made.base_rate:.3f}, best log loss {made.best_logloss:.4f})")

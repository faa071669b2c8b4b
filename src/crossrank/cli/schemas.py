"""The command about what columns mean."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossrank.cli.app import Encoding, Json, OnBadLine, Overwrite, Separator, app, new_path, out, say, table_of
from crossrank.errors import ConfigError, DataError

if TYPE_CHECKING:
    from crossrank.data.table import Table
    from crossrank.schema import Schema

EXAMPLES = 3


@app.command(epilog="Example: crossrank schema clicks.csv --into schema.json")
def schema(
    source: Annotated[list[Path], typer.Argument(help="A table (csv, tsv, parquet), or folders of them.")],
    label: Annotated[str | None, typer.Option(help="The label's name, or several with commas between.")] = None,
    into: Annotated[Path | None, new_path("The JSON file to write the draft to.")] = None,
    given: Annotated[Path | None, typer.Option("--schema", help="Check this schema instead of drafting one.")] = None,
    separator: Separator = None,
    encoding: Encoding = None,
    on_error: OnBadLine = "raise",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Draft what the columns of a table mean, or check a schema against a table.

    Draft and show:   crossrank schema clicks.csv

    Draft and write:  crossrank schema clicks.csv --label bought --into schema.json

    Check a file:     crossrank schema clicks.csv --schema schema.json

    A check ends with status 1 where something does not fit.
    """
    from crossrank.data.table import open_table

    table = open_table(source, separator=separator, encoding=encoding, on_error=on_error)
    if given is None:
        _draft(table, label, into, overwrite=overwrite, as_json=as_json)
        if into is not None:
            words = shlex.join(map(str, source))
            say(f"schema: {into}; once you have changed it: crossrank schema {words} --schema {into}")
        return
    for name, value in {"label": label, "into": into}.items():
        if value is not None:
            raise ConfigError(f"--{name} does not go with --schema; got '{value}'.", hint=f"Leave --{name} out.")
    if _check(table, given, as_json=as_json):
        raise typer.Exit(1)


def _draft(table: Table, label: str | None, into: Path | None, *, overwrite: bool, as_json: bool) -> None:
    from crossrank.data.drafting import draft_table
    from crossrank.files import write_text, writing
    from crossrank.folders import locked
    from crossrank.schema.infer import read_columns
    from crossrank.schema.reasons import reason

    if into is not None and into.exists() and not overwrite:
        raise ConfigError(f"{into} must not exist yet; it does.", hint="Choose another name, or pass --overwrite.")
    draft = draft_table(table, label=label)
    drafted, cells = draft.schema, read_columns(table.head())
    written = json.dumps(drafted.to_dict(), indent=2, ensure_ascii=False)
    if as_json:
        print(written)
    else:
        why = {column.name: (column.kind, reason(column, cells[column.name])) for column in draft.features}
        why |= {name: ("left out", told) for name, told in draft.left_out.items()}
        _show(table, cells, {**why, **_others(drafted)}, heading="why")
    for note in draft.notes:
        say(f"note: {note}")
    if into is not None:
        with writing(into, DataError), locked(into, DataError):
            write_text(into, f"{written}\n")


def _check(table: Table, path: Path, *, as_json: bool) -> bool:
    """Show how a schema fits, and say whether something does not."""
    from crossrank.data.checking import misfits
    from crossrank.data.describe import column_warnings
    from crossrank.schema import Schema
    from crossrank.schema.infer import read_columns

    meaning, head = Schema.load(path), table.head()
    wrong = misfits(table, meaning)
    if as_json:
        print(json.dumps({"fits": not wrong, "misfits": wrong}, ensure_ascii=False))
        return bool(wrong)
    kinds: dict[str, list[str]] = {}
    for column in meaning.in_table:
        kinds.setdefault(column.input, []).append(column.kind)
    kinds |= {name: [kind] for name, (kind, _) in _others(meaning).items()}
    shown = {name: (", ".join(kind), "no" if name in wrong else "yes") for name, kind in kinds.items()}
    unused = {name: ("not used", "") for name in table.columns if name not in shown}
    _show(table, read_columns(head), {**shown, **unused}, heading="fits")
    for name, told in wrong.items():
        say(f"does not fit: '{name}': {told}")
    for warning in column_warnings(head, meaning) if not wrong else ():
        say(f"warning: {warning}")
    if not wrong:
        say(f"{path} fits {table.name}")
    return bool(wrong)


def _others(meaning: Schema) -> dict[str, tuple[str, str]]:
    """The columns that are no features."""
    classes = f": {meaning.label.classes[1]} counts as 1" if meaning.label.classes else ""
    found = dict.fromkeys(meaning.label.inputs, ("label", f"{meaning.label.kind}{classes}"))
    found |= {meaning.weight: ("weight", "weighs each row")} if meaning.weight else {}
    return found | ({meaning.group: ("group", "rows that belong together")} if meaning.group else {})


def _show(
    table: Table, cells: Mapping[str, list[Any]], columns: Mapping[str, tuple[str, str]], *, heading: str
) -> None:
    """A row for each column, in the order of the table; those that are not in it come last."""
    order = [*(name for name in table.columns if name in columns), *(n for n in columns if n not in table.columns)]
    headings = ("column", "kind", heading, "examples")
    shown = table_of(*headings, title=f"{table.name}: {len(table.columns)} columns", text=headings)
    for name in order:
        examples = dict.fromkeys(str(cell)[:30] for cell in cells.get(name, []) if cell is not None)
        shown.add_row(name, *columns[name], ", ".join(list(examples)[:EXAMPLES]))
    out.print(shown)

"""The rows that a command is given, one table or one for each split, and what their columns mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from crossrank.cli.app import say
from crossrank.cli.scoring import refuse
from crossrank.errors import ConfigError

TrainRows = Annotated[
    Path | None, typer.Option("--train", help="The training rows, where a table is divided already: a file or folder.")
]
ValidRows = Annotated[
    Path | None, typer.Option("--valid", help="Its validation rows; left out, drawn from the training rows.")
]
LabelName = Annotated[
    str | None, typer.Option(help="The label's name, or several with commas between, where no schema is given.")
]
Positive = Annotated[
    str | None, typer.Option(help="Which of the label's two values counts as 1, where no schema is given.")
]
TestRows = Annotated[Path | None, typer.Option("--test", help="Its test rows; may be left out.")]


def open_rows(data: Any, divided: dict[str, Path | None], **table_options: Any) -> Any:
    """The dataset or table that was given, or the tables of each split as one."""
    from crossrank.data import open_data, open_splits

    given = {f"--{name}": path for name, path in divided.items() if path is not None}
    if not given and data:
        return open_data(data, **table_options)
    if data or "--train" not in given:
        got = " and ".join([*(["a table"] if data else []), *given]) or "neither"
        hint = "Example: crossrank train --train a.csv --valid b.csv --test c.csv --into runs/first"
        raise ConfigError(f"Rows come from one table, or from --train, --valid and --test; got {got}.", hint=hint)
    return open_splits(**divided, **table_options)


def say_split(split: Any, table: Any, schema: Any) -> Any:
    """The split as it will be made, after a line about why, where nobody asked for it."""
    decided, why = split.decided(table, schema)
    if why:
        say(why)
    return decided


def schema_of(table: Any, schema: Path | None, label: str | None, positive: str | None, *, split: Any) -> Any:
    """The schema from a file, or a draft that is shown to the person; and warnings about its columns."""
    from crossrank.data.describe import column_warnings
    from crossrank.data.drafting import draft_table
    from crossrank.schema import Schema

    head = table.head()
    if schema is not None:
        refuse("--schema, whose label has its classes", positive=positive)
        meaning = Schema.load(schema)
    else:
        draft = draft_table(table, label=label, positive=positive, split=split.names_column)
        meaning = draft.schema
        target = meaning.label
        counted = f" ('{target.classes[1]}' counts as 1)" if target.classes and target.kind == "binary" else ""
        say(f"no --schema: drafted one, with the {target.kind} label '{target.name}'{counted} and")
        for line in draft.lines():
            say(line)
    for warning in column_warnings(head, meaning):
        say(f"warning: {warning}")
    return meaning

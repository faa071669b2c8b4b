"""The rows that a command is given: one table, or one for each split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from crossrank.cli.app import say
from crossrank.errors import ConfigError

TrainRows = Annotated[
    Path | None, typer.Option("--train", help="The training rows, where a table is divided already: a file or folder.")
]
ValidRows = Annotated[
    Path | None, typer.Option("--valid", help="Its validation rows; left out, drawn from the training rows.")
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

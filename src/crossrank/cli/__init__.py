"""The command line: each command is one call of a function of the library.

Results go to standard output, progress and talk to standard error.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

import crossrank
from crossrank.cli import experiments, explaining, models, tables, training
from crossrank.cli.app import app, bench_commands, data_commands, say, talk
from crossrank.errors import CrossRankError

__all__ = ["app", "experiments", "explaining", "main", "models", "tables", "training"]

# As a newcomer meets them
ORDER = [
    "demo",
    "prepare",
    "train",
    "evaluate",
    "predict",
    "explain",
    "report",
    "compress",
    "models",
    "config",
    "cost",
    "tune",
    "paper",
]
app.registered_commands.sort(key=lambda command: ORDER.index(getattr(command.callback, "__name__", "")))
app.add_typer(data_commands, name="data")
app.add_typer(bench_commands, name="bench")


def main() -> None:
    """Run a command; an error of ours becomes one line, a hint, and exit status 2."""
    try:
        app()
    except CrossRankError as error:
        if "--debug" in sys.argv:
            raise
        talk.print(f"error: {error.message}", style="red", markup=False, highlight=False, soft_wrap=True)
        if error.hint:
            say(f"hint: {error.hint}")
        sys.exit(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has gone; so do we
        sys.exit(1)


def _version(show: bool) -> None:
    if show:
        print(crossrank.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option(help="Show the whole traceback of an error.")] = False,
) -> None:
    """Train, explain and serve models that cross features."""

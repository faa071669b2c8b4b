"""The command line: each command is one call of a function of the library.

Results go to standard output, progress and talk to standard error.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import warnings
from typing import Annotated, Any

import typer

import crossrank
from crossrank.cli import (  # noqa: F401 (each has its commands)
    experiments,
    explaining,
    exporting,
    models,
    planning,
    schemas,
    scoring,
    serving,
    tables,
    training,
)
from crossrank.cli.app import app, bench_commands, data_commands, say
from crossrank.errors import CrossRankError

__all__ = ["app", "main"]

# As a newcomer meets them
ORDER = [
    "demo",
    "schema",
    "prepare",
    "train",
    "evaluate",
    "predict",
    "export",
    "explain",
    "report",
    "compress",
    "promote",
    "serve",
    "models",
    "config",
    "cost",
    "plan",
    "tune",
    "paper",
]
app.registered_commands.sort(key=lambda command: ORDER.index(getattr(command.callback, "__name__", "")))
app.add_typer(data_commands, name="data")
app.add_typer(bench_commands, name="bench")


def main() -> None:
    """Run a command; an error of ours, or of the system, becomes one line, a hint, and exit status 2."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by whoever called us
            setattr(sys, stream, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _let_go_of_output()  # the reader of our output has gone; so do we
        sys.exit(1)
    except (CrossRankError, OSError, MemoryError) as error:
        if "--debug" in sys.argv:
            raise
        _let_go_of_output()
        message, hint = _told(error)
        say(f"error: {message}", style="red")
        if hint:
            say(f"hint: {_as_options(hint)}")
        sys.exit(2)


def _told(error: CrossRankError | OSError | MemoryError) -> tuple[str, str]:
    """What happened, and what to do."""
    if isinstance(error, CrossRankError):
        return error.message, error.hint
    if isinstance(error, MemoryError):
        return f"There must be memory for what was asked; got: {error or 'no more'}.", "Ask for less, or close others."
    place = f"{error.filename} " if error.filename else "What is read and written "
    return f"{place}must be usable; got: {error.strerror or error}.", "Check the path, and whether the disk is full."


def _let_go_of_output() -> None:
    """Throw away what could not be written, lest Python try again at the end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _as_options(hint: str) -> str:
    """A hint with arguments of Python as options of the command that was typed, or of `prepare`, which has them all."""
    command: Any = typer.main.get_command(app)
    for word in sys.argv[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    known = {name for parameter in command.params for name in parameter.opts}

    def option(found: re.Match[str]) -> str:
        name, value = f"--{found[1].replace('_', '-')}", ast.literal_eval(found[2])
        written = f"{name} {value if value.isalpha() else repr(value) if value.isprintable() else f'${value!r}'}"
        return written if name in known else f"crossrank prepare … {written}"

    return re.sub(r"""\b(on_error|separator|encoding)=("[^"]*"|'[^']*')""", option, hint)


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
    """Train, measure and explain models that cross features."""

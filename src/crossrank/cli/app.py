"""The commands' common ground: the application, options that many share, and how things are printed."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table as RichTable

from crossrank.errors import ConfigError
from crossrank.ray import EngineName

app = typer.Typer(
    name="crossrank",
    help="Train, measure and explain models that cross features.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: crossrank demo",
)
data_commands = typer.Typer(
    help="Look into tables and datasets, and make large ones.",
    no_args_is_help=True,
    epilog="Example: crossrank data describe clicks.csv",
)
bench_commands = typer.Typer(
    help="Measure the library on this machine.", no_args_is_help=True, epilog="Example: crossrank bench models"
)
LONGEST_NAME = 200  # bytes: while it is made, more is added
# Control characters but tab and line feed, and marks that turn the direction of writing
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# What is printed may hold a person's own words, such as a column called [/b] or :key:
out, talk = Console(markup=False, emoji=False), Console(stderr=True, markup=False, emoji=False)


def runs_from(incomplete: str) -> list[str]:
    """Run folders whose path begins so, for shells that complete words; not more than three folders down."""
    below = [f"{glob.escape(incomplete)}{depth}/run.json" for depth in ("*", "*/*", "*/*/*")]
    return [path.removesuffix("/run.json") for pattern in below for path in sorted(glob.glob(pattern))]  # noqa: PTH207


def models_from(incomplete: str) -> list[tuple[str, str]]:
    """Models whose name begins so, and a line about each."""
    from crossrank.models import MODELS

    return [(name, entry.about) for name, entry in MODELS.items() if name.startswith(incomplete)]


OnError = Literal["raise", "skip"]
Separator = Annotated[
    str | None, typer.Option(help="What stands between two fields, such as ';', tab or '::'; guessed if left out.")
]
Encoding = Annotated[
    str | None, typer.Option(help="Of text: utf-8, latin-1, cp1252, utf-16; left out, UTF-8 or marked UTF-16.")
]
OnBadRow = Annotated[OnError, typer.Option("--on-error", help="What a bad row does: raise, or skip and count it.")]
OnBadLine = Annotated[OnError, typer.Option("--on-error", help="What a line that cannot be read does: raise, or skip.")]
RunFolder = Annotated[Path, typer.Argument(help="A run folder.", autocompletion=runs_from)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]
Engine = Annotated[EngineName, typer.Option(help="Who does it: this machine, or a Ray cluster (RAY_ADDRESS).")]
Overwrite = Annotated[bool, typer.Option(help="Replace what stands there, once the new one is complete.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file; see `crossrank config`.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="One setting, such as model.cross.num_layers=3.")]
SchemaFile = Annotated[Path | None, typer.Option("--schema", help="JSON; drafted from the table if left out.")]


def new_path(about: str) -> Any:
    """The option for what a command makes, which must have a name."""

    def check(path: Path | None) -> Path | None:
        size = LONGEST_NAME if path is None else len(os.fsencode(path.name))
        if not 0 < size <= LONGEST_NAME:
            raise ConfigError(f"The last part of --into must have 1 to {LONGEST_NAME} bytes; got {size} in '{path}'.")
        return path

    return typer.Option("--into", help=about, callback=check)


def visible(text: str) -> str:
    """A text whose control characters, which could command the terminal, are written out.

    >>> visible("a" + chr(27) + "[31mb")
    'a\\\\x1b[31mb'
    """
    return UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def say(text: str, *, style: str | None = None) -> None:
    """Talk, on standard error."""
    talk.print(visible(text), style=style, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def interruptible(how: Callable[[], str]) -> Iterator[None]:
    """Tell how to go on after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted; {how()}")
        raise typer.Exit(130) from None


def same_command(*more: str) -> str:
    """What was typed, and more."""
    return shlex.join(["crossrank", *sys.argv[1:], *(word for word in more if word not in sys.argv)])


class _Table(RichTable):
    """Whose cells cannot command the terminal."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(visible(cell) for cell in cells), **options)


def table_of(*columns: str, title: str, text: Sequence[str] = ()) -> RichTable:
    """An empty table; its first column and those named as text are text, the others are numbers."""
    table = _Table(title=visible(title), title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(visible(column), justify="left" if i == 0 or column in text else "right")
    return table


def number(value: Any) -> str:
    """A count, a measure, or a dash for what is not defined."""
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.5f}"

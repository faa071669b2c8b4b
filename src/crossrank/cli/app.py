"""The commands' common ground: the application, options that many share, and how things are printed."""

from __future__ import annotations

import contextlib
import glob
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table as RichTable

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
Overwrite = Annotated[bool, typer.Option(help="Replace what stands there, once the new one is complete.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file; see `crossrank config`.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="One setting, such as model.cross.num_layers=3.")]
SchemaFile = Annotated[Path | None, typer.Option("--schema", help="JSON; drafted from the table if left out.")]


def say(text: str) -> None:
    """Talk, on standard error."""
    talk.print(text, highlight=False, soft_wrap=True)


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


def table_of(*columns: str, title: str, text: Sequence[str] = ()) -> RichTable:
    """An empty table; its first column and those named as text are text, the others are numbers."""
    table = RichTable(title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 or column in text else "right")
    return table


def number(value: Any) -> str:
    """A count, a measure, or a dash for what is not defined."""
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.5f}"

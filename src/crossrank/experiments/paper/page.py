"""What an experiment hands back, and how it becomes a page, its numbers and its figure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crossrank
from crossrank.errors import MissingExtraError, RunError
from crossrank.files import write_json, write_text, writing
from crossrank.models.cost import markdown_table
from crossrank.runs.run import describe_machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = Sequence[Sequence[str]]  # the header first


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page:
    """The result of an experiment.

    Attributes:
        title: the first line.
        text: paragraphs on what was done and on which rows the numbers were measured.
        tables: by caption.
        notes: what a reader of the tables should know.
        values: every number, as JSON.
        draw: draws the figure.
    """

    title: str
    text: Sequence[str]
    tables: Mapping[str, Table]
    notes: Sequence[str]
    values: Mapping[str, Any]
    draw: Callable[[Figure], None]


def check_plots() -> None:
    """Raise before hours of work what would be raised after them."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError("Drawing the figure of an experiment", "plots") from None


def write_page(page: Page, into: Path, name: str, *, command: str, seconds: float) -> None:
    """Write NAME.md, NAME.json and NAME.svg into a folder."""
    machine = {"crossrank": crossrank.__version__, **describe_machine()}
    made = f"Made by `{command}` in {seconds:,.0f} seconds ({', '.join(f'{k} {v}' for k, v in machine.items())})."
    tables = [part for caption, table in page.tables.items() for part in (caption, markdown_table(table))]
    notes = "\n".join(f"- {note}" for note in page.notes)
    parts = [f"# {page.title}", made, *page.text, *tables, f"![{page.title}]({name}.svg)", notes]
    with writing(into, RunError):
        into.mkdir(parents=True, exist_ok=True)
        write_text(into / f"{name}.md", "\n\n".join(filter(None, parts)) + "\n")
        values = {"name": name, "command": command, "seconds": round(seconds, 1), "machine": machine, **page.values}
        write_json(into / f"{name}.json", values)
        _save_figure(page.draw, into / f"{name}.svg")


def _save_figure(draw: Callable[[Figure], None], path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # The same numbers give the same file.
    with mpl.rc_context({"svg.hashsalt": "crossrank", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(layout="constrained")
        draw(figure)
        figure.savefig(path, metadata={"Date": None})

"""What an experiment hands back, and how it becomes a page, its numbers and its figure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import crossrank
from crossrank.errors import RunError
from crossrank.experiments.figures import Draw, save_figure
from crossrank.files import write_json, write_text, writing
from crossrank.models.cost import markdown_table
from crossrank.runs.origin import describe_machine

QUICK = (
    "**The quick version: few rows, few steps, few runs. It shows that everything works; its numbers mean nothing.**"
)
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
        runs: run folders that a report can compare.
    """

    title: str
    text: Sequence[str]
    tables: Mapping[str, Table]
    notes: Sequence[str]
    values: Mapping[str, Any]
    draw: Draw
    runs: Sequence[Path] = ()


def write_page(page: Page, into: Path, name: str, *, command: str, seconds: float, quick: bool = False) -> None:
    """Write NAME.md, NAME.json and NAME.svg into a folder."""
    machine = {"crossrank": crossrank.__version__, **describe_machine()}
    made = f"Made by `{command}` in {seconds:,.0f} seconds ({', '.join(f'{k} {v}' for k, v in machine.items())})."
    tables = [part for caption, table in page.tables.items() for part in (caption, markdown_table(table))]
    notes = "\n".join(f"- {note}" for note in page.notes)
    warning = QUICK if quick else ""
    parts = [f"# {page.title}", made, warning, *page.text, *tables, f"![{page.title}]({name}.svg)", notes]
    with writing(into, RunError):
        into.mkdir(parents=True, exist_ok=True)
        write_text(into / f"{name}.md", "\n\n".join(filter(None, parts)) + "\n")
        values = {"name": name, "command": command, "seconds": round(seconds, 1), "machine": machine, **page.values}
        write_json(into / f"{name}.json", values)
        save_figure(page.draw, into / f"{name}.svg")

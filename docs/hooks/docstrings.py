"""Docstrings as Markdown: what reads well in a terminal is brought into the form that reads well on a page."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr):`~?([^`]+)`")
LITERAL = re.compile(r"^( *)(.*?)::\n\n((?:\1 +.*\n|\n)+)", re.MULTILINE)
TABLE = re.compile(r"^( *)(=+(?: +=+)+)\n(.*)\n\1\2\n((?:.*\n)+?)\1\2$", re.MULTILINE)
FACT = re.compile(r"^(Shape|Cost|Limits): ", re.MULTILINE)
LINE = re.compile(r"^\| (``.*)$", re.MULTILINE)
DOCTEST = re.compile(r"^>>> (?:.+\n)+", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites every docstring when it is loaded."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """Roles become code, literal blocks and doctests fenced ones, tables of = signs tables of bars."""
    text = TABLE.sub(_table, text + "\n")
    text = LITERAL.sub(_literal, text)
    text = DOCTEST.sub(lambda found: f"```pycon\n{found[0]}```\n", text)
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    text = LINE.sub(r"\1\n", text)
    text = FACT.sub(r"\n**\1:** ", text)
    return ROLE.sub(r"`\1`", text).rstrip()


def _literal(found: re.Match[str]) -> str:
    indent, head, block = found.groups()
    code = textwrap.indent(f"```python\n{textwrap.dedent(block).strip()}\n```\n", indent)
    return f"{indent}{head + ':' if head else ''}\n\n{code}\n"


def _table(found: re.Match[str]) -> str:
    indent, rule, head, body = found.groups()
    starts = [column.start() for column in re.finditer("=+", rule)]
    rows = [["---"] * len(starts)]
    for line in (head, *body.splitlines()):
        line = line.removeprefix(indent)
        rows.append([line[start:stop].strip() for start, stop in zip(starts, [*starts[1:], None], strict=True)])
    rows[:2] = rows[1::-1]
    return "\n".join(f"{indent}| {' | '.join(row)} |" for row in rows)

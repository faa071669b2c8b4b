"""Whether a schema fits a table."""

from __future__ import annotations

from crossrank.data.labels import refusals
from crossrank.data.table import Table
from crossrank.data.text import text_of_value
from crossrank.errors import DataError, did_you_mean
from crossrank.schema import Schema


def misfits(table: Table, schema: Schema) -> dict[str, str]:
    """What does not fit, by column of the table: it is not there, or has cells that would be refused.

    Reads once those columns of the table that hold a label, a weight, numbers or dates.
    """
    known = set(table.columns)
    absent = [name for name in schema.required if name not in known]
    found = {name: f"not in the table. {did_you_mean(name, table.columns)}".strip() for name in absent}
    checks = {name: refused for _, name, refused in refusals(schema) if name not in found}
    counts, firsts, rows = dict.fromkeys(checks, 0), dict.fromkeys(checks, ""), 0
    for chunk in table.chunks(list(checks)) if checks else ():
        for name, refused in checks.items():
            if name in found:
                continue
            try:
                bad = refused(chunk.frame[name])
            except DataError as error:
                found[name] = error.message
                continue
            if bad.any() and not counts[name]:
                row = int(bad.argmax())
                firsts[name] = f"{text_of_value(chunk.frame[name][row]) or 'nothing'!r} in {chunk.where(row)}"
            counts[name] += int(bad.sum())
        rows += len(chunk.frame)
    wrong = {name: count for name, count in counts.items() if count}
    return found | {
        name: f"{count:,} of {rows:,} cells cannot be read, the first {firsts[name]}" for name, count in wrong.items()
    }

"""The draft of a table of any size: its first rows, and of columns of dates the range of all."""

from __future__ import annotations

import dataclasses

from crossrank.data.derived import parse_dates
from crossrank.data.table import Table
from crossrank.errors import SchemaError
from crossrank.schema import Date
from crossrank.schema.columns import TableFeature
from crossrank.schema.dates import TimeRange
from crossrank.schema.draft import Draft, draft_features, draft_schema


def draft_table(
    table: Table,
    *,
    label: str | None = None,
    positive: str | None = None,
    split: str | None = None,
    needs_label: bool = True,
) -> Draft:
    """Draft the meaning of a table's columns.

    A column of dates is read to its end, in one pass: in a table in order of time the first rows are of the first days.

    Args:
        table: what :func:`crossrank.data.open_table` opens.
        label: the name of the label, where it is not one of the usual names.
        positive: the value of the label that counts as 1, where it cannot be told.
        split: a column that names the split, where it has another name.
        needs_label: refuse a table in which no label can be found; else it is noted.

    Raises:
        SchemaError: as :func:`~crossrank.schema.draft.draft_schema` does.
    """
    head = table.head()
    try:
        draft = draft_schema(head, label=label, positive=positive, split=split)
    except SchemaError as error:
        if label is not None or needs_label:
            raise
        draft = draft_features(head)
        draft = dataclasses.replace(draft, notes=[f"there is no label, so no signal: {error}", *draft.notes])
    dates = {column.name: column for column in draft.features if isinstance(column, Date)}
    if not dates:
        return draft
    ranges = {name: TimeRange() for name in dates}
    for chunk in table.chunks(list(dates)):
        for name, date in dates.items():
            times, missing, _ = parse_dates(chunk.frame[name], date)
            ranges[name].add(times[~missing].tolist())
    features: list[TableFeature] = []
    for column in draft.features:
        decided = ranges[column.name].decide(column) if isinstance(column, Date) else column
        features.append(column if isinstance(decided, str) else decided)
    return dataclasses.replace(draft, features=features)

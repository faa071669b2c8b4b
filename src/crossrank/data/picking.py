"""Columns of a table or a row: whether they are there, and a row's cells in few calls, as a server takes them often."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from operator import itemgetter
from typing import TypeAlias

from crossrank.errors import SchemaError, did_you_mean, listing

Row: TypeAlias = Mapping[str, object]
Cells: TypeAlias = Sequence[object]


def cells_of(names: Sequence[str]) -> Callable[[Row], Cells]:
    """A function that takes the cells of these columns out of a row.

    >>> cells_of(["b", "a"])({"a": 1, "b": 2, "c": 3}), cells_of(["c"])({"c": 3}), cells_of([])({})
    ((2, 1), [3], [])
    """
    return itemgetter(*names) if len(names) > 1 else partial(_one_by_one, names)


def _one_by_one(names: Sequence[str], row: Row) -> Cells:
    return [row[name] for name in names]


def all_of(cells: Iterable[object], kinds: Set[object]) -> bool:
    """Whether the type of each cell is one of these, not of a class below them.

    >>> all_of(["a", None], frozenset({str, type(None)})), all_of([True], frozenset({int}))
    (True, False)
    """
    return kinds >= set(map(type, cells))


def check_columns(needed: Iterable[str], present: Iterable[str], source: str) -> None:
    """SchemaError for the first needed column that is not there."""
    present = present if isinstance(present, Mapping) else set(present)
    for name in needed:
        if name not in present:
            raise SchemaError(
                f"Column '{name}' of the schema is missing from {source}; its columns are {listing(present, most=3)}.",
                hint=did_you_mean(name, present),
            )

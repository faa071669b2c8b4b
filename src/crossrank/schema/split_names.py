"""Columns that name the split of each row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

SPLIT_NAMES = {
    "train": 0, "training": 0, "valid": 1, "validation": 1, "val": 1, "dev": 1, "test": 2, "testing": 2
}  # fmt: skip


def split_of(text: Any) -> int | None:
    """Which split a cell names, whatever its case: 0 train, 1 valid, 2 test; None where it names none."""
    return SPLIT_NAMES.get(text.strip().lower()) if isinstance(text, str) else None


def find_split(columns: Mapping[str, Iterable[Any]]) -> str | None:
    """The column called split, if all its cells name a split.

    >>> find_split({"split": ["train", "Test"], "age": [31, 40]})
    'split'
    """
    named = (name for name in columns if name.lower() == "split")
    return next((name for name in named if all(split_of(cell) is not None for cell in columns[name])), None)

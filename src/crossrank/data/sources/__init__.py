"""Known public sets: how each is opened, what its columns mean and how published work divides it.

Each module has ``open_set(path)``, ``schema()`` and ``SPLIT``. It is imported when it is first asked for, because
reading tables needs polars.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from crossrank.data.splits import SplitSettings
from crossrank.data.table import Table
from crossrank.errors import ConfigError, did_you_mean, listing
from crossrank.schema import Schema

SOURCES = {  # name: module
    "criteo": "criteo",
    "criteo-auto": "criteo_auto",
    "movielens-1m": "movielens",
    "avazu": "avazu",
}


def open_source(
    name: str, paths: Sequence[Path | str], *, on_error: Literal["raise", "skip"] = "raise"
) -> tuple[Table, Schema, SplitSettings]:
    """A known set as a table, with its schema and its division.

    Args:
        name: one of ``SOURCES``.
        paths: one path, the publisher's file or its folder.
        on_error: ``"skip"`` to leave out and count lines that cannot be read.
    """
    if name not in SOURCES:
        raise ConfigError(f"Known sets are {listing(SOURCES)}; got '{name}'.", hint=did_you_mean(name, SOURCES))
    if len(paths) != 1:
        raise ConfigError(f"The set {name} is one file or folder; got {len(paths)} paths.")
    module = importlib.import_module(f"{__name__}.{SOURCES[name]}")
    return module.open_set(paths[0], on_error=on_error), module.schema(), module.SPLIT

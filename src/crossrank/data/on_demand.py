"""Polars, imported when something of it is first asked for: rows that are given as dictionaries are encoded without."""

from __future__ import annotations

import importlib
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["pl"]


class _OnDemand:
    """Stands for a module."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _module(self) -> ModuleType:
        return importlib.import_module(self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


if TYPE_CHECKING:
    import polars as pl
else:
    pl = _OnDemand("polars")
